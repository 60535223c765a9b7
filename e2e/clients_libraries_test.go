package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// roundTripper trusts the session's CA alone.
func (s session) roundTripper(t *testing.T) http.RoundTripper {
	t.Helper()
	transport := s.ca.Transport(t)
	transport.ForceAttemptHTTP2 = true
	return transport
}

func ggcrClient(title string, credential func(session) authn.Authenticator) client {
	return client{
		name: title, refusedLogin: "audience", refusedAccess: "UNAUTHORIZED: authentication required",
		// crane's login writes a file and sends no request; this is its ping with the credential, without any scope.
		login: func(t *testing.T, s session) error {
			host, err := name.NewRegistry(s.host)
			if err != nil {
				return err
			}
			_, err = transport.NewWithContext(t.Context(), host, credential(s), s.roundTripper(t), nil)
			return err
		},
		push: func(t *testing.T, s session, repository string) error {
			return ggcrPush(t, s, credential(s), repository, newImage(t))
		},
		pull: func(t *testing.T, s session, repository string) error {
			image, err := ggcrImage(t, s, credential(s), repository)
			if err != nil {
				return err
			}
			return validate.Image(image) // reads every layer
		},
		mount: func(t *testing.T, s session, from, to string) error {
			image, err := ggcrImage(t, s, credential(s), from)
			if err != nil {
				return err
			}
			return ggcrPush(t, s, credential(s), to, image)
		},
		list: func(t *testing.T, s session) ([]string, error) {
			host, err := name.NewRegistry(s.host)
			if err != nil {
				return nil, err
			}
			return remote.Catalog(t.Context(), host, remote.WithAuth(credential(s)), remote.WithTransport(s.roundTripper(t)))
		},
		remove: func(t *testing.T, s session, repository string) error {
			image, err := ggcrImage(t, s, credential(s), repository)
			if err != nil {
				return err
			}
			digest, err := image.Digest()
			if err != nil {
				return err
			}
			ref, err := name.NewDigest(s.host + "/" + repository + "@" + digest.String())
			if err != nil {
				return err
			}
			return remote.Delete(ref, remote.WithContext(t.Context()), remote.WithAuth(credential(s)), remote.WithTransport(s.roundTripper(t)))
		},
	}
}

// newImage makes an image that no registry has. Its layers are compressed, as usual: skopeo and podman would
// compress them otherwise, and then push something else than what they pulled.
func newImage(t *testing.T) v1.Image {
	t.Helper()
	random, err := random.Image(1024, 2)
	testenv.Must(t, err)
	layers, err := random.Layers()
	testenv.Must(t, err)
	for i, layer := range layers {
		if layers[i], err = tarball.LayerFromOpener(layer.Uncompressed); err != nil {
			t.Fatal(err)
		}
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	testenv.Must(t, err)
	return image
}

func ggcrPush(t *testing.T, s session, credential authn.Authenticator, repository string, image v1.Image) error {
	t.Helper()
	ref, err := name.NewTag(s.host + "/" + repository + ":" + tag)
	if err != nil {
		return err
	}
	return remote.Write(ref, image, remote.WithContext(t.Context()), remote.WithAuth(credential), remote.WithTransport(s.roundTripper(t)))
}

func ggcrImage(t *testing.T, s session, credential authn.Authenticator, repository string) (v1.Image, error) {
	t.Helper()
	ref, err := name.NewTag(s.host + "/" + repository + ":" + tag)
	if err != nil {
		return nil, err
	}
	return remote.Image(ref, remote.WithContext(t.Context()), remote.WithAuth(credential), remote.WithTransport(s.roundTripper(t)))
}

// ggcrHead returns the HTTP status of a failure as well.
func ggcrHead(t *testing.T, s session, credential authn.Authenticator, repository string) (int, error) {
	t.Helper()
	_, err := ggcrImage(t, s, credential, repository)
	if failure, ok := errors.AsType[*transport.Error](err); ok {
		return failure.StatusCode, err
	}
	return 0, err
}

func orasPassword(s session) auth.Credential {
	return auth.Credential{Username: "serviceaccount", Password: s.password}
}

func orasIdentityToken(s session) auth.Credential { return auth.Credential{RefreshToken: s.password} }

func orasHTTP(t *testing.T, s session, credential func(session) auth.Credential) *auth.Client {
	t.Helper()
	c := &auth.Client{
		Client:     &http.Client{Transport: s.roundTripper(t)},
		Credential: auth.StaticCredential(s.host, credential(s)),
		Cache:      auth.NewCache(),
	}
	c.SetUserAgent("oras-go")
	return c
}

func orasClient(title string, credential func(session) auth.Credential) client {
	open := func(t *testing.T, s session, repository string) (*orasremote.Repository, error) {
		repo, err := orasremote.NewRepository(s.host + "/" + repository)
		if err == nil {
			repo.Client = orasHTTP(t, s, credential)
		}
		return repo, err
	}
	registry := func(t *testing.T, s session) (*orasremote.Registry, error) {
		reg, err := orasremote.NewRegistry(s.host)
		if err == nil {
			reg.Client = orasHTTP(t, s, credential)
		}
		return reg, err
	}
	return client{
		name: title, refusedLogin: "audience", refusedAccess: "unauthorized: authentication required",
		login: func(t *testing.T, s session) error {
			reg, err := registry(t, s)
			if err != nil {
				return err
			}
			return reg.Ping(t.Context())
		},
		push: func(t *testing.T, s session, repository string) error {
			repo, err := open(t, s, repository)
			if err != nil {
				return err
			}
			store, err := orasArtifact(t.Context())
			if err != nil {
				return err
			}
			_, err = oras.Copy(t.Context(), store, tag, repo, tag, oras.DefaultCopyOptions)
			return err
		},
		pull: func(t *testing.T, s session, repository string) error {
			repo, err := open(t, s, repository)
			if err != nil {
				return err
			}
			_, err = oras.Copy(t.Context(), repo, tag, memory.New(), tag, oras.DefaultCopyOptions)
			return err
		},
		mount: func(t *testing.T, s session, from, to string) error {
			source, err := open(t, s, from)
			if err != nil {
				return err
			}
			target, err := open(t, s, to)
			if err != nil {
				return err
			}
			options := oras.DefaultCopyOptions
			options.MountFrom = func(context.Context, ocispec.Descriptor) ([]string, error) { return []string{from}, nil }
			_, err = oras.Copy(t.Context(), source, tag, target, tag, options)
			return err
		},
		list: func(t *testing.T, s session) ([]string, error) {
			reg, err := registry(t, s)
			if err != nil {
				return nil, err
			}
			var repositories []string
			err = reg.Repositories(t.Context(), "", func(page []string) error {
				repositories = append(repositories, page...)
				return nil
			})
			return repositories, err
		},
		remove: func(t *testing.T, s session, repository string) error {
			repo, err := open(t, s, repository)
			if err != nil {
				return err
			}
			descriptor, err := repo.Resolve(t.Context(), tag)
			if err != nil {
				return err
			}
			return repo.Delete(t.Context(), descriptor)
		},
	}
}

// orasArtifact makes an artifact with one file, in memory.
func orasArtifact(ctx context.Context) (*memory.Store, error) {
	store := memory.New()
	text := []byte("hello from oras")
	file := content.NewDescriptorFromBytes("text/plain", text)
	if err := store.Push(ctx, file, bytes.NewReader(text)); err != nil {
		return nil, err
	}
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: []ocispec.Descriptor{file}})
	if err != nil {
		return nil, err
	}
	return store, store.Tag(ctx, manifest, tag)
}
