package relay

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	checkPeriod = 100 * time.Millisecond
	checkLimit  = 5 * time.Second // a machine that is busy is no reason to send nothing
)

// Backend is one of several that a Balancer has.
type Backend interface {
	Address() string
	IsReady(context.Context) bool
}

// Balancer passes each new connection on to the next backend that is ready. Backends see the addresses of the clients, as behind
// a load balancer that leaves packets as they are.
type Balancer struct {
	Address string // host:port

	mu       sync.Mutex
	backends []Backend
	ready    map[Backend]bool
	next     int
}

// StartBalancer listens on an address of 127.0.0.1 until the test ends.
func StartBalancer(t testing.TB, address string) *Balancer {
	t.Helper()
	listener := testenv.Value(net.Listen("tcp", address))(t)
	b := &Balancer{Address: listener.Addr().String(), ready: map[Backend]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() { b.pass(ctx, conn) })
		}
	})
	running.Go(func() {
		for tick := time.NewTicker(checkPeriod); ; {
			b.check(ctx)
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	})
	return b
}

// Use replaces the backends, and asks them whether they are ready: the next connection finds those that are. Connections that are
// open stay where they are.
func (b *Balancer) Use(t testing.TB, backends ...Backend) {
	t.Helper()
	b.mu.Lock()
	b.backends = backends
	for old := range b.ready {
		if !slices.Contains(backends, old) {
			delete(b.ready, old)
		}
	}
	b.mu.Unlock()
	b.check(t.Context())
}

func (b *Balancer) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	b.mu.Lock()
	backends := b.backends
	b.mu.Unlock()
	var checks sync.WaitGroup
	for _, backend := range backends {
		checks.Go(func() {
			ready := backend.IsReady(ctx)
			b.mu.Lock()
			defer b.mu.Unlock()
			if slices.Contains(b.backends, backend) {
				b.ready[backend] = ready
			}
		})
	}
	checks.Wait()
}

// turn returns the backend whose turn it is, or nil.
func (b *Balancer) turn() Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	for i := range b.backends {
		if backend := b.backends[(b.next+i)%len(b.backends)]; b.ready[backend] {
			return backend
		}
	}
	return nil
}

// pass tries no other backend when one does not listen: packets are never sent twice, either.
func (b *Balancer) pass(ctx context.Context, near net.Conn) {
	defer near.Close()
	backend := b.turn()
	if backend == nil {
		return
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: near.RemoteAddr().(*net.TCPAddr).IP}}
	far, err := dialer.DialContext(ctx, "tcp", backend.Address())
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _ = near.Close() })
	defer stop()
	splice(near, far)
}
