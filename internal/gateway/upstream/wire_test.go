package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// peer is an upstream whose behavior on each connection is set by a test, byte by byte.
type peer struct {
	*wire
	base        *url.URL
	roots       *x509.CertPool
	connections atomic.Int64
}

// peerConn is one of its connections, seen from the upstream.
type peerConn struct {
	*tls.Conn
	reader *bufio.Reader
	number int64 // from 1
}

// request returns the next request, or nil at the end.
func (c *peerConn) request() *http.Request {
	r, err := http.ReadRequest(c.reader)
	if err != nil {
		return nil
	}
	return r
}

func (c *peerConn) send(text string) { _, _ = io.WriteString(c.Conn, text) }

// newPeer calls serve for each connection, which ends when serve returns.
func newPeer(t *testing.T, serve func(c *peerConn)) *peer {
	t.Helper()
	ca := pkitest.NewCA(t, nil)
	leaf := pkitest.NewCert(t, pkitest.ECKey(t), ca, func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} })
	listener := testkit.Listen(t)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	testkit.Must(t, err)
	p := &peer{base: &url.URL{Scheme: "https", Host: "localhost:" + port}, roots: ca.Pool()}
	p.wire = p.newWire()
	config := &tls.Config{Certificates: []tls.Certificate{leaf.TLS()}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			inner, err := listener.Accept()
			if err != nil {
				return
			}
			c := &peerConn{Conn: tls.Server(inner, config), number: p.connections.Add(1)}
			c.reader = bufio.NewReader(c)
			serving.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		p.CloseIdleConnections()
		_ = listener.Close()
		serving.Wait()
	})
	return p
}

func (p *peer) newWire() *wire {
	return newWire(p.base, &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }, MaxResponseHeaderBytes: 64 << 10, TLSHandshakeTimeout: time.Minute,
		TLSClientConfig: &tls.Config{RootCAs: p.roots, ClientSessionCache: tls.NewLRUClientSessionCache(maxIdle)},
	})
}

func (p *peer) request(ctx context.Context, method, path string) *http.Request {
	u := *p.base
	u.Path = path
	return (&http.Request{Method: method, URL: &u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
}

// get returns the status and body of a response, or the error.
func (p *peer) get(t *testing.T, method, path string) string {
	t.Helper()
	return p.sent(t, p.request(t.Context(), method, path))
}

func (p *peer) idleCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// age makes all idle connections old.
func (p *peer) age() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.idle {
		c.idleSince = c.idleSince.Add(-idleFor)
	}
}

// path sends a response with the path of its request and the number of the connection.
func (c *peerConn) path(r *http.Request) string {
	body := fmt.Sprintf("%s on %d", r.URL.Path, c.number)
	return "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

func serveFirst(answer string) func(*peerConn) {
	return func(c *peerConn) {
		for n := 0; ; n++ {
			r := c.request()
			switch {
			case r == nil:
				return
			case n == 0 && c.number == 1:
				c.send(answer)
			default:
				c.send(c.path(r))
			}
		}
	}
}

// A connection is reused only after a response with a defined end that was read to that end.
func TestWireReuse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ method, answer, first, second string }{
		"length":           {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", "200 body", "200 /b on 1"},
		"no body":          {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 ", "200 /b on 1"},
		"chunks":           {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Trailer: x\r\n\r\n", "200 body", "200 /b on 1"},
		"204":              {"GET", "HTTP/1.1 204 No Content\r\n\r\n", "204 ", "200 /b on 1"},
		"304":              {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", "304 ", "200 /b on 1"},
		"HEAD":             {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "200 ", "200 /b on 1"},
		"redirect":         {"GET", "HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\nContent-Length: 2\r\n\r\nto", "307 to", "200 /b on 1"},
		"interim":          {"GET", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", maxInterim) + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", "200 body", "200 /b on 1"},
		"nothing to send":  {"GET", goOn + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", "200 body", "200 /b on 1"},
		"to the end":       {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody", "", ""},
		"said to close":    {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", "200 body", "200 /b on 2"},
		"HTTP/1.0":         {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", "200 body", "200 /b on 2"},
		"another protocol": {"GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "101 ", "200 /b on 2"},
		"interim for ever": {"GET", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim+1) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", errInterims.Error(), "200 /b on 2"},
		"a long head":      {"GET", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", errHeadLong.Error(), "200 /b on 2"},
		"long interims":    {"GET", strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 20<<10)+"\r\n\r\n", 4) + "HTTP/1.1 200 OK\r\n\r\n", errHeadLong.Error(), "200 /b on 2"},
		"a long body":      {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 200000), "200 " + strings.Repeat("x", 200000), "200 /b on 1"},
		"no HTTP":          {"GET", "SSH-2.0-OpenSSH\r\n\r\n", `malformed HTTP response "SSH-2.0-OpenSSH"`, "200 /b on 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, serveFirst(test.answer))
			if test.first == "" { // ends with its connection
				p = newPeer(t, func(c *peerConn) {
					if c.request() != nil {
						c.send(test.answer)
					}
				})
				test.first, test.second = "200 body", "200 body"
			}
			for i, want := range []string{test.first, test.second} {
				if got := p.get(t, []string{test.method, "GET"}[i], "/"+string(rune('a'+i))); got != want {
					t.Errorf("%.100q, want %.100q", got, want)
				}
			}
		})
	}
}

// The unread rest of a body is never delivered.
func TestWireBodyNotRead(t *testing.T) {
	t.Parallel()
	p := newPeer(t, serveFirst("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n"+strings.Repeat("x", 20000)))
	response := testkit.Value(p.RoundTrip(p.request(t.Context(), "GET", "/a")))(t)
	testkit.Value(io.ReadFull(response.Body, make([]byte, 10000)))(t)
	testkit.Must(t, response.Body.Close())
	if p.idleCount() != 0 {
		t.Error("the connection is kept")
	}
	if got := p.get(t, "GET", "/b"); got != "200 /b on 2" {
		t.Error(got)
	}
}

// A response without a body is read to its end, also if only its head is looked at.
func TestWireNoBody(t *testing.T) {
	t.Parallel()
	p := newPeer(t, serveFirst("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"))
	response := testkit.Value(p.RoundTrip(p.request(t.Context(), "HEAD", "/a")))(t)
	testkit.Must(t, response.Body.Close())
	if got := p.get(t, "GET", "/b"); got != "200 /b on 1" {
		t.Error(got)
	}
}

// Unsolicited data is not a response: neither in the record of the previous response, nor later,
// nor partial.
func TestWireUnsolicited(t *testing.T) {
	t.Parallel()
	const other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
	for name, test := range map[string]struct {
		method, answer string
		later          func(c *peerConn)
	}{
		"behind a body": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody" + other, nil},
		// More than net/http reads at once, so that a piece stays in crypto/tls.
		"far behind":       {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + strings.Repeat("x", 9000) + other, nil},
		"a body for HEAD":  {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n" + other, nil},
		"a body of 204":    {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 45\r\n\r\n" + other, nil},
		"a body of 304":    {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 45\r\n\r\n" + other, nil},
		"behind chunks":    {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + other, nil},
		"one byte":         {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\n", nil},
		"later":            {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) { c.send(other) }},
		"a piece":          {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) { _, _ = c.NetConn().Write([]byte{23, 3, 3, 0, 100, 1, 2}) }},
		"less of a record": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) { _, _ = c.NetConn().Write([]byte{23}) }},
		"its end":          {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) { _ = c.Close() }},
		"its bare end":     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) { _ = c.NetConn().Close() }},
		"a reset": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", func(c *peerConn) {
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.NetConn().Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := make(chan struct{})
			p := newPeer(t, func(c *peerConn) {
				for n := 0; ; n++ {
					r := c.request()
					switch {
					case r == nil:
						return
					case c.number > 1 || n > 0:
						c.send(c.path(r))
						continue
					}
					c.send(test.answer)
					if test.later != nil {
						<-read
						test.later(c)
					}
				}
			})
			response := testkit.Value(p.RoundTrip(p.request(t.Context(), test.method, "/a")))(t)
			testkit.Value(io.Copy(io.Discard, response.Body))(t)
			close(read)
			if p.idleCount() != 1 {
				t.Fatalf("%d idle", p.idleCount())
			}
			testkit.Eventually(t, "what came is seen", func() bool { return !p.idle[0].isQuiet() })
			if got := p.get(t, "GET", "/b"); got != "200 /b on 2" {
				t.Error(got)
			}
		})
	}
}

// If a reused connection ends instead of a response, the request is sent again once: the upstream
// may have just closed it.
func TestWireAsksAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end   func(c *peerConn) // happens instead of the second response
		times int64             // how often end happens
		want  string
		asked int64
	}{
		"once":                 {func(*peerConn) {}, 1, "200 /b on 2", 3},
		"not twice":            {func(*peerConn) {}, 2, errNoAnswer.Error() + ": unexpected EOF", 3},
		"not behind a byte":    {func(c *peerConn) { c.send("H") }, 1, `malformed HTTP response "H"`, 2},
		"not behind a head":    {func(c *peerConn) { c.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody") }, 1, "unexpected EOF", 2},
		"not behind a promise": {func(c *peerConn) { c.send("HTTP/1.1 103 Early Hints\r\n\r\n") }, 1, "unexpected EOF", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			p := newPeer(t, func(c *peerConn) {
				for r := c.request(); r != nil; r = c.request() {
					if n := asked.Add(1); n > 1 && n <= 1+test.times {
						test.end(c)
						return
					}
					c.send(c.path(r))
				}
			})
			if got := p.get(t, "GET", "/a"); got != "200 /a on 1" {
				t.Error(got)
			}
			if got := p.get(t, "GET", "/b"); got != test.want || asked.Load() != test.asked {
				t.Errorf("%s, want %s; asked %d times", got, test.want, asked.Load())
			}
		})
	}
	t.Run("not on a new one", func(t *testing.T) {
		t.Parallel()
		p := newPeer(t, func(c *peerConn) { c.request() })
		if got := p.get(t, "GET", "/a"); got != errNoAnswer.Error()+": unexpected EOF" || p.connections.Load() != 1 {
			t.Errorf("%s; %d connections", got, p.connections.Load())
		}
	})
}

// A canceled request ends its connection, before a response and during it.
func TestWireCanceled(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause")
	for name, head := range map[string]string{"before the answer": "", "in the answer": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, ended := make(chan struct{}), make(chan struct{})
			p := newPeer(t, func(c *peerConn) {
				if c.request() != nil {
					c.send(head)
					close(asked)
					c.request()
					close(ended)
				}
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			var response *http.Response
			var err error
			if head == "" {
				go func() { <-asked; cancel(cause) }()
				_, err = p.RoundTrip(p.request(ctx, "GET", "/a"))
				if err != ctx.Err() {
					t.Error(err)
				}
			} else {
				response, err = p.RoundTrip(p.request(ctx, "GET", "/a"))
				testkit.Must(t, err)
				go func() { <-asked; cancel(cause) }()
				if _, err = io.ReadAll(response.Body); err != cause {
					t.Error(err)
				}
			}
			<-ended
			if p.idleCount() != 0 || p.connections.Load() != 1 {
				t.Errorf("%d idle, %d connections", p.idleCount(), p.connections.Load())
			}
		})
	}
	t.Run("when it was read", func(t *testing.T) {
		t.Parallel()
		p := newPeer(t, serveFirst("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"))
		ctx, cancel := context.WithCancel(t.Context())
		response := testkit.Value(p.RoundTrip(p.request(ctx, "GET", "/a")))(t)
		testkit.Value(io.ReadAll(response.Body))(t)
		cancel()
		testkit.Must(t, response.Body.Close())
		if got := p.get(t, "GET", "/b"); got != "200 /b on 1" {
			t.Error(got)
		}
	})
}

// The time until a response begins is limited, and that of its body is not.
func TestWireWaits(t *testing.T) {
	t.Parallel()
	t.Run("for an answer", func(t *testing.T) {
		t.Parallel()
		p := newPeer(t, func(c *peerConn) { c.request(); c.request() })
		p.within = 500 * time.Millisecond
		if got := p.get(t, "GET", "/a"); got != errLate.Error() && !strings.Contains(got, "deadline") || p.connections.Load() > 1 {
			t.Errorf("%s; %d connections", got, p.connections.Load())
		}
	})
	t.Run("for a handshake", func(t *testing.T) {
		t.Parallel()
		listener := testkit.Listen(t) // it accepts connections and sends nothing
		p := &peer{base: &url.URL{Scheme: "https", Host: listener.Addr().String()}}
		c, err := New(Config{Name: "a", URL: p.base.String()})
		testkit.Must(t, err)
		c.wants.Store(&learned{})
		if p.wire = c.wire; p.shaking != dialTimeout {
			t.Errorf("a handshake may take %s", p.shaking)
		}
		p.shaking = 100 * time.Millisecond
		_, err = c.Do(p.request(t.Context(), "GET", "/a"), Need{})
		var failed *Error
		if !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || !strings.Contains(err.Error(), "no TLS handshake in 100ms") {
			t.Error(err)
		}
		p.shaking, p.within = time.Minute, 100*time.Millisecond
		if _, err := p.RoundTrip(p.request(t.Context(), "GET", "/a")); !isTimeout(err) || strings.Contains(err.Error(), "handshake") {
			t.Error(err)
		}
		testkit.Must(t, listener.Close())
	})
	t.Run("for a body", func(t *testing.T) {
		t.Parallel()
		p := newPeer(t, serveFirst("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"))
		var c *bounded
		p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			inner, err := (&net.Dialer{}).DialContext(ctx, network, address)
			c = &bounded{TCPConn: inner.(*net.TCPConn)}
			return c, err
		}
		began := time.Now()
		response := testkit.Value(p.RoundTrip(p.request(t.Context(), "GET", "/a")))(t)
		if n := len(c.until); n < 2 || c.until[n-2].Before(began.Add(p.within)) || !c.until[n-1].IsZero() {
			t.Errorf("limits: %v", c.until)
		}
		testkit.Must(t, response.Body.Close())
	})
}

// bounded records the deadlines of a connection.
type bounded struct {
	*net.TCPConn
	until []time.Time
}

func (c *bounded) SetDeadline(until time.Time) error {
	c.until = append(c.until, until)
	return c.TCPConn.SetDeadline(until)
}

// Up to the limit, idle connections stay open for their time. Afterwards none stays open.
func TestWireIdle(t *testing.T) {
	t.Parallel()
	var arrived sync.WaitGroup
	arrived.Add(maxIdle + 1)
	var ended atomic.Int64
	p := newPeer(t, func(c *peerConn) {
		defer ended.Add(1)
		for first := true; ; first = false {
			r := c.request()
			if r == nil {
				return
			}
			if first && c.number <= maxIdle+1 {
				arrived.Done()
				arrived.Wait()
			}
			c.send(c.path(r))
		}
	})
	var all sync.WaitGroup
	for range maxIdle + 1 {
		all.Go(func() { p.get(t, "GET", "/a") })
	}
	all.Wait()
	if n := p.idleCount(); n != maxIdle {
		t.Errorf("%d idle", n)
	}
	testkit.Eventually(t, "one too many is closed", func() bool { return ended.Load() == 1 })
	p.age()
	if got := p.get(t, "GET", "/b"); got != "200 /b on 66" {
		t.Error(got)
	}
	if p.idleCount() != 1 {
		t.Errorf("%d idle: the old ones were not given up", p.idleCount())
	}
	p.sweep()
	if p.idleCount() != 1 {
		t.Error("a young one was swept away")
	}
	p.age()
	p.sweep()
	testkit.Eventually(t, "all are closed", func() bool { return ended.Load() == maxIdle+2 })

	p.get(t, "GET", "/c")
	response := testkit.Value(p.RoundTrip(p.request(t.Context(), "GET", "/d")))(t)
	p.CloseIdleConnections()
	testkit.Value(io.ReadAll(response.Body))(t)
	if p.idleCount() != 0 {
		t.Error("what was in use is kept")
	}
	testkit.Eventually(t, "it is closed", func() bool { return ended.Load() == maxIdle+3 })
	p.get(t, "GET", "/e")
	if p.idleCount() != 1 {
		t.Error("what is asked after that is not kept")
	}
}

// Sessions are resumed, and only the upstream's own certificate is accepted.
func TestWireTLS(t *testing.T) {
	t.Parallel()
	resumed := make(chan bool, 2)
	p := newPeer(t, func(c *peerConn) {
		if r := c.request(); r != nil {
			resumed <- c.ConnectionState().DidResume
			c.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
	})
	p.get(t, "GET", "/a")
	p.get(t, "GET", "/b")
	if <-resumed || !<-resumed {
		t.Error("the session was not resumed")
	}
	stranger := pkitest.NewCA(t, nil)
	for name, change := range map[string]func(){
		"another CA":   func() { p.roots = stranger.Pool() },
		"another name": func() { p.base.Host = strings.Replace(p.base.Host, "localhost", "127.0.0.1", 1) },
	} {
		before := *p.base
		roots := p.roots
		change()
		p.wire = p.newWire()
		var untrusted *tls.CertificateVerificationError
		if _, err := p.RoundTrip(p.request(t.Context(), "GET", "/a")); !errors.As(err, &untrusted) || strings.Contains(err.Error(), "no TLS handshake in") {
			t.Errorf("%s: %v", name, err)
		}
		*p.base, p.roots = before, roots
	}
}

// Concurrent requests each get their own response.
func TestWireTogether(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(c *peerConn) {
		for n := c.number; ; n++ {
			r := c.request()
			switch {
			case r == nil:
				return
			case n%7 == 0: // at once, while the next request may be in progress
				c.send(c.path(r))
				return
			case n%5 == 0:
				c.send(c.path(r) + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
			default:
				c.send(c.path(r))
			}
		}
	})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				path := fmt.Sprintf("/%d/%d", i, j)
				ctx, cancel := context.WithCancel(t.Context())
				response, err := p.RoundTrip(p.request(ctx, "GET", path))
				if err != nil {
					t.Error(err)
					cancel()
					continue
				}
				switch j % 3 {
				case 0: // either side ends it first
					go func() { _ = response.Body.Close() }()
				case 1:
					go cancel()
				}
				body, err := io.ReadAll(response.Body)
				if err == nil && !strings.HasPrefix(string(body), path+" on ") || err != nil && j%3 == 2 {
					t.Errorf("%s: %q, %v", path, body, err)
				}
				_ = response.Body.Close()
				cancel()
			}
		})
	}
	all.Wait()
}

// If only http.Transport can reach an upstream, each request has a new connection.
func TestWireOtherWays(t *testing.T) {
	t.Parallel()
	through := func(proxy string) func(*http.Request) (*url.URL, error) {
		return func(*http.Request) (*url.URL, error) {
			if proxy == "" {
				return nil, nil
			}
			return url.Parse(proxy)
		}
	}
	for name, test := range map[string]struct {
		url, address string
		proxy        func(*http.Request) (*url.URL, error)
		other        bool
	}{
		"https":          {"https://registry.example.com", "registry.example.com:443", through(""), false},
		"a port":         {"https://[::1]:8443", "[::1]:8443", through(""), false},
		"plain":          {"http://registry.example.com", "registry.example.com:80", through(""), false},
		"a proxy":        {"https://registry.example.com", "registry.example.com:443", through("http://proxy"), false},
		"with TLS":       {"https://registry.example.com", "registry.example.com:443", through("https://proxy"), false},
		"SOCKS":          {"https://registry.example.com", "registry.example.com:443", through("socks5://proxy"), true},
		"plain, a proxy": {"http://registry.example.com", "registry.example.com:80", through("http://proxy"), true},
		"a fault":        {"https://registry.example.com", "registry.example.com:443", func(*http.Request) (*url.URL, error) { return nil, errors.New("x") }, true},
	} {
		base := testkit.Value(url.Parse(test.url))(t)
		w := newWire(base, &http.Transport{Proxy: test.proxy, TLSClientConfig: &tls.Config{}})
		other, _ := w.other.(*http.Transport)
		if w.address != test.address || (other != nil) != test.other || other != nil && !other.DisableKeepAlives {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// All requests of a client use wire. A request with a body first sends Expect: 100-continue.
func TestWireIsForAll(t *testing.T) {
	t.Parallel()
	expects := make(chan string, 10)
	p := newPeer(t, func(c *peerConn) {
		for r := c.request(); r != nil; r = c.request() {
			expects <- r.Method + " " + r.Header.Get("Expect")
			if r.ContentLength > 0 {
				c.send("HTTP/1.1 100 Continue\r\n\r\n")
			}
			_, _ = io.Copy(io.Discard, r.Body)
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	client := p.client(t)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		for _, body := range []string{"", "body"} {
			r := p.request(t.Context(), method, "/v2/")
			if body != "" {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
			}
			response := testkit.Value(client.Do(r, Need{}))(t)
			Discard(response)
			want := method + " "
			if body != "" {
				want += "100-continue"
			}
			if got := <-expects; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
}

// client returns a Client of the peer, which requires no credential.
func (p *peer) client(t *testing.T) *Client {
	t.Helper()
	c := testkit.Value(New(Config{Name: "a", URL: p.base.String()}))(t)
	c.wire = p.wire
	c.wants.Store(&learned{})
	return c
}

// Errors are reported like those of other requests. A canceled request is not a failure of the
// upstream.
func TestWireOfAClient(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	p := newPeer(t, func(c *peerConn) {
		for r := c.request(); r != nil; r = c.request() {
			if r.URL.Path == "/v2/" {
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			asked <- struct{}{}
		}
	})
	c := p.client(t)
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-asked; leave() }()
	if _, err := c.Do(p.request(ctx, "GET", "/silent"), Need{}); err != context.Canceled || c.Status().Failure != "" {
		t.Errorf("%v; %+v", err, c.Status())
	}

	running, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.Run(running); close(ended) }()
	testkit.Eventually(t, "it was asked", func() bool { return p.idleCount() == 1 })
	stop()
	<-ended
	if p.idleCount() != 0 {
		t.Error("connections stay open")
	}

	p.get(t, "GET", "/v2/") // the time does not include a handshake
	p.within = 2 * time.Second
	_, err := c.Do(p.request(t.Context(), "GET", "/silent"), Need{})
	var failed *Error
	if !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || failed.Message != "it did not answer in 2s" {
		t.Error(err)
	}
}

// Whether an answer has a length, and an answer that begins with a 100 that no body waits for.
func TestWireOpenAnswers(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(c *peerConn) {
		for r := c.request(); r != nil; r = c.request() {
			c.send(map[string]string{
				"/chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n",
				"/length": goOn + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext",
			}[r.URL.Path])
		}
	})
	for path, want := range map[string]bool{"/chunks": true, "/length": false} {
		response := testkit.Value(p.RoundTrip(p.request(t.Context(), http.MethodGet, path)))(t)
		if body := response.Body.(*wireBody); body.open != want || string(testkit.Value(io.ReadAll(body))(t)) != "text" {
			t.Errorf("%s: open %t", path, body.open)
		}
		testkit.Must(t, response.Body.Close())
	}
}

// An upstream that sees its connection end may end its answer as if that were all.
func TestAnswerThatEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the client left")
	cancel(left)
	for name, test := range map[string]struct {
		ctx  context.Context
		open bool
		want error
	}{
		"no length, given up": {ended, true, left},
		"no length":           {t.Context(), true, io.EOF},
		"a length":            {ended, false, io.EOF}, // all of it came
	} {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = there.Close() })
		body := &wireBody{ReadCloser: http.NoBody, ctx: test.ctx, conn: &wireConn{Conn: here}, stop: func() bool { return true }, open: test.open, last: true}
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
