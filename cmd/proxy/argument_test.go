package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/pullpass/pullpass/internal/file"
)

// fifo makes a FIFO, and writes content to it as <(COMMAND) of a shell does.
func fifo(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(name, 0o600))
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(name, []byte(content), 0) }()
	t.Cleanup(func() {
		if err := <-done; err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	})
	return name
}

// What is named on the command line may be a pipe.
func TestCommandsReadPipes(t *testing.T) {
	t.Parallel()
	config, err := os.ReadFile("../../examples/pullpass.yaml")
	must(t, err)
	tests, err := os.ReadFile("../../examples/policy-tests.yaml")
	must(t, err)
	policy, err := filepath.Abs("../../examples/policy.yaml")
	must(t, err)
	text := strings.Replace(string(config), "policy.yaml", policy, 1)
	var stdout, stderr bytes.Buffer
	args := []string{"check", "--config-only", "--config", fifo(t, text), "--tests", fifo(t, string(tests))}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), ": no faults; ") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}

func TestReadArgument(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20) // more than a pipe and the reader hold at once
	if data, err := readArgument(t.Context(), fifo(t, large), 1<<20); string(data) != large || err != nil {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := readArgument(t.Context(), "/dev/zero", 1<<20); !errors.Is(err, file.ErrTooLarge) {
		t.Errorf("error %v, want one for the size", err)
	}
	if _, err := readArgument(t.Context(), t.TempDir(), 1<<20); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("error %v, want one for the directory", err)
	}
}

// Nobody ever writes to these.
func TestReadArgumentEndsWithItsContext(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(name, 0o600))
	writer, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { _ = writer.Close() })
	reading, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := readArgument(reading, name, 10); ended <- err }()
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("reading ended with %v", err)
	}

	unopened := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(unopened, 0o600))
	if _, err := readArgument(reading, unopened, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("opening ended with %v", err)
	}
	writer, err = os.OpenFile(unopened, os.O_RDWR, 0) // lets the goroutine end
	must(t, err)
	must(t, writer.Close())
}

func TestUntilPassesEverythingOn(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 20_000)
	for _, in := range []io.Reader{strings.NewReader(text), iotest.HalfReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
		if got, err := io.ReadAll(until(t.Context(), in)); string(got) != text || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	bad := errors.New("bad disk")
	if got, err := io.ReadAll(until(t.Context(), io.MultiReader(strings.NewReader("a"), iotest.ErrReader(bad)))); string(got) != "a" || err != bad {
		t.Errorf("%q, %v", got, err)
	}
}
