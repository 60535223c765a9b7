package credential_test

import (
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/pullpass/pullpass/credential"
)

// keychain makes a client of go-containerregistry use the pod's token:
// remote.WithAuthFromKeychain(keychain{}). It reads the token at each use and
// gives it to one registry.
type keychain struct{}

func (keychain) Resolve(target authn.Resource) (authn.Authenticator, error) {
	if target.RegistryStr() != "registry.example.com" {
		return authn.Anonymous, nil
	}
	c, err := credential.FromFile("/var/run/secrets/pullpass/token", "registry.example.com", time.Now())
	return &authn.Basic{Username: credential.Username, Password: c.Password()}, err
}

func ExampleFromFile() {
	var _ authn.Keychain = keychain{}
}

// A CSI driver has the token of the pod for which it mounts.
func ExampleFromCSI() {
	// NodePublishVolume(ctx, request) has it in request.GetSecrets() or, without
	// serviceAccountTokenInSecrets in the CSIDriver object, in request.GetVolumeContext().
	values := map[string]string{}

	c, err := credential.FromCSI(values, "registry.example.com", time.Now())
	if err != nil {
		fmt.Println(err) // and codes.Unauthenticated: the kubelet tries again
		return
	}
	_ = &authn.Basic{Username: credential.Username, Password: c.Password()}
	// Output: csi.storage.k8s.io/serviceAccount.tokens: no ServiceAccount token; add audience "registry.example.com" to spec.tokenRequests of the CSIDriver object, and read the secrets instead of the volume context if and only if it has serviceAccountTokenInSecrets
}
