package file

import (
	"context"
	"io"
	"os"
)

// OpenArgument opens an argument of a command that is read once. Unlike a file of the
// configuration, it may be a pipe, such as <(COMMAND) of a shell or /dev/stdin. Waiting for it ends
// with ctx.
func OpenArgument(ctx context.Context, name string) (io.ReadCloser, error) {
	type result struct {
		file *os.File
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		f, err := os.Open(name)
		opened <- result{f, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-opened:
		if r.err != nil {
			return nil, r.err
		}
		return struct {
			io.Reader
			io.Closer
		}{Until(ctx, r.file), r.file}, nil
	}
}

// ReadArgument returns the content of an argument of a command that is read once.
func ReadArgument(ctx context.Context, name string, limit int64) ([]byte, error) {
	in, err := OpenArgument(ctx, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return readFrom(in, name, limit)
}

// Until returns a reader that reads in until ctx ends. A read that is running then continues
// without effect: a read from a pipe or terminal cannot be interrupted.
func Until(ctx context.Context, in io.Reader) io.Reader {
	return &contextReader{ctx: ctx, in: in, done: make(chan int), buffer: make([]byte, 64<<10)}
}

type contextReader struct {
	ctx    context.Context
	in     io.Reader
	done   chan int // number of bytes that were read
	buffer []byte   // belongs to the running read
	rest   []byte   // of the last read
	err    error
}

func (r *contextReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		var err error
		go func() {
			var n int
			n, err = r.in.Read(r.buffer)
			select {
			case r.done <- n:
			case <-r.ctx.Done():
			}
		}()
		select {
		case <-r.ctx.Done():
			r.err = r.ctx.Err()
		case n := <-r.done:
			r.rest, r.err = r.buffer[:n], err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
