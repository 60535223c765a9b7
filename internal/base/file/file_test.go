package file_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestRead(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "a")
	testkit.Must(t, os.WriteFile(name, []byte("four"), 0o600))
	if data, err := file.Read(name, 4); string(data) != "four" || err != nil {
		t.Errorf("Read: %q, %v", data, err)
	}
	_, err := file.Read(name, 3)
	if want := name + " has more than 3 bytes; no more are read"; !errors.Is(err, file.ErrTooLarge) || err.Error() != want {
		t.Errorf("Read: %v, want %s", err, want)
	}
	_, err = file.Read(name+"-missing", 4)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), name+"-missing") {
		t.Errorf("Read: %v, want that it does not exist", err)
	}
}

// Each of these would never end, or has no content.
func TestReadRefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, socket := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	testkit.Must(t, syscall.Mkfifo(fifo, 0o600))
	listener := testkit.Value(net.Listen("unix", socket))(t)
	t.Cleanup(func() { _ = listener.Close() })
	for name, kind := range map[string]string{dir: "a directory", fifo: "a FIFO", socket: "a socket", "/dev/zero": "a device"} {
		link := filepath.Join(t.TempDir(), "link")
		testkit.Must(t, os.Symlink(name, link))
		for _, name := range []string{name, link} {
			_, err := file.Read(name, 1<<20)
			if want := name + " is not a regular file but " + kind + "; name one"; !errors.Is(err, file.ErrNotRegular) || err.Error() != want {
				t.Errorf("Read: %v, want %s", err, want)
			}
		}
	}
}

// A file may be replaced between the check of its name and its opening. The opened file must be
// checked, and opening it must not wait.
func TestOpenJudgesWhatItOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name, fifo, plain := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "fifo"), filepath.Join(dir, "plain")
	testkit.Must(t, syscall.Mkfifo(fifo, 0o600))
	testkit.Must(t, os.WriteFile(plain, []byte("x"), 0o600))
	testkit.Must(t, os.Symlink(plain, name))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := filepath.Join(dir, "next")
			if os.Symlink([]string{fifo, plain}[i%2], next) != nil || os.Rename(next, name) != nil {
				return
			}
		}
	}()
	for range 5_000 {
		data, err := file.Read(name, 10)
		if err == nil && string(data) != "x" || err != nil && !errors.Is(err, file.ErrNotRegular) {
			t.Errorf("Read: %q, %v", data, err)
			break
		}
	}
	close(stop)
	<-done
}
