package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const limit = 1 << 10

// host returns a tree, its directory, and a secret outside of it.
func host(t *testing.T) (tree *Tree, dir, secret string) {
	t.Helper()
	outside := t.TempDir()
	dir = filepath.Join(outside, "host")
	secret = filepath.Join(outside, "etc", "shadow")
	for _, name := range []string{"host/etc/default", "host/var/lib", "etc"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(outside, name), 0o755))
	}
	testkit.Put(t, secret, "secret")
	tree = testkit.Value(Open(dir))(t)
	t.Cleanup(func() {
		testkit.Must(t, tree.Close())
		if data, err := os.ReadFile(secret); string(data) != "secret" || err != nil {
			t.Errorf("the file outside is %q, %v", data, err)
		}
	})
	return tree, dir, secret
}

// file returns the file that a process of this user writes.
func file(content string) File {
	return File{Mode: 0o640, UID: os.Getuid(), GID: os.Getgid(), Content: []byte(content)}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	testkit.Must(t, tree.Replace("/etc/default/kubelet", nil, file("one")))
	old, err := tree.Lookup("/etc/default/kubelet", limit)
	if err != nil || !old.Equal(file("one")) {
		t.Fatalf("%+v, %v", old, err)
	}
	testkit.Put(t, filepath.Join(dir, "etc/default", temporary("kubelet")), "left by a crash")
	testkit.Must(t, tree.Replace("/etc/default/kubelet", &old, file("two")))
	if names, err := tree.Names("/etc/default"); err != nil || strings.Join(names, " ") != "kubelet" {
		t.Errorf("%q, %v", names, err)
	}
	if err := tree.Replace("/etc/default/kubelet", &old, file("three")); !errors.Is(err, ErrChanged) {
		t.Errorf("written over another's change: %v", err)
	}
	if err := tree.Replace("/etc/default/kubelet", nil, file("three")); !errors.Is(err, ErrChanged) {
		t.Errorf("written where there was nothing: %v", err)
	}
	if names, err := tree.Names("/etc/default"); err != nil || strings.Join(names, " ") != "kubelet" {
		t.Errorf("%q, %v", names, err)
	}
	if err := tree.Remove("/etc/default/kubelet", &old); !errors.Is(err, ErrChanged) {
		t.Errorf("removed another's change: %v", err)
	}
	now := file("two")
	testkit.Must(t, tree.Remove("/etc/default/kubelet", &now))
	if _, err := tree.Lookup("/etc/default/kubelet", limit); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
}

func TestLinksLeadWhereTheyLeadOnTheHost(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"/var/lib", "../var/lib", "../../../../../../../var/lib", "/var/../var/./lib", "/../var/lib", "/var/./../var/lib"} {
		tree, dir, _ := host(t)
		testkit.Must(t, os.Symlink(target, filepath.Join(dir, "etc/link")))
		testkit.Must(t, tree.Replace("/etc/link/file", nil, file("x")))
		if data, err := os.ReadFile(filepath.Join(dir, "var/lib/file")); string(data) != "x" || err != nil {
			t.Errorf("%s: %q, %v", target, data, err)
		}
		if name, err := tree.Follow("/etc/link/file"); name != "/var/lib/file" || err != nil {
			t.Errorf("%s: leads to %s, %v", target, name, err)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	tree, dir, secret := host(t)
	testkit.Put(t, filepath.Join(dir, "var/lib/file"), "x")
	for name, target := range map[string]string{"absolute": "/var/lib/file", "relative": "../var/lib/file", "far": "absolute", "here": "/etc/relative"} {
		testkit.Must(t, os.Symlink(target, filepath.Join(dir, "etc", name)))
	}
	for _, name := range []string{"absolute", "relative", "far", "here"} {
		if real, err := tree.Follow("/etc/" + name); real != "/var/lib/file" || err != nil {
			t.Errorf("%s leads to %s, %v", name, real, err)
		}
	}
	testkit.Must(t, os.Symlink(secret, filepath.Join(dir, "etc/outside")))
	if real, err := tree.Follow("/etc/outside"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("leads to %s, %v", real, err)
	}
	testkit.Must(t, os.Symlink("loop", filepath.Join(dir, "etc/loop")))
	if _, err := tree.Follow("/etc/loop"); !errors.Is(err, ErrLoop) {
		t.Errorf("a loop: %v", err)
	}
}

// The last name is not followed: operations read, replace and remove the link itself.
func TestTheLastNameIsNotFollowed(t *testing.T) {
	t.Parallel()
	tree, dir, secret := host(t)
	name := filepath.Join(dir, "etc/default/kubelet")
	testkit.Must(t, os.Symlink(secret, name))
	link, err := tree.Lookup("/etc/default/kubelet", limit)
	if err != nil || link.Link != secret || link.Content != nil {
		t.Fatalf("%+v, %v", link, err)
	}
	testkit.Must(t, tree.Replace("/etc/default/kubelet", &link, file("x")))
	if data, err := os.ReadFile(name); string(data) != "x" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	testkit.Remove(t, name)
	testkit.Must(t, os.Symlink(secret, name))
	testkit.Must(t, tree.Remove("/etc/default/kubelet", &link))
}

func TestHostileWays(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	testkit.Must(t, os.Symlink("loop", filepath.Join(dir, "etc/loop")))
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "etc/open"), 0o755))
	testkit.Must(t, os.Chmod(filepath.Join(dir, "etc/open"), 0o777))
	testkit.Put(t, filepath.Join(dir, "etc/file"), "x")
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o600))
	testkit.Put(t, filepath.Join(dir, "etc/large"), strings.Repeat("x", limit+1))
	for name, want := range map[string]error{
		"/etc/loop/file": ErrLoop,
		"/etc/open/file": ErrWritable,
		"/etc/fifo":      ErrNotRegular,
		"/etc/large":     ErrTooLarge,
		"/etc/none/file": fs.ErrNotExist,
	} {
		if _, err := tree.Lookup(name, limit); !errors.Is(err, want) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: %v, want %v with its name", name, err, want)
		}
	}
	for name, want := range map[string]string{"/etc/file/file": "not a directory", "etc/file": "not an absolute path", "/": "not an absolute path"} {
		if err := tree.Replace(name, nil, file("x")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOwned(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	for _, name := range []string{"/etc/file", "/etc/none/none/file"} {
		if err := tree.Owned(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tree.Owned("file"); err == nil {
		t.Error("a relative path has no error")
	}
	if os.Getuid() != 0 {
		return // only root can give a directory to another user
	}
	theirs := filepath.Join(dir, "srv/theirs")
	testkit.Must(t, os.MkdirAll(filepath.Join(theirs, "inner"), 0o755))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "srv/ours"), 0o755))
	testkit.Must(t, os.Symlink("../srv/theirs", filepath.Join(dir, "etc/link")))
	testkit.Must(t, os.Symlink("/srv/ours", filepath.Join(theirs, "back")))
	testkit.Must(t, os.Chown(theirs, 1, 0))
	for _, name := range []string{"/srv/theirs/file", "/srv/theirs/inner/file", "/srv/theirs/none/file", "/etc/link/file", "/srv/theirs/back/file"} {
		if err := tree.Owned(name); !errors.Is(err, ErrOwner) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := tree.Lookup(name, limit); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"/srv/ours/file", "/srv/theirs"} {
		if err := tree.Owned(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Between the check and the write, a link to elsewhere replaces the directory. Only the opened
// directory is written to.
func TestADirectoryIsSwappedForALink(t *testing.T) {
	t.Parallel()
	tree, dir, secret := host(t)
	err := tree.change("/etc/default/shadow", func(at *os.Root, base string) error {
		testkit.Must(t, os.Rename(filepath.Join(dir, "etc/default"), filepath.Join(dir, "etc/moved")))
		testkit.Must(t, os.Symlink(filepath.Dir(secret), filepath.Join(dir, "etc/default")))
		return write(at, base, file("x"), "")
	})
	if data, _ := os.ReadFile(filepath.Join(dir, "etc/moved/shadow")); string(data) != "x" || err != nil {
		t.Errorf("%q, %v", data, err)
	}

	// The same for a directory that was checked and is not open yet.
	info, err := os.Lstat(filepath.Join(dir, "etc/moved"))
	testkit.Must(t, err)
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "etc/other"), 0o755))
	at, err := tree.root.OpenRoot("etc")
	testkit.Must(t, err)
	defer at.Close()
	w := &walker{}
	if err := w.step(at, "other", info); !errors.Is(err, ErrChanged) || len(w.open) > 0 {
		t.Errorf("another directory: %v", err)
	}
	// The same for a file.
	file, err := os.Lstat(secret)
	testkit.Must(t, err)
	testkit.Put(t, filepath.Join(dir, "etc/file"), "x")
	if _, err := content(at, "file", file, limit); !errors.Is(err, ErrChanged) {
		t.Errorf("another file: %v", err)
	}
}

func TestLookupOfADirectory(t *testing.T) {
	t.Parallel()
	tree, _, _ := host(t)
	if got, err := tree.Lookup("/etc/default", limit); err != nil || got.Mode != fs.ModeDir|0o755 || got.Content != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// A path may have as many links as the kernel allows.
func TestManyLinks(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	target := "/var/lib"
	for i := range maxLinks + 1 {
		name := fmt.Sprint("link", i+1)
		testkit.Must(t, os.Symlink(target, filepath.Join(dir, "etc", name)))
		target = name
	}
	testkit.Put(t, filepath.Join(dir, "var/lib/file"), "x")
	if _, err := tree.Lookup(fmt.Sprintf("/etc/link%d/file", maxLinks), limit); err != nil {
		t.Errorf("%d links: %v", maxLinks, err)
	}
	if _, err := tree.Lookup(fmt.Sprintf("/etc/link%d/file", maxLinks+1), limit); !errors.Is(err, ErrLoop) {
		t.Errorf("%d links: %v", maxLinks+1, err)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	one := File{Mode: 0o640, UID: 1, GID: 2, Content: []byte("x"), Link: "l"}
	if !one.Equal(one) {
		t.Error("a file differs from itself")
	}
	for name, change := range map[string]func(*File){
		"mode": func(f *File) { f.Mode = 0o644 }, "owner": func(f *File) { f.UID = 3 }, "group": func(f *File) { f.GID = 3 },
		"content": func(f *File) { f.Content = []byte("y") }, "link": func(f *File) { f.Link = "k" },
	} {
		other := one
		if change(&other); one.Equal(other) || other.Equal(one) {
			t.Errorf("the %s makes no difference", name)
		}
	}
}

// A failure is never taken for success or for a missing file, and leaves no file behind.
func TestFailures(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	etc, err := os.OpenRoot(filepath.Join(dir, "etc"))
	testkit.Must(t, err)
	ended, err := os.OpenRoot(filepath.Join(dir, "etc"))
	testkit.Must(t, err)
	testkit.Must(t, ended.Close())
	defer etc.Close()
	testkit.Must(t, os.Symlink("loop", filepath.Join(dir, "etc/loop")))
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o600))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc", temporary("taken"), "x"), 0o755))
	testkit.Put(t, filepath.Join(dir, "etc/file"), "x")
	testkit.Put(t, filepath.Join(dir, "etc/empty"), "")
	testkit.Put(t, filepath.Join(dir, "etc/writable"), "x")
	testkit.Must(t, os.Chmod(filepath.Join(dir, "etc/writable"), 0o666))
	testkit.Must(t, os.Symlink("../..", filepath.Join(dir, "etc/out")))
	of := func(name string) os.FileInfo {
		info := testkit.Value(etc.Lstat(name))(t)
		return info
	}
	old := file("x")
	for name, test := range map[string]struct {
		do   func() error
		want error
	}{
		"open a missing tree":                      {func() error { _, err := Open(filepath.Join(dir, "none")); return err }, fs.ErrNotExist},
		"names in a loop":                          {func() error { _, err := tree.Names("/etc/loop/x"); return err }, ErrLoop},
		"existence in a loop":                      {func() error { return exists(tree, "/etc/loop/x") }, ErrLoop},
		"remove a missing file":                    {func() error { return tree.Remove("/etc/none", &old) }, ErrChanged},
		"remove a pipe":                            {func() error { return tree.Remove("/etc/fifo", &old) }, ErrNotRegular},
		"replace an empty file that was not there": {func() error { return tree.Replace("/etc/empty", nil, file("y")) }, ErrChanged},
		"replace a missing file":                   {func() error { return tree.Replace("/etc/none", &old, file("y")) }, ErrChanged},
		"replace a link that leads out":            {func() error { return tree.Replace("/etc/out", &old, file("y")) }, ErrChanged},
		"replace by a link that is too long":       {func() error { return tree.Replace("/etc/long", nil, NewLink(strings.Repeat("x", 1<<13))) }, syscall.ENAMETOOLONG},
		"a directory has the temporary name":       {func() error { return tree.Replace("/etc/taken", nil, file("y")) }, syscall.ENOTEMPTY},
		"write over a file":                        {func() error { return write(etc, "file", file("y"), "") }, fs.ErrExist},
		"write a link over a file":                 {func() error { return write(etc, "file", NewLink("y"), "") }, fs.ErrExist},
		"read a file that is gone":                 {func() error { _, err := content(etc, "none", of("file"), limit); return err }, fs.ErrNotExist},
		"read a directory":                         {func() error { _, err := content(etc, "default", of("default"), limit); return err }, syscall.EISDIR},
		"step into a directory that is gone":       {func() error { return (&walker{}).step(etc, "none", of("default")) }, fs.ErrNotExist},
		"sync a directory that is closed":          {func() error { return sync(ended) }, os.ErrClosed},
		"attributes of a file that is gone":        {func() error { return copyAttributes(nil, etc, "none") }, fs.ErrNotExist},
		"a failure other than that of a removal":   {func() error { return ignoreMissing(fs.ErrExist) }, fs.ErrExist},
	} {
		// After a removal that fails, nothing else is tried.
		if err := test.do(); !errors.Is(err, test.want) || test.want != fs.ErrExist && errors.Is(err, syscall.EEXIST) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if _, err := tree.Lookup("/etc/writable/file", limit); err == nil || errors.Is(err, ErrWritable) || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file on the way: %v", err)
	}
	names, err := tree.Names("/etc")
	if want := []string{temporary("taken"), "default", "empty", "fifo", "file", "loop", "out", "writable"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q are there, %v; want %q", names, err, want)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "etc/file")); string(data) != "x" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
}

func exists(tree *Tree, name string) error {
	is, err := tree.Exists(name)
	if is {
		return errors.New("it exists")
	}
	return err
}

// A path relative to an inner directory says nothing to a reader.
func TestReasonWithoutItsPath(t *testing.T) {
	t.Parallel()
	inner, outer := &fs.PathError{Op: "open", Path: "file", Err: fs.ErrExist}, &fs.PathError{Op: "open", Path: "/etc/file", Err: fs.ErrExist}
	if got := reason(inner); got != fs.ErrExist {
		t.Errorf("%v", got)
	}
	if got := reason(outer); got != error(outer) {
		t.Errorf("%v", got)
	}
}

func TestMkdirAndExists(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	testkit.Must(t, tree.Mkdir("/etc/new", 0o755))
	if info, err := os.Stat(filepath.Join(dir, "etc/new")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := tree.Mkdir("/etc/new", 0o755); !errors.Is(err, fs.ErrExist) {
		t.Errorf("once more: %v", err)
	}
	testkit.Must(t, os.Symlink("nowhere", filepath.Join(dir, "etc/dangling")))
	for name, want := range map[string]bool{"/etc/new": true, "/etc/dangling": true, "/etc/none": false, "/none/none": false} {
		if got, err := tree.Exists(name); got != want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if names, err := tree.Names("/none"); names != nil || err != nil {
		t.Errorf("%q, %v", names, err)
	}
}

func TestMode(t *testing.T) {
	t.Parallel()
	tree, dir, secret := host(t)
	testkit.Put(t, filepath.Join(dir, "etc/program"), "")
	testkit.Must(t, os.Chmod(filepath.Join(dir, "etc/program"), 0o750))
	testkit.Must(t, os.Symlink("/etc/program", filepath.Join(dir, "etc/link")))
	testkit.Must(t, os.Symlink(secret, filepath.Join(dir, "etc/out")))
	for name, want := range map[string]fs.FileMode{"/etc/program": 0o750, "/etc/link": 0o750, "/etc/default": fs.ModeDir | 0o755} {
		if mode, err := tree.Mode(name); mode != want || err != nil {
			t.Errorf("%s: %v, %v", name, mode, err)
		}
	}
	for _, name := range []string{"/etc/out", "/etc/none", "/none/none"} {
		if mode, err := tree.Mode(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, %v", name, mode, err)
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	tree, dir, secret := host(t)
	name, old := filepath.Join(dir, "etc/default/kubelet"), time.Unix(1, 5)
	testkit.Put(t, name, "")
	testkit.Must(t, os.Chtimes(name, old, old))
	testkit.Must(t, os.Symlink(secret, filepath.Join(dir, "etc/link")))
	if modified, changed, err := tree.Times("/etc/default/kubelet"); err != nil || !modified.Equal(old) || !changed.After(old) {
		t.Errorf("%v, %v, %v", modified, changed, err)
	}
	info := testkit.Value(os.Lstat(filepath.Join(dir, "etc/link")))(t)
	if modified, _, err := tree.Times("/etc/link"); err != nil || !modified.Equal(info.ModTime()) {
		t.Errorf("a link: %v, %v, want %v", modified, err, info.ModTime())
	}
	for _, name := range []string{"/etc/missing", "/missing/file"} {
		if _, _, err := tree.Times(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
