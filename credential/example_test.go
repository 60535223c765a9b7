package credential_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/pullpass/pullpass/credential"
)

// A program in a pod, for which a token is mounted.
func ExamplePod() {
	pod := credential.Pod{Registries: []string{"registry.example.com"}}
	_, _, err := pod.For("registry.example.com", time.Now())
	fmt.Println(err)
	// Output: /var/run/secrets/pullpass/token: no token; mount a projected volume there (volumes[].projected.sources[].serviceAccountToken of the pod with audience "registry.example.com", and volumeMounts[] of the container)
}

// A CSI driver pulls as the pod for which it mounts.
func ExampleFromCSI() {
	image := name.MustParseReference("registry.example.com/team-a/web:v1")
	secrets := map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": `{"vault":{}}`}
	_, err := pull(context.Background(), secrets, image)
	fmt.Println(err)
	// Output: csi.storage.k8s.io/serviceAccount.tokens: no token for audience "registry.example.com"; add it to spec.tokenRequests of the CSIDriver object
}

// pull gets an image as the pod. The secrets are those of NodePublishVolumeRequest.
func pull(ctx context.Context, secrets map[string]string, image name.Reference) (v1.Image, error) {
	if image.Context().RegistryStr() != "registry.example.com" {
		return nil, fmt.Errorf("%s: not from the registry that gets the pod's token", image)
	}
	c, err := credential.FromCSI(secrets, "registry.example.com", time.Now())
	if err != nil {
		return nil, err // says what is wrong, never the token
	}
	auth := &authn.Basic{Username: credential.Username, Password: c.Password()}
	return remote.Image(image, remote.WithContext(ctx), remote.WithAuth(auth))
}
