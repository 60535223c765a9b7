// Package load bounds what many requests at once, and slow ones, hold of a server: how
// many are worked on and wait, and how many bodies are on their way.
package load

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// maxQueueTime is how long a request waits for its turn: containerd gives up
// on a token endpoint later than that.
const maxQueueTime = 5 * time.Second

const (
	// usualBytes is what a usual request holds in memory, and maxExcessBytes what
	// all that wait may hold together beyond that: those that are unusual have to
	// find a place at once when there are many of them.
	usualBytes     = 8 << 10
	maxExcessBytes = 16 << 20
)

// Queue bounds how many requests are worked on at a time and how many wait, so
// that memory stays bounded whatever arrives. It is safe for concurrent use.
type Queue struct {
	places     chan struct{} // one element for each request that is worked on
	waiting    atomic.Int64
	excess     atomic.Int64 // bytes of those that wait
	maxWaiting int64
}

// NewQueue returns a Queue for so many requests that are worked on, and so many that wait.
func NewQueue(inFlight, waiting int) *Queue {
	return &Queue{places: make(chan struct{}, inFlight), maxWaiting: int64(waiting)}
}

// Enter waits for a place and reports whether there is one; then Leave must be
// called.
func (q *Queue) Enter(r *http.Request) bool {
	select {
	case q.places <- struct{}{}:
		return true
	default:
	}
	excess := max(RequestBytes(r)-usualBytes, 0)
	waiting, allExcess := q.waiting.Add(1), q.excess.Add(excess)
	defer q.waiting.Add(-1)
	defer q.excess.Add(-excess)
	if waiting > q.maxWaiting || excess > 0 && allExcess > maxExcessBytes {
		return false
	}
	timer := time.NewTimer(maxQueueTime)
	defer timer.Stop()
	select {
	case q.places <- struct{}{}:
		return true
	case <-timer.C:
	case <-r.Context().Done():
	}
	return false
}

// RequestBytes is about what a request holds in memory.
func RequestBytes(r *http.Request) int64 {
	size := int64(len(r.RequestURI))
	for name, values := range r.Header {
		for _, value := range values {
			size += int64(len(name) + len(value))
		}
	}
	if r.ContentLength < 0 { // not said
		return size + registryauth.MaxBodyBytes
	}
	return size + min(r.ContentLength, registryauth.MaxBodyBytes) // of more, nothing is read
}

// Leave gives the place back.
func (q *Queue) Leave() { <-q.places }

// Counts are how many requests are worked on now, and how many wait.
type Counts struct{ InFlight, Waiting int }

// Counts says how busy it is.
func (q *Queue) Counts() Counts { return Counts{len(q.places), int(q.waiting.Load())} }
