package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// errAbandoned ends the reading of a body whose request is sent again.
var errAbandoned = errors.New("the request is sent again")

// unsent is a body of which it is known whether something was read. Its reader stays
// open: it belongs to the server.
type unsent struct {
	from io.ReadCloser // nil: no body

	mu        sync.Mutex
	read      bool
	abandoned bool
	failed    error  // of from, but its end
	moved     func() // nil: nobody wants to know
}

func (b *unsent) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.abandoned {
		b.mu.Unlock()
		return 0, errAbandoned
	}
	b.read = true
	if b.moved != nil {
		b.moved()
	}
	b.mu.Unlock()
	n, err := b.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = err
	}
	return n, err
}

// failure is ErrBody if the body could not be read, and nil otherwise.
func (b *unsent) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrBody, b.failed)
}

// whenRead has f called whenever something is read.
func (b *unsent) whenRead(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moved = f
}

func (b *unsent) Close() error { return nil }

// isWhole reports whether the body can be sent again, and lets nobody read it by this
// one then.
func (b *unsent) isWhole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = !b.read
	return !b.read
}

// What is read of a body that nobody needs, and for how long, so that its connection
// can be used again: a TLS handshake costs more.
const (
	maxDrainedBytes = 16 << 10
	drainedWithin   = 250 * time.Millisecond
)

// Discard ends an answer whose body is of no use.
func Discard(response *http.Response) {
	late := time.AfterFunc(drainedWithin, func() { _ = response.Body.Close() })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, response.Body, maxDrainedBytes)
	_ = response.Body.Close()
}

// answer ends what belongs to a request when its answer was read.
type answer struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.cancel(nil)
	return err
}
