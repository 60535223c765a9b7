package upstream

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// getter sends GET and HEAD to one upstream, by HTTP/1.1 over TLS, on the goroutine that
// asks. http.Transport has two more for each connection, and hands each request and each
// answer from one to the other: an eighth of what the gateway spends on a manifest. What
// is on the wire is written and read by net/http all the same.
//
// It is safe for concurrent use.
type getter struct {
	address string // host:port
	config  *tls.Config
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	shaking time.Duration // what a TLS handshake may take
	within  time.Duration // from the connection to the head of the answer
	most    int64         // bytes of that head, with those before it (1xx)

	mu       sync.Mutex
	idle     []*getterConn // the one that was used last is the last
	sweeping bool          // a timer runs
	retired  bool          // nothing is kept, until somebody asks again
}

const (
	idleFor = 90 * time.Second
	// maxInterim answers (1xx) may come before the one, as for http.Transport.
	maxInterim = 5
)

var (
	// errNoAnswer says that a connection ended before the first byte of an answer.
	errNoAnswer = errors.New("the connection ended before an answer came")
	errHeadLong = errors.New("the head of the answer is too long")
	errInterims = errors.New("it says again and again that an answer will come")
	errLate     = errors.New("no answer came in time")
)

// newGetter returns nil where http.Transport has to ask: without TLS, and through a proxy.
func newGetter(base *url.URL, like *http.Transport) *getter {
	if base.Scheme != "https" {
		return nil
	}
	if proxy, err := like.Proxy(&http.Request{URL: base}); err != nil || proxy != nil {
		return nil
	}
	config := like.TLSClientConfig.Clone()
	config.ServerName = base.Hostname()
	return &getter{
		address: net.JoinHostPort(base.Hostname(), cmp.Or(base.Port(), "443")), config: config, dial: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		shaking: like.TLSHandshakeTimeout, within: answerWithin, most: like.MaxResponseHeaderBytes,
	}
}

// RoundTrip sends a request without body. A connection that was used before and ends
// before an answer comes was closed by the upstream while nobody used it: the request is
// then sent once more, on a new one, for neither method changes anything (RFC 9110,
// section 9.2.2). The answer's body is to be closed; read to its end before, it leaves
// the connection to others.
func (g *getter) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, until := r.Context(), time.Now().Add(g.within)
	if c := g.take(); c != nil {
		response, err := c.ask(r, until)
		if !errors.Is(err, errNoAnswer) || ctx.Err() != nil {
			return response, err
		}
	}
	c, err := g.connect(ctx, until)
	if err != nil {
		return nil, err
	}
	return c.ask(r, until)
}

func (g *getter) connect(ctx context.Context, until time.Time) (*getterConn, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	inner, err := g.dial(ctx, "tcp", g.address)
	if err != nil {
		return nil, err
	}
	records := &records{Conn: inner}
	if records.raw, err = inner.(syscall.Conn).SyscallConn(); err != nil {
		_ = inner.Close()
		return nil, err
	}
	conn := tls.Client(records, g.config)
	shaking, stop := context.WithTimeout(ctx, g.shaking)
	defer stop()
	if err := conn.HandshakeContext(shaking); err != nil {
		_ = inner.Close()
		if shaking.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no TLS handshake in %s: %w", g.shaking, err)
		}
		return nil, err
	}
	c := &getterConn{Conn: conn, records: records, getter: g}
	c.reader, c.writer = bufio.NewReader(c), bufio.NewWriter(conn)
	return c, nil
}

// take returns a connection that nothing has come on since its last answer, or nil.
func (g *getter) take() *getterConn {
	for {
		g.mu.Lock()
		g.retired = false
		last := len(g.idle) - 1
		if last < 0 {
			g.mu.Unlock()
			return nil
		}
		c := g.idle[last]
		g.idle = slices.Delete(g.idle, last, last+1)
		g.mu.Unlock()
		if time.Since(c.idleSince) < idleFor && c.isQuiet() {
			return c
		}
		_ = c.Close()
	}
}

// put keeps a connection whose answer was read to its end.
func (g *getter) put(c *getterConn) {
	g.mu.Lock()
	keep := !g.retired && len(g.idle) < maxIdle
	if keep {
		c.idleSince = time.Now()
		g.idle = append(g.idle, c)
		if !g.sweeping {
			g.sweeping = true
			time.AfterFunc(idleFor, g.sweep)
		}
	}
	g.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
}

// sweep closes what nobody has used for long.
func (g *getter) sweep() {
	g.mu.Lock()
	old := 0
	for old < len(g.idle) && time.Since(g.idle[old].idleSince) >= idleFor {
		old++
	}
	ended := slices.Clone(g.idle[:old])
	g.idle = slices.Delete(g.idle, 0, old)
	if g.sweeping = len(g.idle) > 0; g.sweeping {
		time.AfterFunc(idleFor, g.sweep)
	}
	g.mu.Unlock()
	closeAll(ended)
}

// CloseIdleConnections closes what is idle, and has the connections closed that are in
// use now.
func (g *getter) CloseIdleConnections() {
	g.mu.Lock()
	ended := g.idle
	g.idle, g.retired = nil, true
	g.mu.Unlock()
	closeAll(ended)
}

func closeAll(all []*getterConn) {
	for _, c := range all {
		_ = c.Close()
	}
}

// getterConn is a connection for one request at a time.
type getterConn struct {
	*tls.Conn
	records   *records
	getter    *getter
	reader    *bufio.Reader // of Read below
	writer    *bufio.Writer
	left      int64 // that may be read now
	answered  bool  // something was read since the request
	idleSince time.Time
}

// Read bounds and notes what comes.
func (c *getterConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeadLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.answered = c.answered || n > 0
	return n, err
}

// isQuiet reports whether a connection is as its last answer has left it. Whatever came
// since, or stood behind that answer, would be taken for the next one.
func (c *getterConn) isQuiet() bool {
	return c.reader.Buffered() == 0 && c.records.isQuiet(c.Conn)
}

// ask is one round trip. The connection is then its answer's.
func (c *getterConn) ask(r *http.Request, until time.Time) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	_ = c.SetDeadline(until)
	response, err := c.exchange(r)
	if err != nil {
		stop()
		_ = c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	c.left = math.MaxInt64
	body := &getterBody{ReadCloser: response.Body, ctx: ctx, conn: c, stop: stop, last: response.Close || response.StatusCode < http.StatusOK}
	if response.Body == http.NoBody {
		body.end(true)
		return response, nil
	}
	response.Body = body
	return response, nil
}

func (c *getterConn) exchange(r *http.Request) (*http.Response, error) {
	c.left, c.answered = c.getter.most, false
	err := r.Write(c.writer)
	if err == nil {
		err = c.writer.Flush()
	}
	var response *http.Response
	for range maxInterim + 1 {
		if err == nil {
			response, err = http.ReadResponse(c.reader, r)
		}
		switch {
		case err == nil && (response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols):
			return response, nil
		case err == nil:
			continue
		case isTimeout(err):
			return nil, errLate
		case c.answered:
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return nil, errInterims
}

// getterBody gives its connection back when it was read to its end.
type getterBody struct {
	io.ReadCloser
	ctx   context.Context
	conn  *getterConn
	stop  func() bool // of what closes the connection when ctx ends
	last  bool        // nothing is asked on the connection after this
	ended atomic.Bool
}

func (b *getterBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(true)
	case err != nil:
		b.end(false)
		if b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	}
	return n, err
}

// Close may be called while Read is. It reads nothing more: the rest may be long.
func (b *getterBody) Close() error {
	b.end(false)
	return nil
}

func (b *getterBody) end(whole bool) {
	if b.ended.Swap(true) {
		return
	}
	if b.stop() && whole && !b.last {
		b.conn.getter.put(b.conn)
		return
	}
	_ = b.conn.Close()
}
