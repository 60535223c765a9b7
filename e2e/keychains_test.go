package e2e

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/types"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/pullpass/pullpass/credential"
	"github.com/pullpass/pullpass/credential/containers"
	"github.com/pullpass/pullpass/credential/ggcr"
	orascredential "github.com/pullpass/pullpass/credential/oras"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestKeychains pulls with the modules for Go programs, which read the token of the pod.
func TestKeychains(t *testing.T) {
	t.Parallel()
	w := startWorld(t, programs.Distribution(t), pullpass.Signing{})
	w.publish(t)
	token := w.token(t, namespace)
	s := w.session(t, token)
	pod := credential.Pod{Registries: []string{s.host}, Audience: audience, TokenFile: testenv.WriteFile(t, filepath.Join(t.TempDir(), "token"), token)}
	stranger := pod
	stranger.Registries = []string{"registry.example.com"} // it has the token, and not for this registry

	noLogin := filepath.Join(t.TempDir(), "none")

	for _, test := range []struct {
		pod        credential.Pod
		repository string
		isGranted  bool
	}{{pod, "shared/base", true}, {pod, "team-b/app", false}, {stranger, "shared/base", false}} {
		ref := testenv.Value(name.NewTag(s.host + "/" + test.repository + ":" + tag))(t)
		keys := authn.NewMultiKeychain(ggcr.Keychain{Pod: test.pod})
		if _, err := remote.Image(ref, remote.WithContext(t.Context()), remote.WithTransport(s.roundTripper(t)), remote.WithAuthFromKeychain(keys)); (err == nil) != test.isGranted {
			t.Errorf("go-containerregistry, %v, %s: %v", test.pod, test.repository, err)
		}
		repository := testenv.Value(orasremote.NewRepository(s.host + "/" + test.repository))(t)
		repository.Client = &auth.Client{Client: &http.Client{Transport: s.roundTripper(t)}, Credential: orascredential.Credential(test.pod)}
		if _, err := oras.Copy(t.Context(), repository, tag, memory.New(), tag, oras.DefaultCopyOptions); (err == nil) != test.isGranted {
			t.Errorf("oras-go, %v, %s: %v", test.pod, test.repository, err)
		}
		auth := testenv.Value(containers.AuthConfig(test.pod, s.host))(t)
		image, err := testenv.Value(docker.ParseReference("//"+ref.String()))(t).NewImage(t.Context(), &types.SystemContext{
			DockerAuthConfig: auth, DockerCertPath: filepath.Dir(w.ca.File), AuthFilePath: noLogin, SystemRegistriesConfPath: os.DevNull, SystemRegistriesConfDirPath: noLogin,
		})
		if (err == nil) != test.isGranted {
			t.Errorf("containers/image, %v, %s: %v", test.pod, test.repository, err)
		}
		if err == nil {
			_, err = image.OCIConfig(t.Context())
			testenv.Must(t, errors.Join(err, image.Close()))
		}
	}

	// A remote.Puller and a client of oras-go keep these. They find the token of team-b, which takes the place of the other one.
	ref := testenv.Value(name.NewTag(s.host + "/team-b/app:" + tag))(t)
	kept := testenv.Value(ggcr.Keychain{Pod: pod}.Resolve(ref.Context()))(t)
	credentials := orascredential.Credential(pod)
	for _, caller := range []string{namespace, "team-b"} {
		token := w.token(t, caller)
		testenv.Must(t, os.WriteFile(pod.TokenFile, []byte(token), 0o600))
		if _, err := remote.Image(ref, remote.WithContext(t.Context()), remote.WithTransport(s.roundTripper(t)), remote.WithAuth(kept)); (err == nil) != (caller == "team-b") {
			t.Errorf("go-containerregistry, with the token of %s: %v", caller, err)
		}
		if c, err := credentials(t.Context(), s.host); err != nil || c.Password != token {
			t.Errorf("oras-go, %s: not the token of the file: %v", caller, err)
		}
	}
}
