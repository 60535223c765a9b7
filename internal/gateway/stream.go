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
	// A stream holds a piece of a body, and crypto/tls as much again while the client does
	// not take it. Large ones, as long as a record of TLS, are for clients that take
	// them at once.
	smallBytes, largeBytes = 8 << 10, 16 << 10
	// takenAtOnce is how much a client must have taken so: of less, it may be that the
	// kernels' queues took it.
	takenAtOnce = 1 << 20
	atOnce      = 10 * time.Millisecond
)

var small, large = newPieces(smallBytes), newPieces(largeBytes)

// pieces are buffers of one size.
type pieces struct{ pool sync.Pool }

func newPieces(bytes int) *pieces {
	return &pieces{sync.Pool{New: func() any { b := make([]byte, bytes); return &b }}}
}

func (p *pieces) get() *[]byte  { return p.pool.Get().(*[]byte) }
func (p *pieces) put(b *[]byte) { p.pool.Put(b) }

// brokenError says that reading failed, and not writing.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

func (e *brokenError) Unwrap() error { return e.err }

// pass copies a body to a client, and returns how much of it. stalled is called when
// the body does not go on; the body then ends with an error. A client that does not
// read ends its connection. The error is *brokenError if it is not the client's.
func pass(w http.ResponseWriter, body io.Reader, stalled func()) (int64, error) {
	size := small
	buffer := size.get()
	defer func() { size.put(buffer) }()
	client := http.NewResponseController(w)
	watch := time.AfterFunc(stallTimeout, stalled)
	defer watch.Stop()
	var sent, taken int64 // taken: of it, at once
	for {
		watch.Reset(stallTimeout)
		n, err := body.Read(*buffer)
		if n > 0 {
			watch.Stop() // now it is the client that must go on
			began := time.Now()
			_ = client.SetWriteDeadline(began.Add(stallTimeout))
			written, err := w.Write((*buffer)[:n])
			sent += int64(written)
			if err != nil {
				return sent, err
			}
			if taken += int64(written); time.Since(began) > atOnce {
				taken = 0
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return sent, nil
		case err != nil:
			return sent, &brokenError{err}
		}
		next := small
		if taken > takenAtOnce {
			next = large
		}
		if next != size {
			size.put(buffer)
			size, buffer = next, next.get()
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
