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
	// MaxBodies is how many bodies of one address are read without a deadline. An
	// honest body comes with its headers, so that not even all nodes of a cluster
	// behind one address have as many at once.
	MaxBodies = 64
	// BodyDeadline is how long each further body may take, and what is left of one
	// that was refused.
	BodyDeadline = 250 * time.Millisecond
)

// Bodies counts the bodies that are being read, by address. A sender that is slow
// holds none of the queue's places, but it holds memory: one that is slow many
// times over is cut off soon. It is safe for concurrent use.
type Bodies struct {
	mu      sync.Mutex
	reading map[netip.Prefix]int
}

// NewBodies returns Bodies of which none is read yet.
func NewBodies() *Bodies { return &Bodies{reading: map[netip.Prefix]int{}} }

// Begin counts a body, for which End must be called with what it returns: whether
// it has a deadline.
func (b *Bodies) Begin(w http.ResponseWriter, from netip.Prefix) (limited bool) {
	b.mu.Lock()
	b.reading[from]++
	limited = b.reading[from] > MaxBodies
	b.mu.Unlock()
	if limited {
		// What cannot do this has the server's own limit.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(BodyDeadline))
	}
	return limited
}

// End says that a body is not read any more. ended is whether it was read to its
// end. What is left of one that was not is read and thrown away by net/http, after
// the answer is written: for that, too, there must be a deadline.
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
		// Of HTTP/1, the connection is read on to see that the caller has gone: a
		// deadline that passes would look like that.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}

// Body notes whether it was read to its end.
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
