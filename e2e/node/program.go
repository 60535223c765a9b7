package node

import (
	"archive/tar"
	"bytes"
	"io"
	"path"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// File is a file of an image, with its path from the root.
type File struct {
	Path    string
	Content []byte
}

// ProgramImage returns an image of files that has the directory of the first one in its PATH. Pods say what runs.
func ProgramImage(t testing.TB, files ...File) v1.Image {
	t.Helper()
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, file := range files {
		testenv.Must(t, archive.WriteHeader(&tar.Header{Name: file.Path[1:], Mode: 0o755, Size: int64(len(file.Content))}))
		testenv.Value(archive.Write(file.Content))(t)
	}
	testenv.Must(t, archive.Close())
	layer := testenv.Value(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }))(t)
	image := testenv.Value(mutate.AppendLayers(empty.Image, layer))(t)
	config := testenv.Value(image.ConfigFile())(t)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"PATH=" + path.Dir(files[0].Path)}
	image = testenv.Value(mutate.ConfigFile(image, config))(t)
	return image
}
