// Package relay passes TCP connections on, and breaks them: a network that fails between two programs that run.
package relay

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Relay passes connections on until it is cut.
type Relay struct {
	Address string // host:port

	listener net.Listener
	mu       sync.Mutex
	target   string
	delay    time.Duration
	rate     int // bytes a second that the target sends on one connection; 0: no limit
	cut      bool
	open     map[net.Conn]bool // both sides of each connection
}

// Start passes connections from one address on to another. The relay ends with the test.
func Start(t testing.TB, address, target string) *Relay {
	t.Helper()
	listener := testenv.Value(net.Listen("tcp", address))(t)
	r := &Relay{Address: listener.Addr().String(), target: target, listener: listener, open: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.Cut()
		running.Wait()
	})
	return r
}

// To passes new connections on to another address. Those that are open stay with the one of before.
func (r *Relay) To(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Cut breaks all connections; new ones are closed at once until Restore.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	r.closeAll()
}

// Break breaks all connections; new ones are let through.
func (r *Relay) Break() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeAll()
}

func (r *Relay) closeAll() {
	for conn := range r.open {
		_ = conn.Close()
	}
}

// Restore ends what Cut began.
func (r *Relay) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = false
}

// Slow delays from now on what the target sends, as a long way does: what is sent later waits no longer. Zero ends that.
func (r *Relay) Slow(delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = delay
}

// Limit slows down from now on what the target sends on each connection, in bytes a second.
func (r *Relay) Limit(rate int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate = rate
}

func (r *Relay) pass(near net.Conn) {
	defer near.Close()
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer far.Close()
	if !r.enter(near, far) {
		return
	}
	defer r.leave(near, far)
	slow := r.startLate(near)
	splice(slow, far)
	<-slow.written
}

// splice passes on what either side sends, until one of them is closed.
func splice(near, far net.Conn) {
	var directions sync.WaitGroup
	for _, d := range [][2]net.Conn{{near, far}, {far, near}} {
		directions.Go(func() {
			_, _ = io.Copy(d[0], d[1])
			_ = d[0].Close()
		})
	}
	directions.Wait()
}

func (r *Relay) enter(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		if !r.cut {
			r.open[conn] = true
		}
	}
	return !r.cut
}

func (r *Relay) leave(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		delete(r.open, conn)
	}
}
