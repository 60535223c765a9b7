package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"
)

const chartDir = "deploy/helm/pullpass"

// writeChart writes the chart as "helm package" does, but with no time of its own
// in it. Its version and its image are those of the release.
func (r release) writeChart(images []artifact) (artifact, error) {
	metadata, err := r.chartMetadata(images)
	if err != nil {
		return artifact{}, err
	}
	content, err := r.chartArchive(metadata, images[0])
	if err != nil {
		return artifact{}, err
	}
	if err := r.write("pullpass-"+r.version+".tgz", content); err != nil {
		return artifact{}, err
	}
	config, err := json.Marshal(metadata)
	if err != nil {
		return artifact{}, err
	}
	// As "helm push" does (HIP-0006), but for the time.
	manifest := v1.Manifest{Annotations: map[string]string{
		"org.opencontainers.image.title":       "pullpass",
		"org.opencontainers.image.description": fmt.Sprint(metadata["description"]),
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.url":         source,
		"org.opencontainers.image.source":      source,
	}}
	image, err := newOCI(manifest, config, "application/vnd.cncf.helm.config.v1+json", content, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	if err != nil {
		return artifact{}, err
	}
	digest, err := image.Digest()
	return artifact{repository: r.registry + "/charts/pullpass", tag: r.version, digest: digest, chart: image}, err
}

// chartMetadata is Chart.yaml, with what Artifact Hub shows
// (https://artifacthub.io/docs/topics/annotations/helm/).
func (r release) chartMetadata(images []artifact) (map[string]any, error) {
	text, err := os.ReadFile(filepath.Join(r.root, chartDir, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	var metadata map[string]any
	if err := yaml.UnmarshalStrict(text, &metadata); err != nil {
		return nil, err
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s/Chart.yaml has no annotations", chartDir)
	}
	metadata["version"], metadata["appVersion"] = r.version, r.tag()
	var list []map[string]string
	for _, image := range images {
		list = append(list, map[string]string{"name": filepath.Base(image.repository), "image": image.repository + ":" + image.tag})
	}
	for name, value := range map[string]any{"changes": r.notes.changes, "images": list} {
		text, err := yaml.Marshal(value)
		if err != nil {
			return nil, err
		}
		annotations["artifacthub.io/"+name] = string(text)
	}
	annotations["artifacthub.io/prerelease"] = fmt.Sprint(strings.Contains(r.version, "-"))
	annotations["artifacthub.io/containsSecurityUpdates"] = fmt.Sprint(r.notes.security())
	return metadata, nil
}

// unset is the image in values.yaml.
const unset = "image:\n  # Required: the image, at a registry that nodes reach without Pullpass\n  repository: \"\"\n  # Default: the chart's appVersion\n  tag: \"\"\n" +
	"  # `sha256:…`; counts instead of the tag\n  digest: \"\"\n"

func (r release) chartArchive(metadata map[string]any, image artifact) ([]byte, error) {
	chart, err := yaml.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	archive := newTarball(r.created)
	add := func(name string, content []byte) error { return archive.add("pullpass/"+name, 0o644, content) }
	if err := add("Chart.yaml", chart); err != nil { // Helm wants it first
		return nil, err
	}
	dir := os.DirFS(filepath.Join(r.root, chartDir))
	err = fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || name == "Chart.yaml" {
			return err
		}
		content, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if name == "values.yaml" {
			if !bytes.Contains(content, []byte(unset)) {
				return fmt.Errorf("%s/values.yaml: the image is not as it was", chartDir)
			}
			set := fmt.Sprintf("image:\n  # The image, at a registry that nodes reach without Pullpass\n  repository: %q\n  # Default: the chart's appVersion\n  tag: \"\"\n"+
				"  # That of this version; counts instead of the tag\n  digest: %q\n", image.repository, image.digest)
			content = bytes.Replace(content, []byte(unset), []byte(set), 1)
		}
		return add(name, content)
	})
	if err != nil {
		return nil, err
	}
	return archive.bytes()
}

// tarball is a tar file, compressed with gzip, in which all files have one time.
type tarball struct {
	out        bytes.Buffer
	compressed *gzip.Writer
	files      *tar.Writer
	created    time.Time
}

func newTarball(created time.Time) *tarball {
	t := &tarball{created: created}
	t.compressed = gzip.NewWriter(&t.out)
	t.files = tar.NewWriter(t.compressed)
	return t
}

func (t *tarball) add(name string, mode int64, content []byte) error {
	if err := t.files.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg, ModTime: t.created}); err != nil {
		return err
	}
	_, err := t.files.Write(content)
	return err
}

func (t *tarball) bytes() ([]byte, error) {
	err := errors.Join(t.files.Close(), t.compressed.Close())
	return t.out.Bytes(), err
}
