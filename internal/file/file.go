package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge is what a file is that has more bytes than are read.
var ErrTooLarge = errors.New("too large")

// ErrNotRegular is what a directory, FIFO, device or socket is.
var ErrNotRegular = errors.New("not a regular file")

// refusal is an error whose text is for people; errors.Is finds the kind.
type refusal struct {
	kind error
	text string
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

// Read returns the content of a regular file. The error of one that is larger
// than limit bytes is ErrTooLarge, that of what is no regular file
// ErrNotRegular, and any other that of package os. Each names the file.
func Read(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return readFrom(f, name, limit)
}

// readFrom returns what follows in r, with the errors of Read. name is for
// messages.
func readFrom(r io.Reader, name string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &refusal{ErrTooLarge, fmt.Sprintf("%s has more than %d bytes; no more are read", name, limit)}
	}
	return data, nil
}

// Open opens a regular file for reading, without waiting for anybody. The errors
// are those of Read.
func Open(name string) (*os.File, error) {
	// Opening a device can do something, and a FIFO's writer would be told that
	// somebody reads: look first.
	if info, err := os.Stat(name); err == nil {
		if err := regular(name, info); err != nil {
			return nil, err
		}
	}
	// The name may lead to something else by now. O_NONBLOCK opens also a FIFO
	// without waiting (fifo(7)), and what was opened stays what it is.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(name, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func regular(name string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return &refusal{ErrNotRegular, fmt.Sprintf("%s is not a regular file but %s; name one", name, kind(info.Mode()))}
}

func kind(mode fs.FileMode) string {
	switch mode.Type() &^ fs.ModeCharDevice {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeNamedPipe:
		return "a FIFO"
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeDevice:
		return "a device"
	}
	return "something else"
}
