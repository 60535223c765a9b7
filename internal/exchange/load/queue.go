// Package load bounds the resources that many or slow requests hold of a server: requests in
// progress, waiting requests, and bodies that are being read.
package load

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// maxQueueTime is how long a request waits for a place. containerd waits longer than that for a
// token endpoint.
const maxQueueTime = 5 * time.Second

const (
	// usualBytes is the memory of a usual request. maxExcessBytes bounds the memory beyond that of
	// all waiting requests together. When many large requests wait, a further one must get a place
	// at once.
	usualBytes     = 8 << 10
	maxExcessBytes = 16 << 20
)

// Queue bounds the numbers of requests in progress and of waiting requests, and so their memory. It
// is safe for concurrent use.
type Queue struct {
	places     chan struct{} // one element for each request in progress
	waiting    atomic.Int64
	excess     atomic.Int64 // bytes of waiting requests beyond usualBytes
	maxWaiting int64
}

// NewQueue returns a Queue with the given numbers of places and of waiting requests.
func NewQueue(inFlight, waiting int) *Queue {
	return &Queue{places: make(chan struct{}, inFlight), maxWaiting: int64(waiting)}
}

// Enter waits for a place and reports whether the request got one. If so, Leave must be called.
func (q *Queue) Enter(r *http.Request) bool {
	select {
	case q.places <- struct{}{}:
		return true
	default:
	}
	excess := max(HeadBytes(r)+BodyBytes(r)-usualBytes, 0)
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

// fieldBytes is what net/http keeps for a header field besides its text: the name in the map, and a slice with the value.
const fieldBytes = 128

// HeadBytes returns roughly how much memory the head of a request holds.
func HeadBytes(r *http.Request) int64 {
	size := int64(len(r.RequestURI))
	for name, values := range r.Header {
		for _, value := range values {
			size += fieldBytes + int64(len(name)+len(value))
		}
	}
	return size
}

// BodyBytes returns how much memory the body of a request can hold. The rest of it is not read.
func BodyBytes(r *http.Request) int64 {
	if r.ContentLength < 0 { // unknown
		return registryauth.MaxBodyBytes
	}
	return min(r.ContentLength, registryauth.MaxBodyBytes)
}

// Leave gives the place back.
func (q *Queue) Leave() { <-q.places }

// Counts holds the numbers of requests in progress and of waiting requests.
type Counts struct{ InFlight, Waiting int }

// Counts returns the current numbers.
func (q *Queue) Counts() Counts { return Counts{len(q.places), int(q.waiting.Load())} }
