package composetest

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// importImages makes every image that the files of the checkout name and do not build.
func importImages(t *testing.T, checkout string) {
	t.Helper()
	_, base, _ := strings.Cut(testenv.ReadFile(t, filepath.Join(checkout, "Dockerfile")), "ARG GO_IMAGE=")
	base, _, _ = strings.Cut(base, "\n")
	seen := map[string]bool{}
	for _, image := range append(strings.Fields(compose(t, checkout, "config", "--images")), base) {
		if seen[image] || strings.HasPrefix(image, "pullpass") {
			continue
		}
		seen[image] = true
		switch repository, _, _ := strings.Cut(image, ":"); repository {
		case "golang":
			importImage(t, image, toolchain, "ENV PATH=/usr/local/go/bin:/bin GOPATH=/go GOTOOLCHAIN=local GOPROXY=file:///modules")
		case "redis":
			importImage(t, image, func(r *rootFS) { r.program(programs.RedisServer(t)) }, "ENV PATH=/bin")
		case "haproxy":
			importImage(t, image, func(r *rootFS) { r.program(programs.HAProxy(t)) }, "ENV PATH=/bin")
		case "registry":
			importImage(t, image, func(r *rootFS) { r.file(programs.Distribution(t), "bin/registry") }, "ENV PATH=/bin")
		default:
			t.Fatalf("the test has nothing to make the image %s of", image)
		}
	}
}

// rootFS is the root file system of an image.
type rootFS struct {
	t *testing.T
	*tar.Writer
}

func importImage(t *testing.T, name string, build func(*rootFS), changes ...string) {
	t.Helper()
	archive := testenv.Value(os.CreateTemp(t.TempDir(), ""))(t)
	defer archive.Close()
	r := &rootFS{t, tar.NewWriter(archive)}
	build(r)
	testenv.Must(t, r.Close())
	testenv.Value(archive.Seek(0, io.SeekStart))(t)
	args := []string{"import"}
	for _, change := range changes {
		args = append(args, "--change", change)
	}
	pipe(t, archive, "docker", append(args, "-", name)...)
	testenv.Must(t, os.Remove(archive.Name()))
}

// toolchain has Go, a shell, and the modules that the project needs, as a module proxy would serve them: there is no network.
func toolchain(r *rootFS) {
	r.shell()
	root := run(r.t, "go", "env", "GOROOT")
	for _, name := range []string{"VERSION", "bin", "go.env", "lib", "pkg/include", "pkg/tool", "src"} {
		r.tree(filepath.Join(root, name), path.Join("usr/local/go", name))
	}
	cache := r.t.TempDir()
	proxy := filepath.Join(run(r.t, "go", "env", "GOMODCACHE"), "cache", "download")
	run(r.t, "env", "GOMODCACHE="+cache, "GOPROXY=file://"+proxy, "GOFLAGS=-modcacherw", "go", "-C", programs.Checkout(r.t), "mod", "download")
	r.tree(filepath.Join(cache, "cache", "download"), "modules")
	testenv.Must(r.t, os.RemoveAll(cache))
}

// shell is what the commands of the Dockerfile need beside Go.
func (r *rootFS) shell() {
	r.file(programs.Busybox(r.t), "bin/busybox")
	for _, name := range []string{"sh", "mkdir", "find", "touch"} {
		testenv.Must(r.t, r.WriteHeader(&tar.Header{Name: "bin/" + name, Linkname: "busybox", Typeflag: tar.TypeSymlink, Mode: 0o777}))
	}
	testenv.Must(r.t, r.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}))
}

// program is a program with the libraries that it is linked with.
func (r *rootFS) program(name string) {
	r.file(name, path.Join("bin", filepath.Base(name)))
	for _, word := range strings.Fields(run(r.t, "ldd", name)) {
		if strings.HasPrefix(word, "/") {
			r.file(word, strings.TrimPrefix(word, "/"))
		}
	}
}

// tree leaves out tests, which are not built in an image.
func (r *rootFS) tree(from, to string) {
	testenv.Must(r.t, filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if entry.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			relative, err := filepath.Rel(from, name)
			testenv.Must(r.t, err)
			r.file(name, path.Join(to, filepath.ToSlash(relative)))
		}
		return nil
	}))
}

func (r *rootFS) file(from, to string) {
	content := testenv.ReadFile(r.t, from)
	info, err := os.Stat(from)
	testenv.Must(r.t, err)
	r.content(to, int64(info.Mode().Perm()), []byte(content))
}

func (r *rootFS) content(name string, mode int64, content []byte) {
	testenv.Must(r.t, r.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}))
	_, err := r.Write(content)
	testenv.Must(r.t, err)
}
