package pulltest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// zeros is a layer of zeros, not compressed. To tar it is an archive without files, of whatever size.
type zeros struct {
	size   int64
	digest v1.Hash
}

func (z zeros) Digest() (v1.Hash, error)             { return z.digest, nil }
func (z zeros) DiffID() (v1.Hash, error)             { return z.digest, nil }
func (z zeros) Compressed() (io.ReadCloser, error)   { return z.Uncompressed() }
func (z zeros) Uncompressed() (io.ReadCloser, error) { return io.NopCloser(z.reader()), nil }
func (z zeros) Size() (int64, error)                 { return z.size, nil }
func (z zeros) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }

func (z zeros) reader() io.Reader { return io.LimitReader(zero{}, z.size) }

type zero struct{}

func (zero) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// zerosImage has one layer, of that size.
func zerosImage(t testing.TB, size int64) v1.Image {
	t.Helper()
	layer, hash := zeros{size: size}, sha256.New()
	testenv.Value(io.Copy(hash, layer.reader()))(t)
	layer.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return testenv.Value(mutate.AppendLayers(image, layer))(t)
}
