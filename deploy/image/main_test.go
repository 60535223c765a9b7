package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func build(t *testing.T, out, source string, environment ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", out, source)
	cmd.Env = append(os.Environ(), environment...)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return out
}

// inputs are what an image is made of, in a directory of their own. A small
// program, which depends on a module as well, stands in for pullpass.
type inputs struct{ dir, amd64, arm64, roots string }

func newInputs(t *testing.T) inputs {
	t.Helper()
	dir := t.TempDir()
	in := inputs{
		dir:   dir,
		amd64: build(t, filepath.Join(dir, "amd64", "pullpass"), "./roots", "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
		arm64: build(t, filepath.Join(dir, "arm64", "pullpass"), "./roots", "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0"),
		roots: filepath.Join(dir, "roots.crt"),
	}
	for _, binary := range []string{in.amd64, in.arm64} {
		platform := filepath.Dir(binary)
		build(t, filepath.Join(platform, pluginName), "./roots", "GOOS=linux", "GOARCH="+filepath.Base(platform), "CGO_ENABLED=0")
	}
	out := testkit.Value(exec.CommandContext(t.Context(), build(t, filepath.Join(dir, "run"), "./roots", "CGO_ENABLED=0")).Output())(t)
	testkit.Must(t, os.WriteFile(in.roots, out, 0o600))
	return in
}

// pack returns the name of the archive, and what the program printed.
func (in inputs) pack(t *testing.T) (archive, printed string) {
	t.Helper()
	archive = filepath.Join(in.dir, "image.tar")
	var stdout, stderr bytes.Buffer
	err := run([]string{
		"-name", "registry.example.com/tools/pullpass:v1", "-version", "v1.2.3", "-revision", "c0ffee", "-created", "1700000000",
		"-roots", in.roots, "-out", archive, in.amd64, in.arm64,
	}, &stdout, &stderr)
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	return archive, stdout.String()
}

func TestImage(t *testing.T) {
	t.Parallel()
	in := newInputs(t)
	archive, printed := in.pack(t)
	index := openIndex(t, archive)
	testkit.Must(t, validate.Index(index))
	digest := testkit.Value(index.Digest())(t)
	if want := "registry.example.com/tools/pullpass:v1 " + digest.String(); !strings.Contains(printed, want) {
		t.Errorf("printed %q, without %q", printed, want)
	}
	manifest := testkit.Value(index.IndexManifest())(t)
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		image := testkit.Value(index.Image(m.Digest))(t)
		checkConfig(t, image, m.Platform.Architecture)
		checkFiles(t, image, in, m.Platform.Architecture)
	}
	if got := strings.Join(platforms, " "); got != "linux/amd64 linux/arm64" {
		t.Errorf("the index names the platforms %s", got)
	}
}

func checkConfig(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config := testkit.Value(image.ConfigFile())(t)
	if config.OS != "linux" || config.Architecture != architecture || !config.Created.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%s: the configuration says %s/%s, created %v", architecture, config.OS, config.Architecture, config.Created)
	}
	c := config.Config
	if c.User != "65532:65532" || strings.Join(c.Entrypoint, " ") != "/pullpass" || strings.Join(c.Cmd, " ") != "serve --config /etc/pullpass/pullpass.yaml" ||
		len(c.ExposedPorts) != 1 || len(c.Env)+len(c.Volumes) != 0 {
		t.Errorf("%s: config %+v", architecture, c)
	}
	for label, want := range map[string]string{
		"title": "Pullpass", "licenses": "Apache-2.0", "source": "https://github.com/pullpass/pullpass", "version": "v1.2.3", "revision": "c0ffee",
	} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("%s: label %s is %q", architecture, label, got)
		}
	}
}

// extract returns the names of what is in the image, and the contents.
func extract(t *testing.T, image v1.Image, architecture string) (names string, files map[string][]byte) {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	files = map[string][]byte{}
	var all []string
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		if header.Mode&^0o755 != 0 || header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 1700000000 {
			t.Errorf("%s: %s has mode %o, owner %d:%d, time %v", architecture, header.Name, header.Mode, header.Uid, header.Gid, header.ModTime)
		}
		all = append(all, header.Name)
		files[header.Name], err = io.ReadAll(reader)
		testkit.Must(t, err)
	}
	return strings.Join(all, " "), files
}

// checkFiles looks at all that is in the image: there is no shell, and nothing
// that the process, or an attacker in it, could use to become another user.
func checkFiles(t *testing.T, image v1.Image, in inputs, architecture string) {
	t.Helper()
	names, files := extract(t, image, architecture)
	if names != "etc etc/ssl etc/ssl/certs etc/ssl/certs/ca-certificates.crt pullpass pullpass-credential-provider" {
		t.Errorf("%s: the image holds %s", architecture, names)
	}
	for _, name := range []string{"pullpass", "pullpass-credential-provider"} {
		program := testkit.Value(elf.NewFile(bytes.NewReader(files[name])))(t)
		if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[architecture]; program.Machine != want {
			t.Errorf("%s: %s is for %v", architecture, name, program.Machine)
		}
		for _, p := range program.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s: %s needs a dynamic linker, and there is none", architecture, name)
			}
		}
	}
	roots := testkit.Value(os.ReadFile(in.roots))(t)
	if !bytes.Equal(files["etc/ssl/certs/ca-certificates.crt"], roots) {
		t.Errorf("%s: other CA certificates", architecture)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(roots) || bytes.Count(roots, []byte("BEGIN CERTIFICATE")) < 50 {
		t.Errorf("too few CA certificates: %d bytes", len(roots))
	}
}

// The image for clients has two programs and nothing else.
func TestClientImage(t *testing.T) {
	t.Parallel()
	in := newInputs(t)
	binaries := []string{filepath.Join(in.dir, "amd64", clientName), filepath.Join(in.dir, "arm64", clientName)}
	testkit.Must(t, os.Rename(in.amd64, binaries[0]))
	testkit.Must(t, os.Rename(in.arm64, binaries[1]))
	archive := filepath.Join(in.dir, "client.tar")
	var stdout, stderr bytes.Buffer
	testkit.Must(t, run(append([]string{
		"-name", "registry.example.com/tools/pullpass:v1", "-version", "v1.2.3", "-revision", "c0ffee", "-created", "1700000000", "-out", archive,
	}, binaries...), &stdout, &stderr))
	index := openIndex(t, archive)
	testkit.Must(t, validate.Index(index))
	for _, m := range testkit.Value(index.IndexManifest())(t).Manifests {
		image := testkit.Value(index.Image(m.Digest))(t)
		config := testkit.Value(image.ConfigFile())(t).Config
		if config.Entrypoint[0] != "/docker-credential-pullpass" || len(config.Cmd)+len(config.ExposedPorts) != 0 || config.Labels["org.opencontainers.image.title"] != "Pullpass client" {
			t.Errorf("%s: config %+v", m.Platform, config)
		}
		if names, _ := extract(t, image, m.Platform.Architecture); names != "docker-credential-pullpass pullpass-credential-provider" {
			t.Errorf("%s: the image holds %s", m.Platform, names)
		}
	}
	sbom := testkit.Read(t, filepath.Join(in.dir, "client.amd64.cdx.json"))
	if strings.Contains(sbom, "ca-certificates") || !strings.Contains(sbom, `"name": "pullpass-credential-provider"`) {
		t.Errorf("the SBOM is %s", sbom)
	}
}

// Engines before version 25 load an archive by the description that docker save
// writes.
func TestDockerLoadsTheSameImage(t *testing.T) {
	t.Parallel()
	archive, _ := newInputs(t).pack(t)
	loaded := testkit.Value(tarball.ImageFromPath(archive, nil))(t)
	want := testkit.Value(loaded.ConfigName())(t)
	index := openIndex(t, archive)
	manifest := testkit.Value(index.IndexManifest())(t)
	for _, m := range manifest.Manifests {
		image := testkit.Value(index.Image(m.Digest))(t)
		if got, err := image.ConfigName(); err == nil && got == want {
			return
		}
	}
	t.Errorf("the image that docker loads, %v, is none of the index", want)
}

// The same inputs in another directory, with other times, give the same bytes.
func TestReproducible(t *testing.T) {
	t.Parallel()
	first, again := newInputs(t), newInputs(t)
	for _, file := range []string{again.amd64, again.arm64, again.roots} {
		old := time.Now().Add(-1000 * time.Hour)
		testkit.Must(t, os.Chtimes(file, old, old))
		testkit.Must(t, os.Chmod(file, 0o777))
	}
	one, _ := first.pack(t)
	two, _ := again.pack(t)
	for _, suffix := range []string{".tar", ".amd64.cdx.json", ".arm64.cdx.json"} {
		a := testkit.Value(os.ReadFile(strings.TrimSuffix(one, ".tar") + suffix))(t)
		b := testkit.Value(os.ReadFile(strings.TrimSuffix(two, ".tar") + suffix))(t)
		if !bytes.Equal(a, b) {
			t.Errorf("two builds differ in image%s", suffix)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	testkit.Must(t, os.WriteFile(text, []byte("#!/bin/sh"), 0o600))
	empty := filepath.Join(dir, "main.go")
	testkit.Must(t, os.WriteFile(empty, []byte("package main\nfunc main() {}"), 0o600))
	mixed := build(t, filepath.Join(dir, "mixed", "pullpass"), empty, "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	build(t, filepath.Join(dir, "mixed", pluginName), empty, "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	client := filepath.Join(dir, clientName)
	good := []string{"-version", "v1", "-revision", "c0ffee", "-roots", text, "-out", filepath.Join(dir, "image.tar")}
	for _, test := range []struct {
		name, want string
		args       []string
	}{
		{"no version", "required", good[2:]},
		{"no binary", "required", good},
		{"no roots", "-roots is required", append(slices.Concat(good[:4], good[6:]), text)},
		{"roots for a client", "not used", append(good, client)},
		{"two programs", "1 of 2 binaries", append(good, client, text)},
		{"no file of roots", "no such file", append(good, "-roots", filepath.Join(dir, "missing"), text)},
		{"no such binary", "missing", append(good, filepath.Join(dir, "missing"))},
		{"no plugin", "pullpass-credential-provider: no such file", append(good, build(t, filepath.Join(dir, "alone"), empty, "GOOS=linux", "CGO_ENABLED=0"))},
		{"a plugin for another architecture", "is for arm64, and the binary for amd64", append(good, mixed)},
		{"a script", "unrecognized file format", append(good, text)},
		{"another system", "GOOS=windows", append(good, build(t, filepath.Join(dir, "windows"), empty, "GOOS=windows", "CGO_ENABLED=0"))},
		{"with a C library", "CGO_ENABLED=1", append(good, build(t, filepath.Join(dir, "cgo"), empty, "CGO_ENABLED=1"))},
		{"a digest", "needs a tag", append(good, "-name", "pullpass@sha256:"+strings.Repeat("0", 64), text)},
	} {
		var stdout, stderr bytes.Buffer
		if err := run(test.args, &stdout, &stderr); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

// openIndex returns the image of an archive, and makes sure that the layout
// finds it under its name.
func openIndex(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	list := testkit.Value(openLayout(t, archive).ImageIndex())(t)
	manifest := testkit.Value(list.IndexManifest())(t)
	named := manifest.Manifests[0]
	if named.Annotations["org.opencontainers.image.ref.name"] != "v1" || named.Annotations["io.containerd.image.name"] != "registry.example.com/tools/pullpass:v1" {
		t.Errorf("the image has the annotations %v", named.Annotations)
	}
	index := testkit.Value(list.ImageIndex(named.Digest))(t)
	return index
}

func openLayout(t *testing.T, archive string) layout.Path {
	t.Helper()
	dir := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "tar", "-x", "-f", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, output)
	}
	path := testkit.Value(layout.FromPath(dir))(t)
	return path
}
