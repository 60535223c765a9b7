package testkit

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// FIFO makes a FIFO, and writes content to it as <(COMMAND) of a shell does.
func FIFO(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	Must(t, syscall.Mkfifo(name, 0o600))
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(name, []byte(content), 0) }()
	t.Cleanup(func() {
		if err := <-done; err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	})
	return name
}

func Put[T string | []byte](t testing.TB, name string, content T) {
	t.Helper()
	Must(t, os.WriteFile(name, []byte(content), 0o600))
}

// TempFile writes a file to a new directory and returns its path.
func TempFile(t testing.TB, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	Put(t, path, content)
	return path
}

func Read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	Must(t, err)
	return string(data)
}

func Mkdir(t testing.TB, name string) {
	t.Helper()
	Must(t, os.MkdirAll(name, 0o700))
}

func Remove(t testing.TB, name string) {
	t.Helper()
	Must(t, os.RemoveAll(name))
}

// InModule returns the path of a file of the module, whichever of its packages the test belongs to.
func InModule(name string) string {
	dir := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Join(dir, "..")
	}
	return filepath.Join(dir, name)
}
