package upstream

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// push is request with a body. A negative length means chunked encoding.
func (p *peer) push(ctx context.Context, method, path string, body io.Reader, length int64) *http.Request {
	r := p.request(ctx, method, path)
	r.Body, r.ContentLength = io.NopCloser(body), length
	r.Header.Set("Expect", "100-continue")
	return r
}

// sent sends a request, and returns the status and body of the response, or the error.
func (p *peer) sent(t *testing.T, r *http.Request) string {
	t.Helper()
	response, err := p.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(response.StatusCode, " ", string(body))
}

const goOn = "HTTP/1.1 100 Continue\r\n\r\n"

// A body arrives unchanged, with its length or in chunks, and its connection is reused.
func TestWireBodies(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(c *peerConn) {
		for r := c.request(); r != nil; r = c.request() {
			if r.Header.Get("Expect") != "" {
				c.send(goOn + goOn) // once is enough, and the second asks for nothing
			}
			body, err := io.ReadAll(r.Body)
			text := fmt.Sprintf("%s %d %v %d %v", r.Method, r.ContentLength, r.TransferEncoding, len(body), err)
			if strings.Trim(string(body), "x") != "" {
				text += " " + string(body)
			}
			c.send(fmt.Sprintf("HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s", len(text), text))
		}
	})
	for _, method := range []string{"POST", "PUT", "PATCH"} {
		for _, size := range []int{1, 4096, pieceBytes - 1, pieceBytes, pieceBytes + 1, 16 << 10, 1 << 20} {
			body := strings.Repeat("x", size)
			if got, want := p.sent(t, p.push(t.Context(), method, "/a", strings.NewReader(body), int64(size))), fmt.Sprintf("201 %s %d [] %d <nil>", method, size, size); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			for name, reader := range map[string]io.Reader{"pieces": iotest.HalfReader(strings.NewReader(body)), "last with its end": iotest.DataErrReader(strings.NewReader(body))} {
				if got, want := p.sent(t, p.push(t.Context(), method, "/a", reader, -1)), fmt.Sprintf("201 %s -1 [chunked] %d <nil>", method, size); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		}
		if got, want := p.sent(t, p.push(t.Context(), method, "/a", strings.NewReader(""), -1)), "201 "+method+" -1 [chunked] 0 <nil>"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// A response may come before the sender knows that the whole body was sent.
	testkit.Eventually(t, "every connection is given back", func() bool { return p.idleCount() == int(p.connections.Load()) })
}

// A response may come instead of a body, or during it. The connection is then not reused, because
// further data could be taken for the rest of the body.
func TestWireEarlyAnswers(t *testing.T) {
	t.Parallel()
	const refused = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
	for name, test := range map[string]struct {
		serve func(c *peerConn, r *http.Request)
		sent  bool
	}{
		"instead": {func(c *peerConn, _ *http.Request) { c.send(refused) }, false},
		"instead, with hint": {func(c *peerConn, _ *http.Request) {
			c.send("HTTP/1.1 103 Early Hints\r\n\r\n")
			time.Sleep(50 * time.Millisecond) // a body that a hint began would be read meanwhile
			c.send(refused)
		}, false},
		"asked for": {func(c *peerConn, r *http.Request) {
			c.send(goOn)
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
			c.send(refused)
		}, true},
		"and closed": {func(c *peerConn, r *http.Request) {
			c.send(goOn)
			_, _ = io.ReadFull(r.Body, make([]byte, 5))
			c.send(refused)
			_ = c.CloseWrite()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, func(c *peerConn) {
				r := c.request()
				if r == nil {
					return
				}
				if c.number > 1 {
					_, _ = io.Copy(io.Discard, r.Body)
					c.send(c.path(r))
					return
				}
				test.serve(c, r)
				c.request() // until the end of the connection
			})
			reader, writer := io.Pipe() // a client that never ends
			go func() {
				for {
					if _, err := writer.Write(make([]byte, 1000)); err != nil {
						return
					}
				}
			}()
			t.Cleanup(func() { _ = reader.Close() })
			body := &unsent{from: reader}
			r := p.push(t.Context(), "PATCH", "/a", body, -1)
			if got := p.sent(t, r); got != "413 no" {
				t.Error(got)
			}
			if body.isWhole() == test.sent || p.idleCount() != 0 {
				t.Errorf("sent: %t; %d idle", !body.isWhole(), p.idleCount())
			}
			if got := p.get(t, "GET", "/b"); got != "200 /b on 2" {
				t.Error(got)
			}
		})
	}
}

// Data behind a response is never delivered, for any method.
func TestWireUnsolicitedForEveryMethod(t *testing.T) {
	t.Parallel()
	const other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
	lies := map[string]string{
		"behind a body":   "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody" + other,
		"behind nothing":  "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n" + other,
		"a body of 204":   "HTTP/1.1 204 No Content\r\nContent-Length: 45\r\n\r\n" + other,
		"a body of 304":   "HTTP/1.1 304 Not Modified\r\nContent-Length: 45\r\n\r\n" + other,
		"behind chunks":   "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + other,
		"far behind":      "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + strings.Repeat("x", 9000) + other,
		"one byte":        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n\n",
		"another promise": "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n" + goOn + other,
		"both lengths":    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + other,
	}
	for name, lie := range lies {
		for _, first := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			t.Run(name+", "+first, func(t *testing.T) {
				t.Parallel()
				p := newPeer(t, func(c *peerConn) {
					for n := 0; ; n++ {
						r := c.request()
						if r == nil {
							return
						}
						if r.Header.Get("Expect") != "" {
							c.send(goOn)
						}
						_, _ = io.Copy(io.Discard, r.Body)
						if c.number == 1 && n == 0 {
							c.send(lie)
						} else {
							c.send(c.path(r))
						}
					}
				})
				ask := func(method, path string) string {
					if method == "PATCH" || method == "PUT" {
						return p.sent(t, p.push(t.Context(), method, path, strings.NewReader("body"), 4))
					}
					return p.get(t, method, path)
				}
				ask(first, "/a")
				if p.idleCount() == 1 {
					testkit.Eventually(t, "what came is seen", func() bool { return !p.idle[0].isQuiet() })
				}
				for _, method := range []string{"PATCH", "POST", "DELETE", "GET", "PUT"} {
					if got := ask(method, "/"+method); !strings.HasPrefix(got, "200 /"+method+" on ") || got == "200 /"+method+" on 1" {
						t.Errorf("%s: %s", method, got)
					}
				}
			})
		}
	}
}

// If a reused connection was closed in the meantime, the request is sent again where that is safe.
func TestWireSendsAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, body string
		again        bool
	}{
		"a body": {"PATCH", "body", true}, "a read": {"GET", "", true}, "no body": {"POST", "", false}, "the end of an upload": {"PUT", "", false}, "a deletion": {"DELETE", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, func(c *peerConn) {
				for n := 0; ; n++ {
					r := c.request()
					if r == nil || c.number == 1 && n == 1 {
						return
					}
					if r.Header.Get("Expect") != "" {
						c.send(goOn)
					}
					_, _ = io.Copy(io.Discard, r.Body)
					c.send(c.path(r))
				}
			})
			p.get(t, "GET", "/a")
			r := p.request(t.Context(), test.method, "/b")
			if test.body != "" {
				r = p.push(t.Context(), test.method, "/b", strings.NewReader(test.body), int64(len(test.body)))
			}
			got := p.sent(t, r)
			if again := got == "200 /b on 2"; again != test.again || !again && !strings.HasPrefix(got, errNoAnswer.Error()) {
				t.Error(got)
			}
		})
	}
	for name, promise := range map[string]string{"not behind a body": goOn, "not behind a body without a promise": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			p := newPeer(t, func(c *peerConn) {
				for r := c.request(); r != nil; r = c.request() {
					if asked.Add(1) == 1 {
						c.send(c.path(r))
						continue
					}
					c.send(promise)
					_, _ = io.ReadFull(r.Body, make([]byte, 2))
					return
				}
			})
			p.get(t, "GET", "/a")
			if got := p.sent(t, p.push(t.Context(), "PATCH", "/b", strings.NewReader("body"), 4)); strings.HasPrefix(got, "2") || asked.Load() != 2 {
				t.Errorf("%s; asked %d times", got, asked.Load())
			}
		})
	}
}

// A body that breaks off must not look complete to the upstream.
func TestWireBrokenBodies(t *testing.T) {
	t.Parallel()
	cause := errors.New("the client has left")
	for name, test := range map[string]struct {
		body   io.Reader
		length int64
		want   error
	}{
		"with a length": {io.MultiReader(strings.NewReader("half"), iotest.ErrReader(cause)), 100, cause},
		"in chunks":     {io.MultiReader(strings.NewReader("half"), iotest.ErrReader(cause)), -1, cause},
		"too short":     {strings.NewReader("half"), 100, errLength},
		"too long":      {strings.NewReader("more than half"), 4, errLength},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived := make(chan error, 1)
			p := newPeer(t, func(c *peerConn) {
				if r := c.request(); r != nil {
					c.send(goOn)
					_, err := io.ReadAll(r.Body)
					arrived <- err
				}
			})
			_, err := p.RoundTrip(p.push(t.Context(), "PUT", "/a", test.body, test.length))
			if !errors.Is(err, test.want) || p.idleCount() != 0 {
				t.Errorf("%v; %d idle", err, p.idleCount())
			}
			if err := <-arrived; err == nil {
				t.Error("the upstream took it for the whole")
			}
		})
	}
}

// A body without a length ends with its connection, and only if TLS announces the end. Otherwise an
// attacker on the path could cut it (RFC 9112, section 9.8).
func TestWireCutBodies(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"announced": "200 body", "cut": errCut.Error()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, func(c *peerConn) {
				if c.request() == nil {
					return
				}
				c.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody")
				if name == "cut" {
					_ = c.NetConn().(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, c.NetConn())
				}
			})
			if got := p.get(t, "GET", "/a"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// An upstream may be behind a proxy. The proxy's responses are not the upstream's.
func TestWireByWayOfAProxy(t *testing.T) {
	t.Parallel()
	p := newPeer(t, func(c *peerConn) {
		for r := c.request(); r != nil; r = c.request() {
			c.send(c.path(r))
		}
	})
	listener := testkit.Listen(t)
	var asked atomic.Int64
	says := make(chan string, 4)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				asked.Add(1)
				answer := <-says
				if r.Method != http.MethodConnect || r.Host != p.base.Host || r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("user:pass word")) {
					answer = "HTTP/1.1 400 Bad Request\r\n\r\n"
				}
				_, _ = io.WriteString(c, answer)
				there, err := net.Dial("tcp", r.Host)
				if err != nil {
					return
				}
				defer func() { _ = there.Close() }()
				go func() {
					_, _ = io.Copy(there, c)
					_ = there.Close()
				}()
				_, _ = io.Copy(c, there)
			}()
		}
	}()
	at := &url.URL{Scheme: "http", Host: listener.Addr().String(), User: url.UserPassword("user", "pass word")}
	p.wire = p.newWire()
	p.proxy = at
	for answer, want := range map[string]string{
		"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n":              "the proxy on the way: it answers 407",
		"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n": "the proxy on the way: it says more than it was asked",
	} {
		says <- answer
		if got := p.get(t, "GET", "/a"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	says <- "HTTP/1.1 200 Connection established\r\n\r\n"
	first, second := p.get(t, "GET", "/a"), p.get(t, "GET", "/b") // on one connection
	if on, ok := strings.CutPrefix(first, "200 /a"); !ok || second != "200 /b"+on {
		t.Errorf("%s, then %s", first, second)
	}
	if asked.Load() != 3 {
		t.Errorf("the proxy was asked %d times", asked.Load())
	}
	_ = listener.Close()
}

// The time until a response begins is limited, from the last progress of the body.
func TestWirePatience(t *testing.T) {
	t.Parallel()
	c := testkit.Value(New(Config{Name: "a", URL: "https://registry.example.com"}))(t)
	for method, want := range map[string]time.Duration{"GET": answerWithin, "HEAD": answerWithin, "POST": pushedWithin, "PUT": pushedWithin, "PATCH": pushedWithin, "DELETE": pushedWithin} {
		if got := c.wire.patience(method); got != want {
			t.Errorf("%s: %s", method, got)
		}
	}
}
