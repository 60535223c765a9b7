package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stallTimeout is how long either side of a stream may do nothing.
	stallTimeout = 2 * time.Minute
	// bufferBytes is what a stream holds of a body. A record of TLS is as long.
	bufferBytes = 16 << 10
)

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// brokenError says that reading failed, and not writing.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

func (e *brokenError) Unwrap() error { return e.err }

// pass copies a body to a client, and returns how much of it. stalled is called when
// the body does not go on; the body then ends with an error. A client that does not
// read ends its connection. The error is *brokenError if it is not the client's.
func pass(w http.ResponseWriter, body io.Reader, stalled func()) (int64, error) {
	buffer := buffers.Get().(*[bufferBytes]byte)
	defer buffers.Put(buffer)
	client := http.NewResponseController(w)
	watch := time.AfterFunc(stallTimeout, stalled)
	defer watch.Stop()
	var sent int64
	for {
		watch.Reset(stallTimeout)
		n, err := body.Read(buffer[:])
		if n > 0 {
			watch.Stop() // now it is the client that must go on
			_ = client.SetWriteDeadline(time.Now().Add(stallTimeout))
			written, err := w.Write(buffer[:n])
			sent += int64(written)
			if err != nil {
				return sent, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return sent, nil
		case err != nil:
			return sent, &brokenError{err}
		}
	}
}

// watchRead ends a body that does not go on.
func watchRead(cancel context.CancelCauseFunc, cause error) *time.Timer {
	return time.AfterFunc(stallTimeout, func() { cancel(cause) })
}

// clientBody is the body of a client's request. Each piece has to come in time, and is
// counted.
type clientBody struct {
	io.ReadCloser
	client *http.ResponseController
	n      atomic.Int64
	ended  atomic.Bool
}

func newClientBody(q *request) *clientBody {
	return &clientBody{ReadCloser: q.http.Body, client: http.NewResponseController(q.w)}
}

func (b *clientBody) Read(p []byte) (int, error) {
	// net/http's transport reads once more. A bound would then be one for the time that
	// the answer takes: the server reads on, to see whether the client is there.
	if b.ended.Load() {
		return 0, io.EOF
	}
	_ = b.client.SetReadDeadline(time.Now().Add(stallTimeout))
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	b.ended.Store(errors.Is(err, io.EOF))
	return n, err
}

func (b *clientBody) bytes() int64 { return b.n.Load() }
