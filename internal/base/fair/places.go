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
	waiting Queue[chan struct{}] // each is closed when its place is given
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
	own := make(chan struct{})
	p.waiting.Push(tenant, own)
	p.mu.Unlock()
	select {
	case <-own:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-own: // just now
		return nil
	default:
		p.waiting.Remove(tenant, func(other chan struct{}) bool { return other == own })
		return context.Cause(ctx)
	}
}

// Leave gives a place back.
func (p *Places) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next, ok := p.waiting.Pop(); ok {
		close(next)
		return
	}
	p.free++
}
