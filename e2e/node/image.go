package node

import (
	"archive/tar"
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// Image returns an image that runs until SIGTERM. Those with different labels have nothing in common: no layer of one comes
// with another.
func Image(t testing.TB, label string) v1.Image {
	t.Helper()
	program := testenv.ReadFile(t, programs.Pause(t))
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{"label", 0o644, []byte(label)}, {"pause", 0o755, []byte(program)}} {
		testenv.Must(t, archive.WriteHeader(&tar.Header{Name: file.name, Mode: file.mode, Size: int64(len(file.content))}))
		testenv.Value(archive.Write(file.content))(t)
	}
	testenv.Must(t, archive.Close())
	image := testenv.Value(mutate.AppendLayers(empty.Image, static.NewLayer(files.Bytes(), types.DockerUncompressedLayer)))(t)
	config := testenv.Value(image.ConfigFile())(t)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Entrypoint = []string{"/pause"}
	image = testenv.Value(mutate.ConfigFile(image, config))(t)
	return image
}

// Push puts an image into a registry, under a name with a tag.
func Push(ctx context.Context, transport http.RoundTripper, username, password, reference string, image v1.Image) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	return remote.Write(tag, image, remote.WithContext(ctx), remote.WithTransport(transport), remote.WithAuth(&authn.Basic{Username: username, Password: password}))
}

// SaveImage writes an image that containerd imports under the given name.
func SaveImage(t testing.TB, file, reference string) {
	t.Helper()
	tag := testenv.Value(name.NewTag(reference))(t)
	testenv.Must(t, tarball.WriteToFile(file, tag, Image(t, reference)))
}
