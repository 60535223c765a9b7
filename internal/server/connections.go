package server

import (
	"crypto/tls"
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/load"
	"github.com/pullpass/pullpass/internal/metrics"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// connectionBytes is what a connection costs in memory while nothing unusual is
	// sent on it: most of it is TLS.
	connectionBytes = 48 << 10
	// streamBytes is what a connection of the gateway costs while a body goes through it:
	// TLS to both sides, and as much garbage as the collector lets lie.
	streamBytes = 192 << 10
	// usualRequestBytes is how much of that a request is.
	usualRequestBytes = 8 << 10
	// restTimeout is how long what is left of a body may take when its request was
	// answered: net/http reads it, to use the connection again.
	restTimeout = 250 * time.Millisecond
	// assumedMemory is what there is while nobody says how much (GOMEMLIMIT).
	assumedMemory = 1 << 30
)

// connections bounds what the clients of a listener hold in memory, whatever they
// send and however slowly. Those that are too many wait in the kernel's queue, where
// they cost nothing of ours, and one address can have half of them alone. What is
// larger than usual has a bound of its own, in bytes. It is safe for concurrent use.
type connections struct {
	places     chan struct{} // one element for each connection
	perAddress int
	maxExcess  int64
	excess     atomic.Int64 // bytes of heads that arrive and of requests that are open, beyond what is usual
	refused    atomic.Uint64
	isTrusted  func(netip.Addr) bool // proxies, behind which are many callers

	mu        sync.Mutex
	all       map[*boundedConn]bool
	byAddress map[netip.Prefix]int
}

// newConnections takes the memory for connections, and what one of them costs. What is
// larger than usual gets half as much as they.
func newConnections(memory, each int64, isTrusted func(netip.Addr) bool) *connections {
	most := max(memory/each, 2)
	return &connections{
		places: make(chan struct{}, most), perAddress: int(most / 2), maxExcess: memory / 2,
		isTrusted: isTrusted, all: map[*boundedConn]bool{}, byAddress: map[netip.Prefix]int{},
	}
}

// memoryLimit is what the process may use.
func memoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return assumedMemory
}

// listener returns inner with the bounds. drain is how long its connections may go
// on once it is closed.
func (l *connections) listener(inner net.Listener, drain time.Duration) net.Listener {
	return &boundedListener{Listener: inner, connections: l, drain: drain, closed: make(chan struct{})}
}

type boundedListener struct {
	net.Listener
	connections *connections
	drain       time.Duration
	close       sync.Once
	closed      chan struct{}
}

// Accept waits until there is a place.
func (b *boundedListener) Accept() (net.Conn, error) {
	l := b.connections
	for {
		select {
		case l.places <- struct{}{}:
		case <-b.closed:
			return nil, net.ErrClosed
		}
		inner, err := b.Listener.Accept()
		if err != nil {
			<-l.places
			return nil, err
		}
		if c := l.enter(inner); c != nil {
			return c, nil
		}
		l.refused.Add(1)
		_ = inner.Close()
		<-l.places
	}
}

// Close also ends an Accept that waits for a place. Clients that do not read their
// answers must not keep the process from ending.
func (b *boundedListener) Close() error {
	b.close.Do(func() {
		close(b.closed)
		b.connections.mu.Lock()
		defer b.connections.mu.Unlock()
		for c := range b.connections.all {
			_ = c.SetDeadline(time.Now().Add(b.drain))
		}
	})
	return b.Listener.Close()
}

// enter counts a connection of an address, or returns nil if that has too many.
func (l *connections) enter(inner net.Conn) *boundedConn {
	var remote netip.Addr
	if tcp, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
		remote = tcp.AddrPort().Addr()
	}
	c := &boundedConn{Conn: inner, connections: l, from: exchange.Network(remote)}
	trusted := l.isTrusted(remote.Unmap().WithZone(""))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !trusted && l.byAddress[c.from] >= l.perAddress {
		return nil
	}
	l.byAddress[c.from]++
	l.all[c] = true
	return c
}

func (l *connections) leave(c *boundedConn) {
	l.mu.Lock()
	delete(l.all, c)
	if l.byAddress[c.from]--; l.byAddress[c.from] == 0 {
		delete(l.byAddress, c.from)
	}
	l.mu.Unlock()
	<-l.places
}

// open returns how many there are: one more place is held for the next.
func (l *connections) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// counts are for metrics.
func (l *connections) counts() metrics.ConnectionCounts {
	return metrics.ConnectionCounts{Open: l.open(), Most: cap(l.places), Refused: l.refused.Load()}
}

// take takes bytes beyond what is usual, if there are so many.
func (l *connections) take(bytes int64) bool {
	if l.excess.Add(bytes) <= l.maxExcess || bytes == 0 {
		return true
	}
	l.excess.Add(-bytes)
	l.refused.Add(1)
	return false
}

// errTooMuchAtOnce ends a connection. net/http does not answer it.
var errTooMuchAtOnce = errors.New("too many large requests at once")

// boundedConn is a connection that gives its place back.
type boundedConn struct {
	net.Conn
	connections *connections
	from        netip.Prefix
	left        sync.Once

	mu   sync.Mutex
	open bool  // a request is: its handler counts it
	head int64 // bytes that came while none was
}

// Read counts the head of a request while it arrives.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open {
		return n, err
	}
	before := max(c.head-usualRequestBytes, 0)
	if !c.connections.take(max(c.head+int64(n)-usualRequestBytes, 0) - before) {
		return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: errTooMuchAtOnce}
	}
	c.head += int64(n)
	return n, err
}

// Close may be called several times.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.left.Do(func() {
		c.arrived(true)
		c.connections.leave(c)
	})
	return err
}

// CloseWrite is how net/http says without TLS that an answer was the last one.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// arrived forgets the head of a request. open is whether a request is.
func (c *boundedConn) arrived(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections.excess.Add(-max(c.head-usualRequestBytes, 0))
	c.head, c.open = 0, open
}

// connState is for http.Server.
func (l *connections) connState(conn net.Conn, state http.ConnState) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	if c, ok := conn.(*boundedConn); ok && (state == http.StateActive || state == http.StateIdle) {
		c.arrived(state == http.StateActive)
	}
}

// handler counts what requests hold, and makes answers the last ones of their
// connections when many are open: those that are idle must not keep others out.
func (l *connections) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.open() > cap(l.places)/4 {
			w.Header().Set("Connection", "close")
		}
		bytes := max(load.RequestBytes(r)-usualRequestBytes, 0)
		if r.ProtoMajor > 1 { // the connection has others
			bytes += 2 * usualRequestBytes
		}
		if !l.take(bytes) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			w.Header().Set("Connection", "close")
			registryauth.WriteFailure(w, "", registryauth.Failure{
				Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE",
				Message: "too many large requests at once; try again", RetryAfter: time.Second,
			})
			return
		}
		defer l.excess.Add(-bytes)
		next.ServeHTTP(w, r)
		if r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
		}
	})
}
