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

// unsent is a body that records whether anything was read from it. Close leaves the reader open,
// because it belongs to the server.
type unsent struct {
	from io.ReadCloser // nil: no body

	mu        sync.Mutex
	read      bool
	abandoned bool
	failed    error // error of from, except io.EOF
}

func (b *unsent) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.abandoned {
		b.mu.Unlock()
		return 0, errAbandoned
	}
	b.read = true
	b.mu.Unlock()
	n, err := b.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = err
	}
	return n, err
}

// failure returns ErrBody if the body could not be read, and nil otherwise.
func (b *unsent) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrBody, b.failed)
}

func (b *unsent) Close() error { return nil }

// isWhole reports whether the body can be sent again. If so, it cannot be read through b any more.
func (b *unsent) isWhole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = !b.read
	return !b.read
}

// The bounds of reading the rest of an unused body, so that its connection can be reused: a TLS
// handshake costs more.
const (
	maxDrainedBytes = 16 << 10
	drainedWithin   = 250 * time.Millisecond
)

// Discard ends a response whose body is not needed.
func Discard(response *http.Response) {
	late := time.AfterFunc(drainedWithin, func() { _ = response.Body.Close() })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, response.Body, maxDrainedBytes)
	_ = response.Body.Close()
}

// answer releases the context of a request when its response was read.
type answer struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.cancel(nil)
	return err
}
