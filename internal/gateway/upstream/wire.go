package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wire sends requests to one upstream, by HTTP/1.1. Each has a connection of its own until its
// response was read. net/http writes and reads the messages, except the request bodies.
//
// http.Transport reuses a connection without checking for data behind the last response. It also
// runs two more goroutines for each connection: an eighth of the gateway's cost of a manifest.
//
// It is safe for concurrent use.
type wire struct {
	address string      // host:port
	config  *tls.Config // nil: without TLS
	proxy   *url.URL    // nil: no proxy
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	shaking time.Duration     // time limit of a TLS handshake
	within  time.Duration     // from the connection to the head of the response
	most    int64             // bytes of that head, with those of interim responses (1xx)
	other   http.RoundTripper // used instead, where wire cannot be used
	private atomic.Bool       // the last connection, without a proxy, reached an address that is not public

	mu       sync.Mutex
	idle     []*wireConn // the last used one comes last
	sweeping bool        // a timer is running
	retired  bool        // no connection is kept until the next request
}

const (
	idleFor = 90 * time.Second
	// maxInterim is how many interim responses (1xx) may precede the final one, as for
	// http.Transport.
	maxInterim = 5
)

var (
	// errNoAnswer says that a connection ended before the first byte of a response.
	errNoAnswer = errors.New("the connection ended before an answer came")
	errHeadLong = errors.New("the head of the answer is too long")
	errInterims = errors.New("it says again and again that an answer will come")
	errLate     = errors.New("no answer came in time")
)

func newWire(base *url.URL, like *http.Transport) *wire {
	w := &wire{address: addressOf(base), dial: (&net.Dialer{Timeout: dialTimeout}).DialContext, shaking: like.TLSHandshakeTimeout, within: answerWithin, most: like.MaxResponseHeaderBytes}
	if base.Scheme == "https" {
		w.config = like.TLSClientConfig.Clone()
		w.config.ServerName = base.Hostname()
	}
	proxy, err := like.Proxy(&http.Request{URL: base})
	if w.proxy = proxy; err != nil || proxy != nil && (w.config == nil || proxy.Scheme != "http" && proxy.Scheme != "https") {
		once := like.Clone() // by SOCKS, or without TLS: no connection is used again
		once.DisableKeepAlives = true
		w.other = once
	}
	return w
}

// patience is the time limit of a response to a method, from the last progress of the body.
func (w *wire) patience(method string) time.Duration {
	if isSafe(method) {
		return w.within
	}
	return pushedWithin
}

func isSafe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// RoundTrip sends a request. If a reused connection ends before a response, the upstream closed it
// while it was idle. The request is then sent once more on a new connection. This requires a safe
// method (RFC 9110, section 9.2.2), or that no byte of its body was sent. The response's body must
// be closed. If it was read to its end before, its connection is reused.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.other != nil {
		return w.other.RoundTrip(r)
	}
	ctx, until := r.Context(), time.Now().Add(w.patience(r.Method))
	if c := w.take(); c != nil {
		response, err := c.ask(r, until)
		again := errors.Is(err, errNoAnswer) && (isSafe(r.Method) || hasBody(r)) && c.sending == nil
		if !again {
			return response, err
		}
	}
	c, err := w.connect(ctx, until)
	if err != nil {
		return nil, err
	}
	return c.ask(r, until)
}

func (w *wire) connect(ctx context.Context, until time.Time) (*wireConn, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	inner, err := w.open(ctx)
	if err != nil {
		return nil, err
	}
	c := &wireConn{records: &records{Conn: inner, whole: true, none: w.config == nil}, wire: w}
	c.Conn = c.records
	if raw, ok := inner.(syscall.Conn); ok { // else it is never quiet
		c.records.raw, _ = raw.SyscallConn()
	}
	if w.config != nil {
		if c.Conn, err = w.shake(ctx, c.records, w.config); err != nil {
			return nil, err
		}
	}
	remote, err := netip.ParseAddrPort(inner.RemoteAddr().String())
	w.private.Store(err == nil && !isPublic(remote.Addr()))
	c.reader, c.writer = bufio.NewReader(c), bufio.NewWriter(c.Conn)
	return c, nil
}

// isPrivate reports whether the upstream is at an address that is not public. The connection says
// so, on which the upstream proved its name. Its name server could say anything at any time, and
// open private addresses that way. Behind a proxy, only names are known.
func (w *wire) isPrivate() bool {
	if w.proxy != nil {
		host, _, _ := net.SplitHostPort(w.address)
		return !IsPublicHost(host)
	}
	return w.private.Load()
}

// shake starts TLS on a connection. If it fails, it closes the connection.
func (w *wire) shake(ctx context.Context, on net.Conn, config *tls.Config) (net.Conn, error) {
	conn := tls.Client(on, config)
	shaking, stop := context.WithTimeout(ctx, w.shaking)
	defer stop()
	if err := conn.HandshakeContext(shaking); err != nil {
		_ = on.Close()
		if shaking.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no TLS handshake in %s: %w", w.shaking, err)
		}
		return nil, err
	}
	return conn, nil
}

// open connects to the upstream, through the proxy if there is one.
func (w *wire) open(ctx context.Context) (net.Conn, error) {
	if w.proxy == nil {
		return w.dial(ctx, "tcp", w.address)
	}
	conn, err := w.dial(ctx, "tcp", addressOf(w.proxy))
	if err == nil && w.proxy.Scheme == "https" {
		config := w.config.Clone()
		config.ServerName = w.proxy.Hostname()
		conn, err = w.shake(ctx, conn, config)
	}
	if err != nil {
		return nil, fmt.Errorf("the proxy on the way: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = w.tunnel(conn)
	stop()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("the proxy on the way: %w", errors.Join(ctx.Err(), err))
	}
	return conn, nil
}

// tunnel makes the proxy connect to the upstream (RFC 9110, section 9.3.6).
func (w *wire) tunnel(conn net.Conn) error {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: w.address}, Host: w.address, Header: http.Header{}}
	if user := w.proxy.User; user != nil {
		password, _ := user.Password()
		r.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := r.Write(conn); err != nil {
		return err
	}
	reader := bufio.NewReader(io.LimitReader(conn, w.most))
	response, err := http.ReadResponse(reader, r) //nolint:bodyclose // what follows the head is the tunnel
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %d", response.StatusCode)
	case reader.Buffered() > 0: // the upstream says nothing before it is asked
		return errors.New("it says more than it was asked")
	}
	return nil
}

// take returns an idle connection without unread data, or nil.
func (w *wire) take() *wireConn {
	for {
		w.mu.Lock()
		w.retired = false
		last := len(w.idle) - 1
		if last < 0 {
			w.mu.Unlock()
			return nil
		}
		c := w.idle[last]
		w.idle = slices.Delete(w.idle, last, last+1)
		w.mu.Unlock()
		if time.Since(c.idleSince) < idleFor && c.isQuiet() {
			return c
		}
		_ = c.Close()
	}
}

// put keeps a connection whose response was read to its end.
func (w *wire) put(c *wireConn) {
	w.mu.Lock()
	keep := !w.retired && len(w.idle) < maxIdle
	if keep {
		c.idleSince = time.Now()
		w.idle = append(w.idle, c)
		if !w.sweeping {
			w.sweeping = true
			time.AfterFunc(idleFor, w.sweep)
		}
	}
	w.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
}

// sweep closes connections that were idle for long.
func (w *wire) sweep() {
	w.mu.Lock()
	old := 0
	for old < len(w.idle) && time.Since(w.idle[old].idleSince) >= idleFor {
		old++
	}
	ended := slices.Clone(w.idle[:old])
	w.idle = slices.Delete(w.idle, 0, old)
	if w.sweeping = len(w.idle) > 0; w.sweeping {
		time.AfterFunc(idleFor, w.sweep)
	}
	w.mu.Unlock()
	closeAll(ended)
}

// CloseIdleConnections closes idle connections. Connections in use are closed after their requests.
func (w *wire) CloseIdleConnections() {
	w.mu.Lock()
	ended := w.idle
	w.idle, w.retired = nil, true
	w.mu.Unlock()
	closeAll(ended)
}

func closeAll(all []*wireConn) {
	for _, c := range all {
		_ = c.Close()
	}
}

// wireConn is a connection for one request at a time.
type wireConn struct {
	net.Conn  // TLS, where there is some
	records   *records
	wire      *wire
	reader    *bufio.Reader // of Read below
	writer    *bufio.Writer // for heads
	left      int64         // that may be read now
	answered  bool          // something was read since the request
	sending   *sending      // the body of the request; nil: none was begun
	idleSince time.Time

	mu       sync.Mutex
	closed   bool // to bodies: an answer is there
	released bool // the answer was read, and the connection is its body's
}

// Read bounds and records the data of a response.
func (c *wireConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeadLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.answered = c.answered || n > 0
	return n, err
}

// isQuiet reports whether no data came since the last response or directly behind it. Such data
// would be taken for the next response.
func (c *wireConn) isQuiet() bool {
	return c.reader.Buffered() == 0 && c.records.isQuiet(c.Conn)
}

// ask makes one round trip. The connection then belongs to the response.
func (c *wireConn) ask(r *http.Request, until time.Time) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	c.left, c.answered, c.sending, c.closed, c.released = c.wire.most, false, nil, false, false
	_ = c.SetDeadline(until)
	response, err := c.exchange(r, until)
	if ctx.Err() != nil { // also if the upstream answers to the connection's end
		err = ctx.Err()
	}
	if err != nil {
		stop()
		_ = c.Close()
		return nil, err
	}
	c.mu.Lock()
	c.closed = true
	_ = c.SetDeadline(time.Time{})
	c.mu.Unlock()
	c.left = math.MaxInt64
	body := &wireBody{ReadCloser: response.Body, ctx: ctx, conn: c, stop: stop, open: response.ContentLength < 0, last: response.Close || response.StatusCode < http.StatusOK || hasBody(r) && c.sending == nil}
	if response.Body == http.NoBody {
		body.end(true)
		return response, nil
	}
	response.Body = body
	return response, nil
}

// exchange sends a request and returns its response, which may come before the end of the body, or
// instead of it. The body is sent when the upstream asks for it, or when the upstream sends nothing
// for continueWithin.
func (c *wireConn) exchange(r *http.Request, until time.Time) (*http.Response, error) {
	if err := c.sendHead(r); err != nil {
		return nil, c.failed(err)
	}
	for range maxInterim + 1 {
		if hasBody(r) && c.sending == nil {
			_ = c.SetReadDeadline(time.Now().Add(continueWithin))
			_, err := c.reader.Peek(1)
			_ = c.SetReadDeadline(until)
			if isTimeout(err) {
				c.send(r)
			}
		}
		response, err := http.ReadResponse(c.reader, r)
		switch {
		case err != nil:
			return nil, c.failed(err)
		case response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols:
			return response, nil
		case response.StatusCode == http.StatusContinue && hasBody(r) && c.sending == nil:
			c.send(r)
		}
	}
	return nil, errInterims
}

// failed returns the reason for a missing response.
func (c *wireConn) failed(err error) error {
	if c.sending != nil {
		select {
		case <-c.sending.done:
			if c.sending.err != nil {
				return c.sending.err
			}
		default:
		}
	}
	switch {
	case isTimeout(err):
		return errLate
	case c.answered:
		return err
	}
	return fmt.Errorf("%w: %w", errNoAnswer, err)
}

// wireBody gives its connection back when it was read to its end.
type wireBody struct {
	io.ReadCloser
	ctx   context.Context
	conn  *wireConn
	stop  func() bool // stops the function that closes the connection when ctx ends
	open  bool        // its length is not known
	last  bool        // the connection is not reused
	ended atomic.Bool
}

func (b *wireBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF) && !(b.open && b.ctx.Err() != nil): // else it may have ended because the connection did
		b.end(true)
	case err != nil:
		b.end(false)
		if b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	}
	return n, err
}

// Close may be called during Read. It does not read the rest, which may be long.
func (b *wireBody) Close() error {
	b.end(false)
	return nil
}

func (b *wireBody) end(whole bool) {
	if b.ended.Swap(true) {
		return
	}
	switch {
	case !b.stop() || !whole || b.last:
		_ = b.conn.Close()
	case b.conn.sending == nil:
		b.conn.wire.put(b.conn)
	default:
		b.conn.release()
	}
}
