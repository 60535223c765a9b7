package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/testkit"
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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	server := newHTTPServer(c.handler(handler), nil, slog.New(slog.DiscardHandler))
	server.ConnState = c.connState
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
			return len(c.places) == 0 && len(c.all) == 0 && len(c.byAddress) == 0 && c.excess.Load() == 0
		})
	})
	return bounded{c, server, listener.Addr().String()}
}

// from connects from an address, and sends.
func (b bounded) from(t *testing.T, address, text string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := dialer.Dial("tcp", b.address)
	testkit.Must(t, err)
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

const getRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// One address has half of the places, but for proxies; and what finds no place waits.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) {})
	head := "GET / HTTP/1.1\r\n"
	var open []net.Conn
	for range 4 {
		open = append(open, b.from(t, "127.0.0.1", head))
	}
	testkit.Eventually(t, "four are open", func() bool { return b.open() == 4 })
	if s := status(t, b.from(t, "127.0.0.1", getRequest)); s != 0 || b.refused.Load() != 1 {
		t.Errorf("status %d for one too many, %d refused", s, b.refused.Load())
	}
	if s := status(t, b.from(t, "127.0.0.2", getRequest)); s != http.StatusOK {
		t.Errorf("status %d for another address", s)
	}
	open[0].Close()
	testkit.Eventually(t, "a place is free", func() bool { return b.open() == 3 })
	for range 5 { // more than an address may have
		open = append(open, b.from(t, "127.0.0.9", head))
	}
	testkit.Eventually(t, "all places are taken", func() bool { return b.open() == 8 })
	waiting := b.from(t, "127.0.0.2", getRequest)
	open[1].Close()
	if s := status(t, waiting); s != http.StatusOK || b.refused.Load() != 1 {
		t.Errorf("status %d for one that waited, %d refused", s, b.refused.Load())
	}
}

// Idle connections do not take the places of those that come.
func TestConnectionsEndWhenThereAreMany(t *testing.T) {
	t.Parallel()
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) {})
	for n, want := range []bool{false, false, true} {
		response, err := http.ReadResponse(bufio.NewReader(b.from(t, "127.0.0.1", getRequest)), nil)
		testkit.Must(t, err)
		if response.Close != want {
			t.Errorf("connection %d: the answer is the last one: %t", n+1, response.Close)
		}
	}
}

// Heads that arrive, and requests that are open, have a bound in bytes.
func TestLargeRequestsAreBounded(t *testing.T) {
	t.Parallel()
	release := make(chan bool)
	b := startBounded(t, time.Minute, func(http.ResponseWriter, *http.Request) { <-release })
	large := "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 60_000)
	count := func(n int64) func() bool {
		return func() bool { e := b.excess.Load(); return e > n*50_000 && e < (n+1)*50_000+10_000 }
	}
	first := b.from(t, "127.0.0.1", large)
	testkit.Eventually(t, "it has arrived", count(1))
	open := b.from(t, "127.0.0.2", large+"\r\n\r\n") // the handler counts this one
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

// With TLS, too, a head counts until its request is answered, and what a handshake
// sends until it fails. The requests of an HTTP/2 connection all count.
func TestConnectionsCountBytesOverTLS(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	excess := func(what string, low, high int64) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { e := p.service.connections.excess.Load(); return low <= e && e <= high })
	}
	c := p.Dial(t)
	_, err := fmt.Fprint(c, "GET /token HTTP/1.1\r\nHost: localhost\r\nX: ", strings.Repeat("a", 50_000))
	testkit.Must(t, err)
	excess("a head arrives", 40_000, 70_000)
	_, err = fmt.Fprint(c, "\r\n\r\n")
	testkit.Must(t, err)
	if s := status(t, c); s != http.StatusBadRequest {
		t.Errorf("status %d", s)
	}
	excess("it was answered, and the connection stays", 0, 0)

	raw, err := net.Dial("tcp", p.Address)
	testkit.Must(t, err)
	_, err = raw.Write(append([]byte{22, 3, 1, 64, 0, 1, 0, 255, 0}, make([]byte, 15_000)...))
	testkit.Must(t, err)
	excess("a handshake arrives", 5_000, 10_000)
	raw.Close()
	excess("it has failed", 0, 0)

	p.Configure(t, "certFile: tls.crt", "http2: true, certFile: tls.crt")
	testkit.Eventually(t, "HTTP/2 is spoken", func() bool { return p.service.current.Load().cfg.Server.TLS.HTTP2 })
	two := &http.Transport{TLSClientConfig: p.Client.Transport.(*http.Transport).TLSClientConfig.Clone(), ForceAttemptHTTP2: true}
	t.Cleanup(two.CloseIdleConnections)
	body, sender := io.Pipe()
	request, err := http.NewRequest(http.MethodPost, "https://"+p.Address+"/token", body)
	testkit.Must(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.ContentLength = 10
	answered := make(chan error, 1)
	go func() {
		response, err := two.RoundTrip(request)
		if err == nil {
			response.Body.Close()
		}
		answered <- err
	}()
	excess("a small request is open", 2*usualRequestBytes, 2*usualRequestBytes)
	_, err = io.WriteString(sender, "0123456789")
	testkit.Must(t, err)
	sender.Close()
	testkit.Must(t, <-answered)
	excess("it was answered", 0, 0)
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

// Who does not read answers does not keep the process from ending.
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

// SIGTERM ends the service, whatever was sent to it by halves.
func TestServeEndsInSpiteOfUnsentBodies(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	head := "POST /token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n"
	for i := range 100 { // more than may be slow
		c := p.Dial(t)
		_, err := fmt.Fprint(c, head, []string{"\r\ngrant_type=", "Authorization: Basic eDp5\r\n\r\n", "\r\n"}[i%3])
		testkit.Must(t, err)
	}
	testkit.Eventually(t, "they are refused", func() bool { return strings.Count(p.Stdout.String(), "\n") >= 36 })
	if err := p.stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
