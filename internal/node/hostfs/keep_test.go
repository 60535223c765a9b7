package hostfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const lockName = "/etc/lock"

func TestLock(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	again, err := Open(dir)
	testkit.Must(t, err)
	defer again.Close()
	if _, ok, err := tree.Lock(lockName, false); ok || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if _, ok, err := tree.Lock("/none/lock", true); ok || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	unlock, ok, err := tree.Lock(lockName, true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if info, err := os.Stat(filepath.Join(dir, lockName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("others may lock it: %v, %v", info, err)
	}
	if _, ok, err := again.Lock(lockName, true); ok || err != nil {
		t.Errorf("taken twice: %v", err)
	}
	testkit.Must(t, unlock())
	testkit.Put(t, filepath.Join(dir, lockName), "") // left by a crash
	testkit.Must(t, os.Chmod(filepath.Join(dir, lockName), 0o600))
	unlock, ok, err = again.Lock(lockName, false)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	testkit.Must(t, unlock())
	if is, err := tree.Exists(lockName); is || err != nil {
		t.Errorf("it is still there, %v", err)
	}
}

// A local user may lock any file that the user may open, including the host's root directory.
func TestLockOfAnotherUser(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	for _, name := range []string{"", "etc"} {
		f := testkit.Value(os.Open(filepath.Join(dir, name)))(t)
		defer f.Close()
		testkit.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	}
	unlock, ok, err := tree.Lock(lockName, true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	testkit.Must(t, unlock())
	testkit.Put(t, filepath.Join(dir, lockName), "")
	testkit.Must(t, os.Chmod(filepath.Join(dir, lockName), 0o644))
	if _, ok, err := tree.Lock(lockName, true); ok || !errors.Is(err, errOpen) || !strings.Contains(err.Error(), filepath.Join(dir, lockName)) {
		t.Errorf("a lock that any user may open: %v", err)
	}
	testkit.Remove(t, filepath.Join(dir, lockName))
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, lockName), 0o600))
	if _, ok, err := tree.Lock(lockName, true); ok || !errors.Is(err, errOpen) {
		t.Errorf("a pipe: %v", err)
	}
	testkit.Remove(t, filepath.Join(dir, lockName))
	if os.Getuid() == 0 { // only root can open a file that only a different user may open
		testkit.Put(t, filepath.Join(dir, lockName), "")
		testkit.Must(t, os.Chmod(filepath.Join(dir, lockName), 0o600))
		testkit.Must(t, os.Chown(filepath.Join(dir, lockName), 1, 1))
		if _, ok, err := tree.Lock(lockName, true); ok || !errors.Is(err, errOpen) {
			t.Errorf("a lock of another user: %v", err)
		}
		testkit.Remove(t, filepath.Join(dir, lockName))
	}
	testkit.Put(t, filepath.Join(dir, "etc/other"), "")
	testkit.Must(t, os.Chmod(filepath.Join(dir, "etc/other"), 0o600))
	testkit.Must(t, os.Symlink("other", filepath.Join(dir, lockName)))
	if _, ok, err := tree.Lock(lockName, true); ok || err != nil {
		t.Errorf("a link is not the file that is open: %v", err)
	}
}

// A lock file that was removed while a process waited for it does not count.
func TestLockThatIsGone(t *testing.T) {
	t.Parallel()
	_, dir, _ := host(t)
	root := testkit.Value(os.OpenRoot(filepath.Join(dir, "etc")))(t)
	defer root.Close()
	f := testkit.Value(root.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600))(t)
	defer f.Close()
	testkit.Must(t, isLock(root, "lock", f))
	testkit.Must(t, root.Remove("lock"))
	if err := isLock(root, "lock", f); !errors.Is(err, ErrChanged) {
		t.Errorf("removed: %v", err)
	}
	testkit.Put(t, filepath.Join(dir, "etc/lock"), "")
	if err := isLock(root, "lock", f); !errors.Is(err, ErrChanged) {
		t.Errorf("recreated: %v", err)
	}
	testkit.Must(t, root.Close())
	if err := isLock(root, "lock", f); !errors.Is(err, os.ErrClosed) {
		t.Errorf("not known: %v", err)
	}
}

func TestKeepAndPutBack(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	const name = "/etc/default/kubelet"
	if err := tree.PutBack(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing was kept: %v", err)
	}
	testkit.Must(t, tree.Replace(name, nil, file("one")))
	before, err := os.Stat(filepath.Join(dir, name))
	testkit.Must(t, err)
	testkit.Must(t, tree.Keep(name))
	testkit.Must(t, tree.PutBack(name)) // the kept file has not been replaced
	if is, err := tree.Exists(Kept(name)); is || err != nil {
		t.Errorf("it is still kept, %v", err)
	}
	testkit.Must(t, tree.Keep(name))
	one := file("one")
	testkit.Must(t, tree.Replace(name, &one, file("two")))
	testkit.Must(t, tree.PutBack(name))
	after, err := os.Stat(filepath.Join(dir, name))
	if err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("it is another file: %v", err)
	}
	link := NewLink("target")
	testkit.Must(t, tree.Replace("/etc/default/link", nil, link))
	testkit.Must(t, tree.Keep("/etc/default/link"))
	testkit.Must(t, tree.Remove("/etc/default/link", &link))
	testkit.Must(t, tree.PutBack("/etc/default/link"))

	testkit.Must(t, tree.Keep(name))
	testkit.Put(t, filepath.Join(dir, Temporary(name)), "left by a crash")
	testkit.Must(t, tree.Clean(name, false))
	if names, err := tree.Names("/etc/default"); err != nil || strings.Join(names, " ") != ".kubelet.pullpass-before kubelet link" {
		t.Errorf("%q, %v", names, err)
	}
	testkit.Must(t, tree.Clean(name, true))
	testkit.Must(t, tree.Clean(name, true))
	testkit.Must(t, tree.Clean("/none/none", true))
	testkit.Must(t, tree.Rename(name, "other"))
	if names, err := tree.Names("/etc/default"); err != nil || strings.Join(names, " ") != "link other" {
		t.Errorf("%q, %v", names, err)
	}
}

func TestExtendedAttributes(t *testing.T) {
	t.Parallel()
	tree, dir, _ := host(t)
	name := filepath.Join(dir, "etc/default/kubelet")
	testkit.Must(t, tree.Replace("/etc/default/kubelet", nil, file("one")))
	wanted := map[string]string{"user.note": "of an administrator", "user.empty": "", "user.long": strings.Repeat("x", 2000)}
	for attribute, value := range wanted {
		testkit.Must(t, unix.Setxattr(name, attribute, []byte(value), 0))
	}
	one := file("one")
	testkit.Must(t, tree.Replace("/etc/default/kubelet", &one, file("two")))
	for attribute, value := range wanted {
		b := make([]byte, 4096)
		if n, err := unix.Getxattr(name, attribute, b); err != nil || string(b[:n]) != value {
			t.Errorf("%s: %v, want %q", attribute, err, value)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}

// The kernel computes some attributes from the content, so those of the replaced file would be wrong.
func TestAttributesThatAreNotCopied(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		return // only root can set them
	}
	tree, dir, _ := host(t)
	name := filepath.Join(dir, "etc/default/kubelet")
	one := file("one")
	testkit.Must(t, tree.Replace("/etc/default/kubelet", nil, one))
	for _, attribute := range []string{"security.ima", "security.evm"} {
		if err := unix.Setxattr(name, attribute, []byte("x"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			t.Fatal(attribute, err)
		}
	}
	testkit.Must(t, tree.Replace("/etc/default/kubelet", &one, file("two")))
	for _, attribute := range []string{"security.ima", "security.evm"} {
		if _, err := unix.Getxattr(name, attribute, make([]byte, 10)); err == nil {
			t.Errorf("%s is copied", attribute)
		}
	}
}

func TestAttributesThatCannotBeCopied(t *testing.T) {
	t.Parallel()
	_, dir, _ := host(t)
	testkit.Put(t, filepath.Join(dir, "etc/file"), "x")
	testkit.Must(t, unix.Setxattr(filepath.Join(dir, "etc/file"), "user.note", []byte("x"), 0))
	etc, err := os.OpenRoot(filepath.Join(dir, "etc"))
	testkit.Must(t, err)
	defer etc.Close()
	r, w, err := os.Pipe() // has no attributes of users
	testkit.Must(t, err)
	defer r.Close()
	defer w.Close()
	if err := copyAttributes(w, etc, "file"); err == nil || !strings.Contains(err.Error(), "extended attribute user.note: ") {
		t.Errorf("error %v", err)
	}
}
