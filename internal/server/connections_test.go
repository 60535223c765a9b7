package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// bounded is a server as it is run, with eight places.
type bounded struct {
	*connections
	server  *http.Server
	address string
}

func startBounded(t *testing.T, drain time.Duration, handler http.HandlerFunc) bounded {
	t.Helper()
	c := newConnections(8*connectionBytes, connectionBytes, func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.9") })
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := newHTTPServer(c.handler(wholeRequests(handler)), nil, slog.New(slog.DiscardHandler))
	c.attach(server)
	server.ReadTimeout, server.ReadHeaderTimeout = 0, 0 // so that nothing else ends a connection
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(c.listener(listener, drain)) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		testkit.Eventually(t, "all is given back", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.all) == 0 && len(c.addresses) == 0 && c.excess.Load() == 0
		})
	})
	return bounded{c, server, listener.Addr().String()}
}

// startSlow starts a server whose requests for /slow are answered when release is sent to, or closed.
func startSlow(t *testing.T) (b bounded, release chan bool) {
	t.Helper()
	release = make(chan bool)
	return startBounded(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
	}), release
}

// from connects from an address, and sends.
func (b bounded) from(t *testing.T, address, text string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c := testkit.Value(dialer.Dial("tcp", b.address))(t)
	t.Cleanup(func() { c.Close() })
	testkit.Must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, _ = io.WriteString(c, text) // it may be closed already
	return c
}

// status of the next answer; 0: the connection was closed.
func status(t *testing.T, c net.Conn) int {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("no answer, and not closed")
	}
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

const (
	getRequest  = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	slowRequest = "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
)

// One address gets half of the places for requests, except proxies. A connection without a place
// waits.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b, release := startSlow(t)
	var open []net.Conn
	for range 4 {
		open = append(open, b.from(t, "127.0.0.1", slowRequest))
	}
	testkit.Eventually(t, "four requests are open", func() bool { return b.requests() == 4 })
	if s := status(t, b.from(t, "127.0.0.1", getRequest)); s != 0 || b.refused.Load() != 1 {
		t.Errorf("status %d for one too many, %d refused", s, b.refused.Load())
	}
	if s := status(t, b.from(t, "127.0.0.2", getRequest)); s != http.StatusOK {
		t.Errorf("status %d for another address", s)
	}
	testkit.Eventually(t, "it has ended", func() bool { return b.open() == 4 })
	release <- true
	testkit.Eventually(t, "a place is free", func() bool { return b.requests() == 3 })
	for i := range 5 { // more than an address may have
		open = append(open, b.from(t, "127.0.0.9", slowRequest))
		testkit.Eventually(t, "it has a place", func() bool { return b.requests() == i+4 })
	}
	waiting := b.from(t, "127.0.0.2", getRequest)
	release <- true
	if s := status(t, waiting); s != http.StatusOK {
		t.Errorf("status %d for one that waited", s)
	}
	close(release)
	for _, c := range open {
		if s := status(t, c); s != http.StatusOK {
			t.Errorf("status %d for one that was open", s)
		}
	}
}

// All places are taken. An address with many requests reconnects, which does not end the handshake
// of a different address.
func TestManyConnectionsEndNoHandshake(t *testing.T) {
	t.Parallel()
	b, release := startSlow(t)
	defer close(release)
	for range 3 {
		b.from(t, "127.0.0.1", slowRequest)
	}
	for range 4 {
		b.from(t, "127.0.0.9", slowRequest)
	}
	testkit.Eventually(t, "seven requests are open", func() bool { return b.requests() == 7 })
	handshake := b.from(t, "127.0.0.2", "GET / ")
	testkit.Eventually(t, "it has the last place", func() bool { return b.open() == 8 })
	if s := status(t, b.from(t, "127.0.0.1", getRequest)); s != 0 || b.refused.Load() != 1 {
		t.Errorf("status %d for the one that comes, %d refused", s, b.refused.Load())
	}
	testkit.Value(io.WriteString(handshake, strings.TrimPrefix(getRequest, "GET / ")))(t)
	if s := status(t, handshake); s != http.StatusOK {
		t.Errorf("status %d for the one that had begun", s)
	}
}

// A connection that is idle gives its place, too.
func TestIdleConnectionsGiveTheirPlaces(t *testing.T) {
	t.Parallel()
	b, release := startSlow(t)
	idle := b.from(t, "127.0.0.1", getRequest)
	if s := status(t, idle); s != http.StatusOK {
		t.Errorf("status %d", s)
	}
	testkit.Eventually(t, "one that waits would be told", func() bool { return len(b.changed) == 1 })
	for range 7 {
		b.from(t, "127.0.0.9", slowRequest)
	}
	testkit.Eventually(t, "all others have requests", func() bool { return b.open() == 8 && b.requests() == 7 })
	if s := status(t, b.from(t, "127.0.0.2", getRequest)); s != http.StatusOK || b.refused.Load() != 1 {
		t.Errorf("status %d, %d closed", s, b.refused.Load())
	}
	if s := status(t, idle); s != 0 {
		t.Errorf("the idle one is answered %d", s)
	}
	close(release)
}

// A client of the admin listener has few connections, whatever it opens, and others are answered.
func TestAdminConnections(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveAdmin(ctx, http.NotFoundHandler(), listener, slog.New(slog.DiscardHandler))
	}()
	b := bounded{address: listener.Addr().String()}
	var open []net.Conn
	for range 2 * adminConnections {
		open = append(open, b.from(t, "127.0.0.2", "GET / HTTP/1.1\r\n"))
	}
	for _, c := range open[:len(open)-adminConnections/2] {
		if s := status(t, c); s != 0 {
			t.Errorf("status %d of an unfinished request", s)
		}
	}
	if s := status(t, b.from(t, "127.0.0.1", getRequest)); s != http.StatusNotFound {
		t.Errorf("status %d", s)
	}
	stop()
	testkit.Must(t, <-ended)
}

// requests returns how many connections have a whole one.
func (b bounded) requests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	arriving := map[*address]int{}
	for c := range b.all {
		if c.isArriving() {
			arriving[c.from]++
		} else {
			n++
		}
	}
	for _, from := range b.addresses {
		if from.arriving != arriving[from] {
			panic(fmt.Sprintf("%d arrive, and %d are counted", arriving[from], from.arriving))
		}
	}
	return n
}

// A client that holds connections without a whole request does not exclude others, neither at other
// addresses nor at its own.
func TestUnfinishedRequestsGiveTheirPlaces(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ half, next string }{
		"nothing": {"", getRequest},
		"head":    {"GET / HTTP/1.1\r\n", getRequest},
		"body":    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", strings.Replace(getRequest, "GET", "POST", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reading := make(chan bool, 100)
			b := startBounded(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
				reading <- true
				_, _ = io.ReadAll(r.Body)
			})
			wait := func(n int) {
				testkit.Eventually(t, "they are there", func() bool { return b.open() == n && b.requests() == 0 })
			}
			for range 4 {
				b.from(t, "127.0.0.1", test.half)
			}
			wait(4)
			if s := status(t, b.from(t, "127.0.0.1", test.next)); s != http.StatusOK || b.refused.Load() != 1 {
				t.Errorf("status %d for the same address, %d closed", s, b.refused.Load())
			}
		})
	}
	for name, half := range map[string]string{"head": "GET / HTTP/1.1\r\n", "body": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"} {
		t.Run(name+" from several addresses", func(t *testing.T) {
			t.Parallel()
			b := startBounded(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
			first := b.from(t, "127.0.0.4", half) // is the oldest, of the address with the fewest
			testkit.Eventually(t, "it is there", func() bool { return b.open() == 1 })
			all := map[string][]net.Conn{}
			for i, address := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.1"} {
				all[address] = append(all[address], b.from(t, address, half))
				testkit.Eventually(t, "it is there", func() bool { return b.open() == i+2 && b.requests() == 0 })
			}
			if s := status(t, b.from(t, "127.0.0.5", getRequest)); s != http.StatusOK || b.refused.Load() != 1 {
				t.Errorf("status %d, %d closed", s, b.refused.Load())
			}
			if s := status(t, all["127.0.0.1"][0]); s != 0 {
				t.Errorf("the oldest of the address with the most is answered %d", s)
			}
			testkit.Eventually(t, "the answer was the last one", func() bool { return b.open() == 7 && b.requests() == 0 })
			if half[0] == 'G' {
				half = "Host: x\r\n\r\n"
			} else {
				half = strings.Repeat("a", 100)
			}
			for _, c := range []net.Conn{first, all["127.0.0.1"][1]} {
				testkit.Value(io.WriteString(c, half))(t)
				if s := status(t, c); s != http.StatusOK {
					t.Errorf("status %d for one that was not to be closed", s)
				}
			}
		})
	}
}

// Idle connections do not take the places of those that come.
func TestConnectionsEndWhenThereAreMany(t *testing.T) {
	t.Parallel()
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) {})
	for n, want := range []bool{false, false, true} {
		response := testkit.Value(http.ReadResponse(bufio.NewReader(b.from(t, "127.0.0.1", getRequest)), nil))(t)
		if response.Close != want {
			t.Errorf("connection %d: the answer is the last one: %t", n+1, response.Close)
		}
	}
}

// Heads that arrive, and requests that are open, have a bound in bytes.
func TestLargeRequestsAreBounded(t *testing.T) {
	t.Parallel()
	running, release := make(chan bool, 2), make(chan bool)
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) { running <- true; <-release })
	large := "GET / HTTP/1.1\r\nHost: x" + strings.Repeat("\r\nX: y", 500) // net/http keeps 60 kB of it
	count := func(n int64) func() bool {
		return func() bool { e := b.excess.Load(); return e > n*40_000 && e < (n+1)*40_000+20_000 }
	}
	first := b.from(t, "127.0.0.1", large)
	testkit.Eventually(t, "it has arrived", count(1))
	open := b.from(t, "127.0.0.2", large+"\r\n\r\n")
	<-running // what its head held was given back, and the handler counts the request
	testkit.Eventually(t, "it has arrived", count(2))
	b.from(t, "127.0.0.3", large)
	testkit.Eventually(t, "it has arrived", count(3))
	if s := status(t, b.from(t, "127.0.0.4", large+"\r\n\r\n")); s != 0 {
		t.Errorf("status %d for a head that is too much", s)
	}
	post := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"
	refused := b.from(t, "127.0.0.4", post)
	if s := status(t, refused); s != http.StatusServiceUnavailable {
		t.Errorf("status %d for a request that is too much", s)
	}
	if s := status(t, refused); s != 0 {
		t.Errorf("status %d, and nothing was asked", s)
	}
	first.Close()
	testkit.Eventually(t, "it was given back", count(2))
	small := b.from(t, "127.0.0.4", getRequest)
	close(release)
	if a, s := status(t, open), status(t, small); a != http.StatusOK || s != http.StatusOK {
		t.Errorf("status %d and %d", a, s)
	}
	testkit.Eventually(t, "it was given back", count(1))
}

// idleSocket is a connection from an address, on which nothing arrives.
type idleSocket struct {
	net.Conn
	from   string
	closed chan struct{}
}

func (s *idleSocket) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(s.from)} }

func (s *idleSocket) Close() error {
	close(s.closed)
	return nil
}

func (s *idleSocket) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// blockedBody is a body that does not arrive.
type blockedBody struct{ socket *idleSocket }

func (b blockedBody) Read([]byte) (int, error) {
	<-b.socket.closed
	return 0, net.ErrClosed
}

func (b blockedBody) Close() error { return nil }

// unserved is connections without a server: the tests report states and requests as net/http does.
type unserved struct {
	*connections
	server http.Server
}

func newUnserved(most int64) *unserved {
	u := &unserved{connections: newConnections(most*connectionBytes, connectionBytes, func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.9") })}
	u.attach(&u.server)
	return u
}

func (u *unserved) dial(from string) (*boundedConn, *idleSocket) {
	socket := &idleSocket{from: from, closed: make(chan struct{})}
	return u.newConn(socket), socket
}

func (u *unserved) entered(t *testing.T, from string) (*boundedConn, *idleSocket) {
	t.Helper()
	c, socket := u.dial(from)
	if entered, _ := u.enter(c); !entered {
		t.Fatalf("no place for %s", from)
	}
	return c, socket
}

// serve handles a request, and returns its status.
func (u *unserved) serve(c *boundedConn, r *http.Request, handler http.HandlerFunc) int {
	u.server.ConnState(c, http.StateActive)
	w := httptest.NewRecorder()
	u.handler(wholeRequests(handler)).ServeHTTP(w, r.WithContext(u.server.ConnContext(context.Background(), c)))
	return w.Code
}

// A connection that was answered, and stays open for the rest of a body or of the response, gives
// its place before any handshake of others does.
func TestAnsweredConnectionsGiveTheirPlaces(t *testing.T) {
	t.Parallel()
	post := func() *http.Request {
		return httptest.NewRequest(http.MethodPost, "/v2/a/blobs/uploads/", strings.NewReader("body"))
	}
	for name, test := range map[string]struct {
		request *http.Request
		reads   bool
		after   time.Duration // until the place is given
	}{
		"unread body":     {post(), false, 0},
		"read body":       {post(), true, turnTime},
		"without a body":  {httptest.NewRequest(http.MethodGet, "/v2/", http.NoBody), false, turnTime},
		"the head failed": {nil, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				u, release := newUnserved(4), make(chan bool)
				defer synctest.Wait()
				defer close(release)
				answered, _ := u.entered(t, "10.0.0.1")
				if test.request == nil {
					u.server.ConnState(answered, http.StateActive) // net/http answers this one itself
				}
				time.Sleep(turnTime)
				handshake, _ := u.entered(t, "10.0.0.2")
				for _, from := range []string{"10.0.0.3", "10.0.0.1"} {
					c, _ := u.entered(t, from)
					go u.serve(c, httptest.NewRequest(http.MethodGet, "/slow", http.NoBody), func(http.ResponseWriter, *http.Request) { <-release })
				}
				synctest.Wait()
				if test.request != nil {
					u.serve(answered, test.request, func(w http.ResponseWriter, r *http.Request) {
						if test.reads {
							_, _ = io.ReadAll(r.Body)
						}
						w.WriteHeader(http.StatusUnauthorized)
					})
				}
				if test.after > 0 {
					next, _ := u.dial("10.0.0.4")
					if entered, toClose := u.enter(next); entered || toClose != nil {
						t.Errorf("before the response is sent: entered %t, closes a connection %t", entered, toClose != nil)
					}
					next, _ = u.dial("10.0.0.1")
					if _, toClose := u.enter(next); toClose != next {
						t.Error("an address has more than half")
					}
					time.Sleep(test.after)
				}
				for _, from := range []string{"10.0.0.4", "10.0.0.1"} {
					next, _ := u.dial(from)
					if _, toClose := u.enter(next); toClose != answered {
						t.Errorf("from %s: closes the handshake %t, none %t", from, toClose == handshake, toClose == nil)
					}
				}
			})
		})
	}
}

// New connections do not end the handshakes of others as soon as they have begun.
func TestHandshakesHaveTheirTurn(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		u := newUnserved(4)
		oldest, _ := u.entered(t, "10.0.0.1")
		time.Sleep(time.Millisecond)
		for i := range 3 {
			u.entered(t, fmt.Sprintf("10.0.1.%d", i))
		}
		next, _ := u.dial("10.0.0.2")
		if entered, toClose := u.enter(next); entered || toClose != nil {
			t.Errorf("entered %t, closes the oldest %t", entered, toClose == oldest)
		}
		repeated, _ := u.dial("10.0.1.1")
		if _, toClose := u.enter(repeated); toClose != repeated {
			t.Errorf("a second one of an address closes the oldest %t", toClose == oldest)
		}
		time.Sleep(turnTime)
		if _, toClose := u.enter(next); toClose != oldest {
			t.Errorf("closes none %t", toClose == nil)
		}
	})
}

// Requests whose bodies do not come do not use up the bytes of others' large requests.
func TestIncompleteLargeRequestsGiveTheirBytes(t *testing.T) {
	t.Parallel()
	large := func(path string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Header.Set("X", strings.Repeat("a", 50<<10))
		return r
	}
	for _, addresses := range []int{1, 2, 4, 16} {
		t.Run(fmt.Sprint(addresses), func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				u := newUnserved(64)
				var sockets []*idleSocket
				var attackers []*boundedConn
				for i := range 32 {
					c, socket := u.entered(t, fmt.Sprintf("10.0.1.%d", i%addresses))
					attackers, sockets = append(attackers, c), append(sockets, socket)
					r := large("/token")
					r.Body, r.ContentLength = blockedBody{socket}, 64<<10
					go u.serve(c, r, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
				}
				synctest.Wait()
				for i := range 8 {
					c, _ := u.entered(t, fmt.Sprintf("10.0.2.%d", i))
					push := httptest.NewRequest(http.MethodPut, "/v2/a/blobs/uploads/1", strings.NewReader(strings.Repeat("x", 64<<10)))
					before := u.excess.Load()
					status := u.serve(c, push, func(http.ResponseWriter, *http.Request) {
						if u.excess.Load() != before {
							t.Error("a body that is passed on counts")
						}
					})
					if status != http.StatusOK {
						t.Errorf("a push: status %d", status)
					}
					if status := u.serve(c, large("/token"), func(http.ResponseWriter, *http.Request) {}); status != http.StatusOK {
						t.Errorf("a large head: status %d", status)
					}
				}
				for i, socket := range sockets {
					if !socket.isClosed() {
						_ = attackers[i].Close()
					}
				}
				synctest.Wait()
				if e := u.excess.Load(); e != 0 {
					t.Errorf("%d bytes were not given back", e)
				}
			})
		})
	}
}

// Whole large requests of one address leave bytes for others. A proxy may have all.
func TestLargeRequestsAreShared(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]int{"10.0.0.1": 3, "10.0.0.9": 4} {
		t.Run(from, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				u, release := newUnserved(10), make(chan bool) // 240 KiB for large requests
				request := func() *http.Request {
					r := httptest.NewRequest(http.MethodGet, "/token", http.NoBody)
					r.Header.Set("X", strings.Repeat("a", 60<<10-10))
					return r
				}
				wait := func(http.ResponseWriter, *http.Request) { <-release }
				for range want {
					c, _ := u.entered(t, from)
					go u.serve(c, request(), wait)
				}
				synctest.Wait()
				c, _ := u.entered(t, from)
				if status := u.serve(c, request(), wait); status != http.StatusServiceUnavailable {
					t.Errorf("status %d for one too many", status)
				}
				if c, _ = u.entered(t, "10.0.0.2"); from != "10.0.0.9" {
					if status := u.serve(c, request(), func(http.ResponseWriter, *http.Request) {}); status != http.StatusOK {
						t.Errorf("status %d for another address", status)
					}
				}
				close(release)
				synctest.Wait()
				if e := u.excess.Load(); e != 0 {
					t.Errorf("%d bytes were not given back", e)
				}
			})
		})
	}
}

// Also with TLS, a head counts until the response to its request, and as what net/http keeps of it.
// So do the bytes of a handshake beyond the usual ones, until it ends.
func TestConnectionsCountBytesOverTLS(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	excess := func(what string, low, high int64) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { e := p.service.connections.excess.Load(); return low <= e && e <= high })
	}
	c := p.Dial(t)
	excess("a handshake has ended", 0, 0)
	testkit.Value(fmt.Fprint(c, "GET /token HTTP/1.1\r\nHost: localhost\r\nX: ", strings.Repeat("a", 50_000)))(t)
	excess("a head arrives", 45_000*headWeight, 60_000*headWeight)
	testkit.Value(fmt.Fprint(c, "\r\n\r\n"))(t)
	if s := status(t, c); s != http.StatusBadRequest {
		t.Errorf("status %d", s)
	}
	excess("it was answered, and the connection stays", 0, 0)

	raw := testkit.Value(net.Dial("tcp", p.Address))(t)
	testkit.Value(raw.Write(append([]byte{22, 3, 1, 64, 0, 1, 0, 255, 0}, make([]byte, 15_000)...)))(t)
	excess("a handshake arrives", (15_000-usualHandshake)*headWeight-usualRequestBytes, (15_020-usualHandshake)*headWeight)
	testkit.Value(raw.Write(make([]byte, 2_000)))(t) // beyond maxHandshake, but within the record
	testkit.Must(t, raw.SetReadDeadline(time.Now().Add(5*time.Second)))
	if _, err := raw.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a large handshake goes on: %v", err)
	}
	excess("it has failed", 0, 0)
}

// fullSocket has bytes for whole buffers.
type fullSocket struct{ *idleSocket }

func (fullSocket) Read(p []byte) (int, error) { return len(p), nil }

// What is read at once, and so can wait in the buffer of TLS without being counted, is little, except
// behind the large bodies of the gateway.
func TestLittleIsReadAtOnce(t *testing.T) {
	t.Parallel()
	for each, want := range map[int64]int{connectionBytes: smallRead, streamBytes: 16 << 10} {
		l := newConnections(8*each, each, func(netip.Addr) bool { return false })
		l.encrypted = true
		c := l.newConn(fullSocket{&idleSocket{from: "10.0.0.1", closed: make(chan struct{})}})
		if entered, _ := l.enter(c); !entered {
			t.Fatal("no place")
		}
		buffer := make([]byte, 16<<10)
		during := testkit.Value(c.Read(buffer))(t)
		c.beginHead(time.Time{})
		c.arrived(true)
		if after := testkit.Value(c.Read(buffer))(t); during != smallRead || after != want {
			t.Errorf("%d bytes in a handshake, %d behind it, want %d", during, after, want)
		}
	}
}

// A connection whose request is open may send no more than a little that does not become a part of the body:
// crypto/tls would keep it.
func TestConnectionsDeliverWhatTheyRead(t *testing.T) {
	t.Parallel()
	for each, limit := range map[int64]int{connectionBytes: maxUndeliveredSmall, streamBytes: maxUndelivered} {
		l := newConnections(8*each, each, func(netip.Addr) bool { return false })
		c := l.newConn(fullSocket{&idleSocket{from: "10.0.0.1", closed: make(chan struct{})}})
		if entered, _ := l.enter(c); !entered {
			t.Fatal("no place")
		}
		c.arrived(true)
		body := &arrivingBody{io.NopCloser(c), c.delivered, func() {}}
		buffer := make([]byte, smallRead)
		for range 100 {
			testkit.Value(body.Read(buffer))(t)
		}
		for range limit / smallRead {
			testkit.Value(c.Read(buffer))(t)
		}
		if _, err := c.Read(buffer); !errors.Is(err, errUndelivered) {
			t.Errorf("%v, want that the connection ends", err)
		}
		c.arrived(true)
		testkit.Value(c.Read(buffer))(t)
	}
}

// heldBack sends nothing after the first write, until it is released.
type heldBack struct {
	net.Conn
	isHeld bool
	later  []byte
}

func (h *heldBack) Write(p []byte) (int, error) {
	if h.isHeld {
		h.later = append(h.later, p...)
		return len(p), nil
	}
	h.isHeld = true
	return h.Conn.Write(p)
}

// A head counts also if it comes with the end of a handshake, when the buffer of TLS can be large, or
// behind a request.
func TestHeadsThatAreBufferedAreCounted(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	head := "GET /token HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: y\r\n", 2500)
	excess := func(what string, low, high int) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { e := int(p.service.connections.excess.Load()); return low <= e && e <= high })
	}
	config := p.Client.Transport.(*http.Transport).TLSClientConfig.Clone()
	for i := range 48 {
		config.NextProtos = append(config.NextProtos, fmt.Sprintf("%0240d", i))
	}
	config.NextProtos, config.ServerName = append(config.NextProtos, "http/1.1"), "127.0.0.1"
	raw := &heldBack{Conn: testkit.Value(net.Dial("tcp", p.Address))(t)}
	client := tls.Client(raw, config)
	testkit.Must(t, client.Handshake())
	testkit.Value(io.WriteString(client, head))(t)
	testkit.Value(raw.Conn.Write(raw.later))(t)
	excess("a head came with the end of the handshake", len(head)*headWeight-usualRequestBytes, (len(head)+2*smallRead)*headWeight)
	raw.Conn.Close()
	excess("it has ended", 0, 0)

	c := p.Dial(t)
	testkit.Value(io.WriteString(c, getRequest+head))(t)
	if s := status(t, c); s != http.StatusNotFound {
		t.Errorf("status %d", s)
	}
	excess("a head came behind a request", len(head)*headWeight-usualRequestBytes, 2*pipelined*headWeight)
	c.Close()
	excess("it has ended", 0, 0)

	// net/http reads on when it has the body, and what is there of a next record is kept.
	const form = "grant_type=password&service=registry.example.com&client_id=x&username=x&password=x"
	post := fmt.Sprintf("POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n", len(form))
	c = p.Dial(t)
	testkit.Value(io.WriteString(c, post+form[:10]))(t)
	testkit.Value(io.WriteString(c, form[10:]+head[:3]))(t)
	testkit.Value(io.WriteString(c, head[3:]))(t)
	if s := status(t, c); s != http.StatusUnauthorized {
		t.Errorf("status %d", s)
	}
	excess("a head came behind a body", len(head)*headWeight-usualRequestBytes, 2*pipelined*headWeight)
	c.Close()
	excess("it has ended", 0, 0)

	c = p.Dial(t)
	for _, request := range []string{getRequest, post + form, getRequest} {
		testkit.Value(io.WriteString(c, request))(t)
		if s := status(t, c); s != http.StatusNotFound && s != http.StatusUnauthorized {
			t.Errorf("status %d", s)
		}
		excess("nothing is behind a request", 0, 0)
	}
	testkit.Value(io.WriteString(c, strings.Replace(post, "/token", "/other", 1)+form))(t)
	if a, b := status(t, c), status(t, c); a != http.StatusNotFound || b != 0 {
		t.Errorf("status %d, and %d on a connection whose body nothing here has read", a, b)
	}
}

// Nothing here reads a body, and none is waited for.
func TestUnsentBodiesOnOtherPaths(t *testing.T) {
	t.Parallel()
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) {})
	c := b.from(t, "127.0.0.1", "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	if s := status(t, c); s != http.StatusOK {
		t.Errorf("status %d", s)
	}
	if s := status(t, c); s != 0 {
		t.Errorf("status %d, and nothing was asked", s)
	}
}

// A client that does not read responses does not keep the process running.
func TestShutdownEndsConnectionsThatAreNotRead(t *testing.T) {
	t.Parallel()
	writing := make(chan bool)
	b := startBounded(t, 100*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		close(writing)
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	b.from(t, "127.0.0.1", getRequest)
	<-writing
	ctx, cancel := context.WithTimeout(t.Context(), writeTimeout*2/3)
	defer cancel()
	if err := b.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// Shutdown lengthens no deadline, whether a handler has set it before or sets it later.
func TestShutdownLengthensNoDeadline(t *testing.T) {
	t.Parallel()
	const soon, late = 300 * time.Millisecond, time.Hour
	ending := make(chan bool)
	for name, test := range map[string]struct {
		drain   time.Duration
		handler func(w http.ResponseWriter, r *http.Request, begun func())
	}{
		"to write": {late, func(w http.ResponseWriter, _ *http.Request, begun func()) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(soon))
			begun()
			for chunk := make([]byte, 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}},
		"to read": {late, func(w http.ResponseWriter, r *http.Request, begun func()) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(soon))
			begun()
			_, _ = io.ReadAll(r.Body)
		}},
		"to write, set afterwards": {soon, func(w http.ResponseWriter, _ *http.Request, begun func()) {
			begun()
			<-ending
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(late))
			for chunk := make([]byte, 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}},
		"to read, without one": {soon, func(_ http.ResponseWriter, r *http.Request, begun func()) {
			begun()
			_, _ = io.ReadAll(r.Body)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := make(chan bool)
			b := startBounded(t, test.drain, func(w http.ResponseWriter, r *http.Request) { test.handler(w, r, func() { close(begun) }) })
			request := getRequest
			if strings.Contains(name, "read") {
				request = "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
			}
			if strings.Contains(name, "afterwards") {
				b.server.RegisterOnShutdown(func() { close(ending) })
			}
			b.from(t, "127.0.0.1", request)
			<-begun
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := b.server.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// SIGTERM ends the service, whatever was sent to it by halves.
func TestServeEndsInSpiteOfUnsentBodies(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	head := "POST /token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n"
	for i := range 100 { // more than may be slow
		c := p.Dial(t)
		testkit.Value(fmt.Fprint(c, head, []string{"\r\ngrant_type=", "Authorization: Basic eDp5\r\n\r\n", "\r\n"}[i%3]))(t)
	}
	testkit.Eventually(t, "they are refused", func() bool { return strings.Count(p.Stdout.String(), "\n") >= 36 })
	if err := p.stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
