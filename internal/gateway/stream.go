package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stallTimeout is how long either side of a stream may be idle.
	stallTimeout = 2 * time.Minute
	// endWithin is how long a client may take for the last bytes of a stream that ends early.
	endWithin = time.Second
	// A stream holds one piece of a body, and crypto/tls holds the same again while the client does
	// not read. Large pieces, as long as a TLS record, are for clients that read them at once.
	smallBytes, largeBytes = 8 << 10, 16 << 10
	// takenAtOnce is the number of bytes that a client must have read at once. Fewer may only have
	// filled the kernels' buffers.
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

// brokenError says that reading failed, not writing.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

func (e *brokenError) Unwrap() error { return e.err }

// pass copies a body to a client, and returns the number of bytes. stalled is called when the body
// stalls; the body must then end with an error. A client that does not read ends its connection.
// The error is *brokenError if the client did not cause it.
func pass(w http.ResponseWriter, body io.Reader, stalled func()) (int64, error) {
	size := small
	buffer := size.get()
	defer func() { size.put(buffer) }()
	client := http.NewResponseController(w)
	watch := time.AfterFunc(stallTimeout, stalled)
	defer watch.Stop()
	var sent, taken int64 // taken: bytes of sent that were read at once
	for {
		watch.Reset(stallTimeout)
		n, err := body.Read(*buffer)
		if n > 0 {
			watch.Stop() // now the client must make progress
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

// watchRead ends a body that stalls.
func watchRead(cancel context.CancelCauseFunc, cause error) *time.Timer {
	return time.AfterFunc(stallTimeout, func() { cancel(cause) })
}

// clientBody is the body of a client's request. It counts its bytes, and each piece must arrive in
// time.
type clientBody struct {
	io.ReadCloser
	client *http.ResponseController
	moved  func() // is called for each piece
	n      atomic.Int64
	ended  atomic.Bool  // the whole body has arrived
	until  atomic.Int64 // deadline of the read in progress or late, in nanoseconds since 1970; 0: there is none
	// sum is of what was read; nil: it is not needed.
	sum       hash.Hash
	algorithm string // of sum, as in a digest
}

func newClientBody(w http.ResponseWriter, r *http.Request) *clientBody {
	b := &clientBody{ReadCloser: r.Body, client: http.NewResponseController(w), moved: func() {}}
	b.ended.Store(r.ContentLength == 0)
	return b
}

func (b *clientBody) Read(p []byte) (int, error) {
	// net/http's transport reads once more after the end. A deadline would then apply to the time
	// of the response, because the server keeps reading to notice whether the client is there.
	if b.ended.Load() {
		return 0, io.EOF
	}
	until := time.Now().Add(stallTimeout)
	_ = b.client.SetReadDeadline(until)
	b.until.Store(until.UnixNano())
	n, err := b.ReadCloser.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.until.Store(0)
	}
	b.moved()
	b.n.Add(int64(n))
	if b.sum != nil {
		_, _ = b.sum.Write(p[:n])
	}
	b.ended.Store(errors.Is(err, io.EOF))
	return n, err
}

// stalled reports whether a piece has not arrived in time. It does not wait for the read: net/http
// cancels the request before the read returns.
func (b *clientBody) stalled() bool {
	until := b.until.Load()
	return until != 0 && time.Now().UnixNano() >= until
}

// digest returns that of a whole body; empty: it is not whole, or not needed. Nothing is read after
// the end.
func (b *clientBody) digest() string {
	if b.sum == nil || !b.ended.Load() {
		return ""
	}
	return fmt.Sprintf("%s:%x", b.algorithm, b.sum.Sum(nil))
}
