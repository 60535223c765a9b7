package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullpass/pullpass/deploy/sbom"
)

// user runs the process: no user of the image's own, and none of the host's.
// It is a number, because Kubernetes believes runAsNonRoot of nothing else.
const user = "65532:65532"

// platformImage is the image of one architecture.
type platformImage struct {
	v1.Image
	platform v1.Platform
	sbom     []byte
	size     int64 // of the compressed layers, in bytes
}

// The names of files in images; those of programs also beside the binary. "pullpass
// node-install" puts the kubelet's plugin on nodes.
const (
	clientName = "docker-credential-pullpass"
	pluginName = "pullpass-credential-provider"
	rootsName  = "etc/ssl/certs/ca-certificates.crt"
)

// newPlatformImage returns an image that holds the binary, the plugin, and nothing
// else but the CA certificates. The platform is that of the binary. The Dockerfile
// makes the same; the tests compare the two.
//
// The image of a client is for others to mount, or to copy from: its programs use
// the certificates of the image where they run.
func newPlatformImage(binary string, o options) (platformImage, error) {
	content, info, err := readBinary(binary)
	if err != nil {
		return platformImage{}, err
	}
	pluginFile := filepath.Join(filepath.Dir(binary), pluginName)
	plugin, pluginInfo, err := readBinary(pluginFile)
	if err != nil {
		return platformImage{}, err
	}
	p := platformImage{platform: v1.Platform{OS: "linux", Architecture: setting(info, "GOARCH")}}
	if other := setting(pluginInfo, "GOARCH"); other != p.platform.Architecture {
		return platformImage{}, fmt.Errorf("%s: is for %s, and the binary for %s", pluginFile, other, p.platform.Architecture)
	}
	bom := sbom.Product{Version: o.version, Created: o.created, Binary: content, Programs: []*debug.BuildInfo{info}}
	var files []file
	if !o.client {
		bom.Files = append(bom.Files, sbom.File{Name: rootsName, Content: o.roots})
		files = []file{
			{name: "etc/"},
			{name: "etc/ssl/"},
			{name: "etc/ssl/certs/"},
			{name: rootsName, mode: 0o644, content: o.roots},
		}
	}
	bom.Files = append(bom.Files, sbom.File{Name: pluginName, Content: plugin}) // of the same module; it needs no other
	files = append(files, file{name: o.program(), mode: 0o755, content: content}, file{name: pluginName, mode: 0o755, content: plugin})
	if p.sbom, err = bom.JSON(); err != nil {
		return platformImage{}, err
	}

	archive, err := layer(files, o.created)
	if err != nil {
		return platformImage{}, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return platformImage{}, err
	}
	if p.size, err = l.Size(); err != nil {
		return platformImage{}, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	p.Image, err = mutate.Append(base, mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "deploy/image"}})
	if err != nil {
		return platformImage{}, err
	}
	p.Image, err = configure(p.Image, p.platform, o)
	return p, err
}

// readBinary returns a static program for Linux.
func readBinary(name string) (content []byte, info *buildinfo.BuildInfo, err error) {
	if content, err = os.ReadFile(name); err != nil {
		return nil, nil, err
	}
	if info, err = buildinfo.Read(bytes.NewReader(content)); err != nil {
		return nil, nil, err
	}
	if setting(info, "GOOS") != "linux" || setting(info, "CGO_ENABLED") != "0" {
		return nil, nil, fmt.Errorf("is built with GOOS=%s CGO_ENABLED=%s; an image without a C library needs GOOS=linux CGO_ENABLED=0",
			setting(info, "GOOS"), setting(info, "CGO_ENABLED"))
	}
	return content, info, nil
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func configure(image v1.Image, platform v1.Platform, o options) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + o.program()},
		WorkingDir: "/",
		User:       user,
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Pullpass",
			"org.opencontainers.image.description": "Kubernetes pods pull images with their own ServiceAccount",
			"org.opencontainers.image.source":      "https://github.com/pullpass/pullpass",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     o.version,
			"org.opencontainers.image.revision":    o.revision,
		},
	}
	if o.client {
		config.Config.Labels["org.opencontainers.image.title"] = "Pullpass client"
		config.Config.Labels["org.opencontainers.image.description"] = "The credential helper and the kubelet plugin of Pullpass"
	} else {
		config.Config.Cmd = []string{"serve", "--config", "/etc/pullpass/pullpass.yaml"}
		config.Config.ExposedPorts = map[string]struct{}{"8443/tcp": {}}
	}
	return mutate.ConfigFile(image, config)
}

// file is an entry of a layer; a name that ends with a slash is a directory.
type file struct {
	name    string
	mode    int64
	content []byte
}

// layer is a tar with one time for all files, so that it depends on nothing but
// their contents. All belongs to root: the process can change nothing.
func layer(files []file, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg, ModTime: created}
		if f.name[len(f.name)-1] == '/' {
			header.Mode, header.Typeflag = 0o755, tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
