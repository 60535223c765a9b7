package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// view is a node's own view of the file system: at the places that its programs are configured in and write to, each node
// has directories of its own. It is a mount namespace, and ends with its last process.
type view struct {
	dir       string   // what the node sees at a path is dir and that path, of those in private
	namespace *os.File // keeps it
}

// private are the directories that each node has for itself: the paths of the documentation.
func private() []string {
	return []string{"/etc/pullpass", "/etc/containerd", "/etc/containers", "/etc/crio", "/usr/local/libexec/pullpass", "/var/lib/kubelet", "/var/log/pods", "/run/containerd", "/run/crio", "/run/containers"}
}

// newView makes a view. The tests run in a mount namespace, so that the places may be made where they are missing.
func newView(t testing.TB, dir string) *view {
	t.Helper()
	made := make(chan error)
	v := &view{dir: dir}
	go func() {
		// The thread is in the new namespace for good: it ends with the goroutine that does not unlock it.
		runtime.LockOSThread()
		made <- v.make()
	}()
	testenv.Must(t, <-made)
	t.Cleanup(func() { _ = v.namespace.Close() })
	t.Cleanup(func() { secrets.SeenFiles(dir) })
	return v
}

func (v *view) make() error {
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace of a node: %w", err)
	}
	for _, place := range private() {
		own := v.path(place)
		for _, dir := range []string{place, own} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Mount(own, place, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", own, place, err)
		}
	}
	var err error
	v.namespace, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/mnt", syscall.Gettid()))
	return err
}

// path is where the tests find what the node sees at a path.
func (v *view) path(place string) string { return filepath.Join(v.dir, place) }

// write writes a file that the node sees at a path.
func (v *view) write(t testing.TB, place, content string, mode os.FileMode) {
	t.Helper()
	path := v.path(place)
	testenv.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testenv.Must(t, os.WriteFile(path, []byte(content), mode))
}

// command is a program of the node. It replaces nsenter in its process.
func (v *view) command(program string, args ...string) *exec.Cmd {
	namespace := fmt.Sprintf("--mount=/proc/%d/fd/%d", os.Getpid(), v.namespace.Fd())
	return exec.Command("nsenter", append([]string{namespace, "--", program}, args...)...)
}
