package load

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// MaxBodies is how many bodies of one address are read without a deadline. An honest body
	// arrives with its headers, so even all nodes of a cluster behind one address do not reach this
	// number.
	MaxBodies = 64
	// BodyDeadline is the time for each further body, and for the rest of a body that was refused.
	BodyDeadline = 250 * time.Millisecond
)

// Bodies counts the bodies that are being read, by address. A slow sender holds no place in the
// queue, but it holds memory. An address with many slow bodies is soon cut off. It is safe for
// concurrent use.
type Bodies struct {
	mu      sync.Mutex
	reading map[netip.Prefix]int
}

// NewBodies returns Bodies without any body.
func NewBodies() *Bodies { return &Bodies{reading: map[netip.Prefix]int{}} }

// Begin counts a body and reports whether it has a deadline. End must be called with the returned
// value.
func (b *Bodies) Begin(w http.ResponseWriter, from netip.Prefix) (limited bool) {
	b.mu.Lock()
	b.reading[from]++
	limited = b.reading[from] > MaxBodies
	b.mu.Unlock()
	if limited {
		// If this is not supported, the server's own limit applies.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(BodyDeadline))
	}
	return limited
}

// End removes a body from the count. ended says whether it was read to its end. If it was not,
// net/http reads and discards the rest after the response is written. That needs a deadline too.
func (b *Bodies) End(w http.ResponseWriter, from netip.Prefix, limited, ended bool) {
	b.mu.Lock()
	if b.reading[from]--; b.reading[from] == 0 {
		delete(b.reading, from)
	}
	b.mu.Unlock()
	switch {
	case !ended:
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(BodyDeadline))
	case limited:
		// net/http keeps reading an HTTP/1 connection to notice that the client has closed it. An
		// expired deadline would look like that.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}

// Body records whether it was read to its end.
type Body struct {
	io.ReadCloser
	Ended bool
}

func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.Ended = true
	}
	return n, err
}
