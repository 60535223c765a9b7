// Command image packs the static pullpass binary into a container image,
// without a container engine: an archive that docker load, podman load, skopeo
// and ctr images import read. The same inputs give the same digest.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// nobody runs the process: no user of the image's own, and none of the host's.
const nobody = "65532:65532"

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("binary", "bin/pullpass", "static binary")
	roots := flags.String("roots", "/etc/ssl/certs/ca-certificates.crt", "CA certificates for issuers without discovery.caFile (Debian package ca-certificates)")
	reference := flags.String("name", "pullpass:dev", "name of the image")
	out := flags.String("out", "bin/pullpass-image.tar", "archive to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	tag, err := name.NewTag(*reference)
	if err != nil {
		return err
	}
	image, err := build(*binary, *roots)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(*out, tag, image); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %s %s\n", *out, tag, digest)
	return nil
}

// build returns an image that holds the binary, the CA certificates, and
// nothing else: no shell, no packages.
func build(binary, roots string) (v1.Image, error) {
	content, err := layer([]file{
		{from: binary, to: "pullpass", mode: 0o755},
		{from: roots, to: "etc/ssl/certs/ca-certificates.crt", mode: 0o644},
	})
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{
		Entrypoint:   []string{"/pullpass"},
		Cmd:          []string{"serve", "--config", "/etc/pullpass/pullpass.yaml"},
		User:         nobody,
		ExposedPorts: map[string]struct{}{"8443/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "pullpass",
			"org.opencontainers.image.source":   "https://github.com/pullpass/pullpass",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

type file struct {
	from, to string
	mode     int64
}

// layer is a tar with no times and no owners in it, so that it depends on the
// files' contents alone.
func layer(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		content, err := os.ReadFile(f.from)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: f.to, Mode: f.mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
