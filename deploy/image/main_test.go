package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The image runs the binary as nobody, holds nothing else, and is the same
// each time.
func TestImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"pullpass": "binary", "roots": "certificates"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := func(out string) string {
		var stdout, stderr bytes.Buffer
		err := run([]string{"-binary", filepath.Join(dir, "pullpass"), "-roots", filepath.Join(dir, "roots"), "-name", "registry.example.com/pullpass:v1", "-out", out}, &stdout, &stderr)
		if err != nil {
			t.Fatal(err, stderr.String())
		}
		_, printed, _ := strings.Cut(stdout.String(), ": ")
		return printed
	}
	archive := filepath.Join(dir, "image.tar")
	first, second := build(archive), build(filepath.Join(dir, "again.tar"))
	if first != second || !strings.Contains(first, "registry.example.com/pullpass:v1 sha256:") {
		t.Errorf("the same inputs gave %q and %q", first, second)
	}

	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != nobody || config.Config.Entrypoint[0] != "/pullpass" {
		t.Errorf("config %+v", config.Config)
	}
	content := mutate.Extract(image)
	defer content.Close()
	var names []string
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
	if got := strings.Join(names, " "); got != "pullpass etc/ssl/certs/ca-certificates.crt" {
		t.Errorf("the image holds %s", got)
	}
}

func TestImageWithoutAFile(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	err := run([]string{"-binary", filepath.Join(t.TempDir(), "missing")}, &stdout, &stderr)
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("error %v", err)
	}
}
