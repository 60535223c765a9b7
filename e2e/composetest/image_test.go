package composetest

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// copyCheckout copies all files that git tracks, or would add, to another directory. Without git there, every build has the version devel.
func copyCheckout(t *testing.T) string {
	t.Helper()
	from, to := programs.Checkout(t), filepath.Join(t.TempDir(), "checkout")
	files := run(t, "git", "-C", from, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for name := range strings.SplitSeq(strings.Trim(files, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		testenv.Must(t, err)
		info, err := os.Stat(filepath.Join(from, name))
		testenv.Must(t, err)
		path := filepath.Join(to, name)
		testenv.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testenv.Must(t, os.WriteFile(path, content, info.Mode().Perm()))
	}
	return to
}

// image is what can be known of an image.
type image struct {
	config       v1.Config
	architecture string
	files        map[string]string // by name: mode, owner, time, digest
	contents     map[string][]byte
}

// savedImage is an image of the engine.
func savedImage(t *testing.T, name string) image {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "saved.tar")
	run(t, "docker", "save", "--output", archive, name)
	saved := testenv.Value(tarball.ImageFromPath(archive, nil))(t)
	file := testenv.Value(saved.ConfigFile())(t)
	i := image{config: file.Config, architecture: file.Architecture, files: map[string]string{}, contents: map[string][]byte{}}
	maps.DeleteFunc(i.config.Labels, func(label, _ string) bool { return strings.HasPrefix(label, "com.docker.compose.") })
	content := mutate.Extract(saved)
	defer content.Close()
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return i
		}
		testenv.Must(t, err)
		file, err := io.ReadAll(reader)
		testenv.Must(t, err)
		i.contents[header.Name] = file
		i.files[header.Name] = fmt.Sprintf("%v %d:%d %v %x", header.FileInfo().Mode(), header.Uid, header.Gid, header.ModTime.UTC(), sha256.Sum256(file))
	}
}

// compare finds no difference between an image and one that was built in another way.
func (i image) compare(t *testing.T, how string, other image) {
	t.Helper()
	if !maps.Equal(i.files, other.files) {
		t.Errorf("make image gives the files\n%v\n%s gives\n%v", i.files, how, other.files)
	}
	for _, difference := range []struct {
		what       string
		packed, by any
	}{
		{"user", i.config.User, other.config.User},
		{"entrypoint", i.config.Entrypoint, other.config.Entrypoint},
		{"command", i.config.Cmd, other.config.Cmd},
		{"directory", i.config.WorkingDir, other.config.WorkingDir},
		{"ports", i.config.ExposedPorts, other.config.ExposedPorts},
		{"labels", i.config.Labels, other.config.Labels},
		{"volumes", i.config.Volumes, other.config.Volumes},
		{"architecture", i.architecture, other.architecture},
	} {
		if !reflect.DeepEqual(difference.packed, difference.by) {
			t.Errorf("%s: make image %v, %s %v", difference.what, difference.packed, how, difference.by)
		}
	}
}

// testReadArchive has the archive read by those that docs/start/docker.md names.
func testReadArchive(t *testing.T, checkout string) {
	t.Helper()
	archive, dir := filepath.Join(checkout, "bin", "pullpass-image.tar"), t.TempDir()
	run(t, programs.Skopeo(t), "copy", "--all", "oci-archive:"+archive+":dev", "oci:"+dir+"/copy:dev")
	podman := []string{"--root", filepath.Join(dir, "podman"), "--runroot", "/run/podman", "--storage-driver", "vfs"}
	if said := run(t, programs.Podman(t), append(podman, "load", "--input", archive)...); !strings.Contains(said, "pullpass:dev") {
		t.Errorf("podman load: %s", said)
	}
	containerd := []string{"--address", "/run/docker/containerd/containerd.sock", "images"}
	run(t, "ctr", append(containerd, "import", archive)...)
	if said := run(t, "ctr", append(containerd, "ls")...); !strings.Contains(said, "docker.io/library/pullpass:dev") || !strings.Contains(said, "linux/amd64,linux/arm64") {
		t.Errorf("ctr images ls: %s", said)
	}
}

// testOtherArchitecture builds for arm64. A compiler that only says what it is asked for is enough, and fast: what Go makes of that
// is in the archive of make image.
func testOtherArchitecture(t *testing.T, checkout string) {
	t.Helper()
	const compiler = `#!/bin/sh
if [ "$1" = build ]; then
	asked="$GOARCH $CGO_ENABLED $GOFLAGS"
	while [ "$1" != -o ]; do shift; done
	echo "$asked" >"$2"
fi
`
	importImage(t, "other.example.com/go:v1", func(r *rootFS) {
		r.shell()
		r.content("bin/go", 0o755, []byte(compiler))
	}, "ENV PATH=/bin")
	run(t, "docker", "buildx", "build", "--platform", "linux/arm64", "--build-arg", "GO_IMAGE=other.example.com/go:v1", "--tag", "pullpass:arm64", checkout)
	built := savedImage(t, "pullpass:arm64")
	if asked := strings.TrimSpace(string(built.contents["pullpass"])); built.architecture != "arm64" || asked != "arm64 0 -trimpath -buildvcs=false" {
		t.Errorf("the image is for %s, and the compiler was asked for %q", built.architecture, asked)
	}
}
