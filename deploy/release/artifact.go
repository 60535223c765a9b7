package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// artifact is an image, or the chart, in a registry.
type artifact struct {
	repository, tag string
	digest          v1.Hash
	archive         string // of an image; empty: the chart
	chart           v1.Image
}

func (a artifact) reference() string { return a.repository + "@" + a.digest.String() }

// openArchive describes the image of an archive that deploy/image wrote.
func openArchive(repository, tag, archive string) (artifact, error) {
	a := artifact{repository: repository, tag: tag, archive: archive}
	err := a.withLayout(func(_ layout.Path, list v1.IndexManifest) error {
		a.digest = list.Manifests[0].Digest
		return nil
	})
	return a, err
}

// withLayout unpacks the archive for a while. The first manifest is the image, and
// the others are what refers to it.
func (a artifact) withLayout(use func(layout.Path, v1.IndexManifest) error) error {
	dir, err := os.MkdirTemp("", "pullpass-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unpack(a.archive, dir); err != nil {
		return fmt.Errorf("%s: %w", a.archive, err)
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		return err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(list.Manifests) == 0 {
		return fmt.Errorf("%s: holds no image", a.archive)
	}
	return use(path, *list)
}

func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o700); err != nil {
			return err
		}
		if err := root.WriteFile(header.Name, content, 0o600); err != nil {
			return err
		}
	}
}

// push pushes the images with their SBOMs, the chart, and the signatures.
func (r release) push(ctx context.Context, artifacts []artifact) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, a := range artifacts {
		tag, err := name.NewTag(a.repository + ":" + a.tag)
		if err != nil {
			return err
		}
		if err := neverReplace(tag, a.digest, options); err != nil {
			return err
		}
		if a.chart != nil {
			err = remote.Write(tag, a.chart, options...)
		} else {
			err = a.withLayout(func(path layout.Path, list v1.IndexManifest) error { return pushLayout(tag, path, list, options) })
		}
		if err != nil {
			return fmt.Errorf("%s: %w", tag, err)
		}
		if r.sign != "" {
			if err := r.signArtifact(ctx, a, options); err != nil {
				return fmt.Errorf("%s: %w", tag, err)
			}
		}
		fmt.Fprintf(r.stdout, "%s: %s pushed\n", tag, a.digest)
	}
	return nil
}

// neverReplace refuses a tag with other content. A release that is pushed again is
// the same.
func neverReplace(tag name.Tag, digest v1.Hash, options []remote.Option) error {
	there, err := remote.Head(tag, options...)
	var refused *transport.Error
	switch {
	case errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound:
		return nil
	case err != nil:
		return err
	case there.Digest != digest:
		return fmt.Errorf("%s: is %s already, and this is %s; a version never changes", tag, there.Digest, digest)
	}
	return nil
}

func pushLayout(tag name.Tag, path layout.Path, list v1.IndexManifest, options []remote.Option) error {
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	image, err := index.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(tag, image, options...); err != nil {
		return err
	}
	for _, m := range list.Manifests[1:] {
		refers, err := index.Image(m.Digest)
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Context().Digest(m.Digest.String()), refers, options...); err != nil {
			return err
		}
	}
	return nil
}

// oci is an OCI artifact of one layer (OCI image specification 1.1).
type oci struct {
	manifest        v1.Manifest
	config, content []byte
}

// newOCI completes the manifest, and returns what the registry takes for an image.
func newOCI(manifest v1.Manifest, config []byte, configType types.MediaType, content []byte, contentType types.MediaType) (v1.Image, error) {
	manifest.SchemaVersion, manifest.MediaType = 2, types.OCIManifestSchema1
	describe := func(content []byte, mediaType types.MediaType) (v1.Descriptor, error) {
		digest, size, err := v1.SHA256(bytes.NewReader(content))
		return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
	}
	var err error
	if manifest.Config, err = describe(config, configType); err != nil {
		return nil, err
	}
	layer, err := describe(content, contentType)
	if err != nil {
		return nil, err
	}
	manifest.Layers = []v1.Descriptor{layer}
	return partial.CompressedToImage(oci{manifest, config, content})
}

func (o oci) MediaType() (types.MediaType, error) { return o.manifest.MediaType, nil }
func (o oci) RawManifest() ([]byte, error)        { return json.Marshal(o.manifest) }
func (o oci) RawConfigFile() ([]byte, error)      { return o.config, nil }
func (o oci) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) {
	return static.NewLayer(o.content, o.manifest.Layers[0].MediaType), nil
}
