package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullpass/pullpass/deploy/sbom"
)

// writeArchive writes the images, as one image for several platforms, and
// returns the digest of that. Each SBOM is a manifest whose subject is the image
// that it is about (OCI image specification 1.1).
func writeArchive(name string, images []platformImage, o options) (v1.Hash, error) {
	dir, err := os.MkdirTemp("", "pullpass-image-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image.Image, Descriptor: v1.Descriptor{Platform: &image.platform}})
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": o.name.Tag(),
		"io.containerd.image.name":          o.name.String(), // for ctr, and engines with its store
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	for _, image := range images {
		if err := attachSBOM(path, image); err != nil {
			return v1.Hash{}, err
		}
	}
	if err := addDockerManifest(path, images, o.name); err != nil {
		return v1.Hash{}, err
	}
	if err := pack(name, dir); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

func attachSBOM(path layout.Path, image platformImage) error {
	subject, err := partial.Descriptor(image.Image)
	if err != nil {
		return err
	}
	config, err := writeBlob(path, []byte("{}"), "application/vnd.oci.empty.v1+json")
	if err != nil {
		return err
	}
	bom, err := writeBlob(path, image.sbom, sbom.MediaType)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  sbom.MediaType,
		Config:        config,
		Layers:        []v1.Descriptor{bom},
		Subject:       subject,
	})
	if err != nil {
		return err
	}
	descriptor, err := writeBlob(path, manifest, types.OCIManifestSchema1)
	if err != nil {
		return err
	}
	descriptor.ArtifactType = sbom.MediaType
	return path.AppendDescriptor(descriptor)
}

func writeBlob(path layout.Path, content []byte, mediaType types.MediaType) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	err = path.WriteBlob(digest, io.NopCloser(bytes.NewReader(content)))
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

// addDockerManifest describes one image in the way of docker save as well:
// docker load before version 25 reads nothing else. It is that of this machine,
// where the archive is most likely loaded.
func addDockerManifest(path layout.Path, images []platformImage, name reference.NamedTagged) error {
	image := images[max(0, slices.IndexFunc(images, func(i platformImage) bool { return i.platform.Architecture == runtime.GOARCH }))]
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }
	entry := tarball.Descriptor{Config: blob(manifest.Config), RepoTags: []string{reference.FamiliarString(name)}}
	for _, l := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(l))
	}
	raw, err := json.Marshal(tarball.Manifest{entry})
	if err != nil {
		return err
	}
	return path.WriteFile("manifest.json", raw, 0o644)
}

// pack writes the files of dir in the order of their names, without times and
// owners.
func pack(name, dir string) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(relative), Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		content, err := os.Open(path) //nolint:gosec // a directory that this program made
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(w, content)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
