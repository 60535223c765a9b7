package exchange

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// maxQueueTime is how long a request waits for its turn: containerd gives up
// on a token endpoint later than that.
const maxQueueTime = 5 * time.Second

// errOverloaded refuses a request that found no place, or not in time.
var errOverloaded = errors.New("too many requests at once")

// queue bounds how many requests are worked on at a time and how many wait, so
// that memory stays bounded whatever arrives. It is safe for concurrent use.
type queue struct {
	places  chan struct{} // one element for each request that is worked on
	waiting atomic.Int64
	most    int64 // that may wait
}

func newQueue(inFlight, waiting int) *queue {
	return &queue{places: make(chan struct{}, inFlight), most: int64(waiting)}
}

// enter waits for a place and reports whether there is one; then leave must be
// called.
func (q *queue) enter(ctx context.Context) bool {
	select {
	case q.places <- struct{}{}:
		return true
	default:
	}
	defer q.waiting.Add(-1)
	if q.waiting.Add(1) > q.most {
		return false
	}
	timer := time.NewTimer(maxQueueTime)
	defer timer.Stop()
	select {
	case q.places <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (q *queue) leave() { <-q.places }

// Load is how busy a Handler is.
type Load struct{ InFlight, Waiting int }

func (q *queue) load() Load { return Load{len(q.places), int(q.waiting.Load())} }
