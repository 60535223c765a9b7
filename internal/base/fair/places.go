package fair

import (
	"context"
	"sync"
)

// Places bounds how many operations run at a time. Tenants that wait for a place take turns. It is
// safe for concurrent use.
type Places struct {
	mu      sync.Mutex
	free    int
	waiting Queue[*place]
}

type place struct {
	given   chan struct{} // closed when the place is given
	retired bool          // the waiter has given up
}

// NewPlaces returns count Places, all of them free.
func NewPlaces(count int) *Places { return &Places{free: count} }

// Enter waits for a place, which Leave gives back. An error means that ctx ended first.
func (p *Places) Enter(ctx context.Context, tenant string) error {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return nil
	}
	own := &place{given: make(chan struct{})}
	p.waiting.Push(tenant, own)
	p.mu.Unlock()
	select {
	case <-own.given:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-own.given: // just now
		return nil
	default:
		own.retired = true
		return context.Cause(ctx)
	}
}

// Leave gives a place back.
func (p *Places) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for next, ok := p.waiting.Pop(); ok; next, ok = p.waiting.Pop() {
		if !next.retired {
			close(next.given)
			return
		}
	}
	p.free++
}
