package file

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestReadArgument(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20) // more than a pipe and the reader hold at once
	if data, err := ReadArgument(t.Context(), testkit.FIFO(t, large), 1<<20); string(data) != large || err != nil {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := ReadArgument(t.Context(), "/dev/zero", 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want one for the size", err)
	}
	if _, err := ReadArgument(t.Context(), t.TempDir(), 1<<20); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("error %v, want one for the directory", err)
	}
}

// These pipes never have a writer.
func TestReadArgumentEndsWithItsContext(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "fifo")
	testkit.Must(t, syscall.Mkfifo(name, 0o600))
	writer, err := os.OpenFile(name, os.O_RDWR, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = writer.Close() })
	reading, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := ReadArgument(reading, name, 10); ended <- err }()
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("reading ended with %v", err)
	}

	unopened := filepath.Join(t.TempDir(), "fifo")
	testkit.Must(t, syscall.Mkfifo(unopened, 0o600))
	if _, err := ReadArgument(reading, unopened, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("opening ended with %v", err)
	}
	writer, err = os.OpenFile(unopened, os.O_RDWR, 0) // lets the goroutine end
	testkit.Must(t, err)
	testkit.Must(t, writer.Close())
}

func TestUntilPassesEverythingOn(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 20_000)
	for _, in := range []io.Reader{strings.NewReader(text), iotest.HalfReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
		if got, err := io.ReadAll(Until(t.Context(), in)); string(got) != text || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	bad := errors.New("bad disk")
	if got, err := io.ReadAll(Until(t.Context(), io.MultiReader(strings.NewReader("a"), iotest.ErrReader(bad)))); string(got) != "a" || err != bad {
		t.Errorf("%q, %v", got, err)
	}
}
