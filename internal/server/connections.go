package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/server/metrics"
)

const (
	// connectionBytes is the usual memory of a connection. Most of it is for TLS.
	connectionBytes = 48 << 10
	// streamBytes is the memory of a connection of the gateway during the transfer of a body: TLS
	// to both sides, and the garbage that the collector allows.
	streamBytes = 192 << 10
	// usualRequestBytes is the part of that for a request.
	usualRequestBytes = 8 << 10
	// smallRead is the most that is read at once during a handshake, and always where bodies are small. So
	// no more of a head that comes behind them can wait in the buffer of TLS.
	smallRead = 2 << 10
	// pipelined is the most of a head that can be buffered behind a request: a record of TLS, and the
	// buffer of net/http.
	pipelined = 20 << 10
	// headWeight is the memory for each byte of an arriving head: net/http keeps 80 to 100 bytes for a
	// header field, which can be as short as "ab:" and a newline. In a handshake, crypto/tls keeps up to
	// 16 for each: for names of protocols (ALPN), and for parts of certificates.
	headWeight = 20
	// usualHandshake is more than a client sends that has a certificate of one KiB, and maxHandshake more
	// than one does whose certificates have maxPresentedBytes.
	usualHandshake = 3 << 10
	maxHandshake   = 16 << 10
	// maxUndelivered is the most that is read of an open request without a byte of its body: a record of
	// TLS, and what can be read at once behind it. crypto/tls keeps up to 256 KiB of a message that it does
	// not pass on.
	maxUndelivered      = 64 << 10
	maxUndeliveredSmall = pipelined + 2*smallRead
	// restTimeout is how long the rest of a body may take after the response: net/http reads it to
	// reuse the connection.
	restTimeout = 250 * time.Millisecond
	// turnTime is how long a connection keeps its place for its first request, if others have as few
	// connections, and for the last bytes of a response.
	turnTime = 500 * time.Millisecond
	// assumedMemory is the memory of a process without a limit (GOMEMLIMIT).
	assumedMemory = 1 << 30
)

// connections bounds the memory that the clients of a listener hold, also for large and slow
// requests. One address alone can have half of the connections. A connection without a whole
// request is closed in favor of a new one, first of all an answered one that stays open. If all have
// a whole request, new connections wait in the kernel's queue, where they cost this process nothing.
// Larger requests have their own bound, in bytes. It is safe for concurrent use.
type connections struct {
	most       int
	perAddress int
	maxExcess  int64
	excess     atomic.Int64 // memory of arriving heads and open requests, beyond the usual size; written under mu
	encrypted  bool         // each connection begins with a handshake
	smallReads bool         // bodies are small
	refused    atomic.Uint64
	isTrusted  func(netip.Addr) bool // proxies, which have many clients
	changed    chan struct{}         // holds one value: there may be a place now

	mu        sync.Mutex
	all       map[*boundedConn]bool
	addresses map[netip.Prefix]*address
	ends      time.Time // of the open connections; zero while the listener is open
}

// address counts the connections of one address.
type address struct {
	open, arriving int
	excess         int64 // as in connections
}

// outweighs reports whether the address, with a new connection, would have more connections than
// the other. A client that connects repeatedly must not end the handshakes of others.
func (a *address) outweighs(other *address) bool {
	if a == nil || a == other {
		return false
	}
	return a.arriving+1 > other.arriving || a.arriving+1 == other.arriving && a.open+1 > other.open
}

// newConnections takes the memory for connections and the memory of one connection. Larger requests
// get half as much in addition.
func newConnections(memory, each int64, isTrusted func(netip.Addr) bool) *connections {
	most := int(max(memory/each, 2))
	return &connections{
		most: most, perAddress: most / 2, maxExcess: memory / 2, smallReads: each == connectionBytes,
		isTrusted: isTrusted, changed: make(chan struct{}, 1), all: map[*boundedConn]bool{}, addresses: map[netip.Prefix]*address{},
	}
}

// memoryLimit returns the memory that the process may use.
func memoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	return assumedMemory
}

func (l *connections) maxUndelivered() int64 {
	if l.smallReads {
		return maxUndeliveredSmall
	}
	return maxUndelivered
}

// listener returns inner with the bounds. drain is how long its connections may continue after it
// is closed.
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

// Accept returns the next connection as soon as it has a place.
func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		inner, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := b.connections.newConn(inner); b.place(c) {
			return c, nil
		}
	}
}

// place finds a place for a connection, or closes it.
func (b *boundedListener) place(c *boundedConn) bool {
	l := b.connections
	for {
		entered, toClose := l.enter(c)
		switch {
		case entered:
			return true
		case toClose != nil:
			l.refused.Add(1)
			_ = toClose.Close()
			if toClose == c {
				return false
			}
			continue
		}
		select {
		case <-l.changed:
		case <-time.After(turnTime / 10): // another's may have ended
		case <-b.closed:
			_ = c.Close()
			return false
		}
	}
}

// Close also ends an Accept that waits for a place. Clients that do not read their responses must
// not keep the process running.
func (b *boundedListener) Close() error {
	b.close.Do(func() {
		close(b.closed)
		b.connections.mu.Lock()
		defer b.connections.mu.Unlock()
		b.connections.ends = time.Now().Add(b.drain)
		for c := range b.connections.all {
			c.endBy(b.connections.ends)
		}
	})
	return b.Listener.Close()
}

func (l *connections) newConn(inner net.Conn) *boundedConn {
	c := &boundedConn{Conn: inner, connections: l, handshake: l.encrypted}
	if tcp, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
		c.remote = tcp.AddrPort().Addr()
	}
	return c
}

// enter gives a connection a place. If there is none, toClose is the connection to close instead.
// It is c itself if its address has only whole requests, and nil if all connections have one or
// their turn.
func (l *connections) enter(c *boundedConn) (entered bool, toClose *boundedConn) {
	network, trusted := exchange.Network(c.remote), l.isTrusted(c.remote.Unmap().WithZone(""))
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.addresses[network]
	switch {
	case from != nil && from.open >= l.perAddress && !trusted:
		if toClose = l.oldestArriving(from); toClose == nil {
			toClose = c
		}
		return false, toClose
	case len(l.all) >= l.most:
		toClose = l.oldestArriving(nil)
		switch {
		case toClose == nil || toClose.idle:
		case !trusted && from.outweighs(toClose.from):
			toClose = c
		case toClose.from.arriving == 1 && time.Since(toClose.since) < turnTime:
			toClose = nil
		}
		return false, toClose
	case from == nil:
		from = &address{}
		l.addresses[network] = from
	}
	c.from, c.network, c.since = from, network, time.Now()
	from.open++
	from.arriving++
	l.all[c] = true
	if !l.ends.IsZero() { // accepted while the listener was closed
		c.endBy(l.ends)
	}
	return true, nil
}

// oldestArriving returns an answered connection of an address that stays open. If there is none, it
// returns the one that has been without a whole request for the longest time, or nil. Without an
// address, it chooses the address with the most such connections.
func (l *connections) oldestArriving(of *address) *boundedConn {
	var oldest *boundedConn
	now := time.Now()
	for c := range l.all {
		switch {
		case of != nil && c.from != of:
		case c.active && !c.closable.IsZero() && !c.closable.After(now):
			return c
		case !c.isArriving():
		case oldest == nil || c.from.arriving > oldest.from.arriving || c.from.arriving == oldest.from.arriving && c.since.Before(oldest.since):
			oldest = c
		}
	}
	return oldest
}

func (l *connections) leave(c *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
}

func (l *connections) remove(c *boundedConn) {
	if !l.all[c] {
		return
	}
	l.hold(c, -c.excess)
	delete(l.all, c)
	if c.isArriving() {
		c.from.arriving--
	}
	if c.from.open--; c.from.open == 0 {
		delete(l.addresses, c.network)
	}
	l.mayEnter()
}

// mayEnter lets the waiting connection look for a place.
func (l *connections) mayEnter() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// open returns the number of open connections.
func (l *connections) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// counts returns the numbers for metrics.
func (l *connections) counts() metrics.ConnectionCounts {
	return metrics.ConnectionCounts{Open: l.open(), Most: l.most, Refused: l.refused.Load()}
}

// take reserves bytes beyond the usual size, if they are available. As in fair.Share, an address can
// hold three times the free amount. An incomplete request is closed if its address holds more than
// twice as much as this one.
func (l *connections) take(c *boundedConn, bytes int64) bool {
	if bytes == 0 {
		return true
	}
	trusted := l.isTrusted(c.remote.Unmap().WithZone(""))
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.all[c] {
		held, free := c.from.excess+bytes, l.maxExcess-l.excess.Load()-bytes
		if free >= 0 && (trusted || held <= 3*free) {
			l.hold(c, bytes)
			return true
		}
		largest := l.largestArriving()
		if largest == nil || largest.from.excess <= 2*held {
			break
		}
		l.refused.Add(1)
		l.remove(largest)
		_ = largest.Conn.Close() // its reader calls Close
	}
	l.refused.Add(1)
	return false
}

// give returns bytes that were taken.
func (l *connections) give(c *boundedConn, bytes int64) {
	if bytes == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[c] {
		l.hold(c, -bytes)
	}
}

func (l *connections) hold(c *boundedConn, bytes int64) {
	c.excess += bytes
	c.from.excess += bytes
	l.excess.Add(bytes)
}

// largestArriving returns the connection with the most excess bytes that has no whole request, of
// the address with the most. It returns nil if there is none.
func (l *connections) largestArriving() *boundedConn {
	var largest *boundedConn
	for c := range l.all {
		if c.excess == 0 || !c.isArriving() {
			continue
		}
		if largest == nil || c.from.excess > largest.from.excess || c.from == largest.from && c.excess > largest.excess {
			largest = c
		}
	}
	return largest
}

// errTooMuchAtOnce ends a connection. net/http sends no response for it.
var errTooMuchAtOnce = errors.New("too many large requests at once")

var errUndelivered = errors.New("too much without a byte of the body")

var errLargeHandshake = fmt.Errorf("a handshake of more than %d KiB", maxHandshake>>10)

// boundedConn is a connection that gives its place back.
type boundedConn struct {
	net.Conn
	connections *connections
	remote      netip.Addr
	left        sync.Once

	// Of its place. Protected by connections.mu.
	from     *address
	network  netip.Prefix // key of from
	since    time.Time    // start of the time without a whole request
	active   bool         // a request's head has arrived, and its response is not sent
	running  bool         // its request's handler
	closable time.Time    // it has returned: when others get its place; zero: not yet
	idle     bool         // its requests were answered
	unread   bool         // the handler needs the body, which is still arriving
	excess   int64        // as in connections

	mu        sync.Mutex
	handshake bool  // it goes on
	shaken    int64 // bytes of it
	last      int   // bytes of the last Read
	// sinceResponse is 1 after a response, and 2 after a deadline that follows it without a Read.
	sinceResponse int
	open          bool  // a request is open, whose handler counts it, and whose body has not arrived
	undelivered   int64 // bytes that arrived since it is open, and since its body gave any
	head          int64 // memory of the bytes that arrived while none was open

	deadlines   sync.Mutex
	ends        time.Time // latest deadline; zero: no bound
	read, write time.Time // the requested deadlines
}

// isArriving reports whether there is no whole request on the connection.
func (c *boundedConn) isArriving() bool {
	return !c.active || !c.running && c.closable.IsZero() || c.unread
}

// note changes the state of the connection's requests.
func (c *boundedConn) note(change func()) {
	l := c.connections
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.all[c] {
		return // it has already given its place back
	}
	before := c.isArriving()
	change()
	switch now := c.isArriving(); {
	case before && !now:
		c.from.arriving--
	case now && !before:
		c.from.arriving++
		c.since = time.Now()
		l.mayEnter()
	}
}

// endBy ends the connection at a time, or at an earlier deadline. The end of the process does not
// give a stalled client more time.
func (c *boundedConn) endBy(at time.Time) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.ends = at
	_ = c.Conn.SetReadDeadline(c.bounded(c.read))
	_ = c.Conn.SetWriteDeadline(c.bounded(c.write))
}

func (c *boundedConn) bounded(t time.Time) time.Time {
	if !c.ends.IsZero() && (t.IsZero() || t.After(c.ends)) {
		return c.ends
	}
	return t
}

func (c *boundedConn) SetReadDeadline(t time.Time) error {
	c.beginHead(t)
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.read = t
	return c.Conn.SetReadDeadline(c.bounded(t))
}

func (c *boundedConn) SetWriteDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.write = t
	return c.Conn.SetWriteDeadline(c.bounded(t))
}

func (c *boundedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Read counts the handshake and the head of a request while they arrive. It ends a handshake that is larger
// than any client needs.
func (c *boundedConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	c.sinceResponse = 0
	if c.handshake || c.connections.smallReads {
		p = p[:min(len(p), smallRead)]
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = n
	counted := int64(n)
	if c.handshake {
		before := max(c.shaken, usualHandshake)
		c.shaken += counted
		counted = max(c.shaken-before, 0)
	}
	if c.shaken > maxHandshake {
		_ = c.Conn.Close()
		return 0, errLargeHandshake
	}
	if c.undelivered += int64(n); c.open && c.undelivered > c.connections.maxUndelivered() {
		return 0, errUndelivered // the response to the request is sent
	}
	if !c.open && !c.takeHead(counted*headWeight) {
		return 0, &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: errTooMuchAtOnce}
	}
	return n, err
}

// beginHead counts the beginning of a head that is buffered already, when net/http sets a deadline: none
// after a handshake; after a response that of an idle connection, and as soon as there are bytes, that
// of a head.
func (c *boundedConn) beginHead(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.handshake && deadline.IsZero():
		c.handshake = false
		c.reset()
		c.takeHead(int64(c.last) * headWeight)
	case c.sinceResponse == 2:
		c.sinceResponse = 0
		c.takeHead(pipelined * headWeight)
	case c.sinceResponse == 1:
		c.sinceResponse = 2
	}
}

// takeHead closes the connection if there is no memory: textproto ignores the error of its first read.
func (c *boundedConn) takeHead(memory int64) bool {
	before := max(c.head-usualRequestBytes, 0)
	if !c.connections.take(c, max(c.head+memory-usualRequestBytes, 0)-before) {
		_ = c.Conn.Close()
		return false
	}
	c.head += memory
	return true
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

// CloseWrite is called by net/http after the last response of a connection without TLS.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// arrived resets the count for the head of a request. open says whether a request is open.
func (c *boundedConn) arrived(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case open:
		c.reset()
		c.sinceResponse = 0
	case c.open && c.connections.smallReads: // net/http has read the rest of a body, and may have read a next head
		_ = c.Conn.Close()
	default:
		c.sinceResponse = 1
	}
	c.open, c.undelivered = open, 0
}

// delivered is called when the body gave something.
func (c *boundedConn) delivered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undelivered = 0
}

// bodyArrived counts what is read from now on as the next head: net/http reads on while a handler runs.
func (c *boundedConn) bodyArrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
}

func (c *boundedConn) reset() {
	c.connections.give(c, max(c.head-usualRequestBytes, 0))
	c.head = 0
}

// attach makes a server report the requests on its connections.
func (l *connections) attach(server *http.Server) {
	l.encrypted = server.TLSConfig != nil
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if c := boundedOf(conn); c != nil && (state == http.StateActive || state == http.StateIdle) {
			c.arrived(state == http.StateActive)
			c.note(func() { c.active, c.idle, c.closable = state == http.StateActive, state == http.StateIdle, time.Time{} })
		}
	}
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, boundedKey{}, boundedOf(conn))
	}
}

// boundedKey is the context key of a request's *boundedConn.
type boundedKey struct{}

func boundedOf(conn net.Conn) *boundedConn {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	c, _ := conn.(*boundedConn)
	return c
}

// wholeRequests is for requests that cannot be handled before their body has arrived. Until then,
// their connections count as connections without a whole request.
func wholeRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(boundedKey{}).(*boundedConn)
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}
		if r.ContentLength != 0 {
			body := &arrivingBody{r.Body, func() {}, sync.OnceFunc(func() { c.note(func() { c.unread = false }) })}
			defer body.arrived()
			r = r.WithContext(r.Context()) // net/http looks at its own Body
			r.Body = body
			c.note(func() { c.unread = true })
		}
		next.ServeHTTP(w, r)
	})
}

// arrivingBody reports when a part of the body, and when all of it has arrived.
type arrivingBody struct {
	io.ReadCloser
	delivered, arrived func()
}

func (b *arrivingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.delivered()
	}
	if errors.Is(err, io.EOF) {
		b.arrived()
	}
	return n, err
}

// begin counts a request whose handler starts. The returned function must be called at its end. read
// says whether the whole body was read: net/http waits for the rest of it, and only then closes the
// connection.
func (c *boundedConn) begin() (end func(read bool)) {
	c.note(func() { c.running, c.idle, c.closable = true, false, time.Time{} })
	return func(read bool) {
		c.note(func() {
			c.running, c.idle, c.closable = false, true, time.Now().Add(turnTime)
			if !read {
				c.closable = time.Now()
				c.connections.mayEnter()
			}
		})
	}
}

// handler counts the memory of requests. If many connections are open, it closes a connection after
// its response, because idle connections must not exclude new ones.
func (l *connections) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(boundedKey{}).(*boundedConn)
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}
		if l.open() > l.most/4 {
			w.Header().Set("Connection", "close")
		}
		var read atomic.Bool
		arrived := func() {
			read.Store(true)
			c.bodyArrived()
		}
		if r.Body == http.NoBody {
			arrived()
		} else {
			r = r.WithContext(r.Context()) // net/http looks at its own Body
			r.Body = &arrivingBody{r.Body, c.delivered, arrived}
		}
		end := c.begin()
		defer func() { end(read.Load()) }()
		bytes := load.HeadBytes(r)
		if !ofRegistry(r) { // which passes bodies on
			bytes += load.BodyBytes(r)
		}
		bytes = max(bytes-usualRequestBytes, 0)
		if !l.take(c, bytes) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			w.Header().Set("Connection", "close")
			registryauth.WriteFailure(w, "", registryauth.Failure{
				Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE",
				Message: "too many large requests at once; try again", RetryAfter: time.Second,
			})
			return
		}
		defer l.give(c, bytes)
		next.ServeHTTP(w, r)
		if r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout))
		}
	})
}
