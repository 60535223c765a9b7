package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
)

// followInterval is the interval of the checks whether the file still has its name.
const followInterval = time.Second

// output is standard output or a file. It belongs to one goroutine.
type output struct {
	name   string // empty: standard output
	out    io.Writer
	file   *os.File  // nil: standard output, which is not closed
	torn   bool      // the last line was written in part
	buffer []byte    // of lines that are written together
	looked time.Time // last check of the file's name
}

func openOutput(name string, stdout io.Writer) (*output, error) {
	o := &output{name: name, out: stdout}
	if name == "" {
		return o, nil
	}
	return o, o.reopen()
}

func (o *output) String() string {
	if o.name == "" {
		return "standard output"
	}
	return o.name
}

// reopen opens the file that has the name now. On an error, the present file stays in use.
func (o *output) reopen() error {
	if o.name == "" {
		return nil
	}
	// With O_NONBLOCK, a FIFO without a reader is an error (fifo(7)). Otherwise, nothing would ever end the wait.
	file, err := os.OpenFile(o.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	before := o.file
	o.file, o.out, o.torn = file, file, endsTorn(o.name, file)
	if before != nil {
		if err := before.Close(); err != nil {
			return fmt.Errorf("audit.file: the file before: %w", err)
		}
	}
	return nil
}

// endsTorn reports whether the file ends within a line, as after a crash. A file that cannot be
// read counts as torn: an empty line does no harm.
func endsTorn(name string, written *os.File) bool {
	info, err := written.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	readable, err := file.Open(name)
	if err != nil {
		return true
	}
	defer readable.Close()
	var last [1]byte
	_, err = readable.ReadAt(last[:], info.Size()-1)
	return err != nil || last[0] != '\n'
}

// follow opens the file again if it was moved or removed, because lines in a removed file are lost.
func (o *output) follow(now time.Time) error {
	if o.file == nil || now.Sub(o.looked) < followInterval {
		return nil
	}
	o.looked = now
	opened, err := o.file.Stat()
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	if named, err := os.Stat(o.name); err == nil && os.SameFile(opened, named) {
		return nil
	}
	return o.reopen()
}

// write writes lines, including newlines, in one Write. It returns the number of complete lines,
// and an error if those are not all.
func (o *output) write(lines []*pendingLine) (int, error) {
	text := lines[0].text
	if o.torn || len(lines) > 1 {
		text = o.buffer[:0]
		if o.torn {
			text = append(text, '\n') // or the first line would be lost with the torn one
		}
		for _, line := range lines {
			text = append(text, line.text...)
		}
		o.buffer = text
	}
	n, err := o.out.Write(text)
	if n == len(text) {
		o.torn = false
		return len(lines), nil
	}
	if n == 0 {
		return 0, err
	}
	if o.torn {
		n--
	}
	written := 0
	for n >= len(lines[written].text) {
		n -= len(lines[written].text)
		written++
	}
	o.torn = n > 0 || written == 0
	return written, err
}

// close syncs a file to the disk and closes it.
func (o *output) close() error {
	if o.file == nil {
		return nil
	}
	var err error
	if info, statErr := o.file.Stat(); statErr == nil && info.Mode().IsRegular() { // pipes and terminals cannot be synced
		err = o.file.Sync()
	}
	if err := errors.Join(err, o.file.Close()); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	return nil
}
