package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge says that a file exceeds the limit.
var ErrTooLarge = errors.New("too large")

// ErrNotRegular says that the name leads to a directory, FIFO, device or socket.
var ErrNotRegular = errors.New("not a regular file")

// refusal is an error with its own text. errors.Is finds its kind.
type refusal struct {
	kind error
	text string
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

// Read returns the content of a regular file. The error is ErrTooLarge if the file is larger than
// limit bytes, and ErrNotRegular if it is not a regular file. Other errors are those of package os.
// Each error names the file.
func Read(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the file was only read
	return readFrom(f, name, limit)
}

// readFrom returns the rest of r, with the errors of Read. name is for messages.
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

// Open opens a regular file for reading, without waiting for another process. The errors are those
// of Read.
func Open(name string) (*os.File, error) {
	// Check the type first: opening a device can have side effects, and opening a FIFO wakes its
	// writer.
	if info, err := os.Stat(name); err == nil {
		if err := regular(name, info); err != nil {
			return nil, err
		}
	}
	// The name may lead to a different file by now. With O_NONBLOCK, a FIFO also opens without
	// waiting (fifo(7)). The type of the open file cannot change.
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
