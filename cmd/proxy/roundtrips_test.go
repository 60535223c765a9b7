package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// counter is on the way to Redis and writes down what goes there and back.
type counter struct {
	address string

	mu    sync.Mutex
	trips []*roundTrip
}

// roundTrip is what is asked at once, and what is answered before the next question.
type roundTrip struct {
	commands       []string
	asked, replied int // bytes
}

func newCounter(t *testing.T, redis string) *counter {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	c := &counter{address: listener.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.join(client, redis) })
		}
	})
	return c
}

func (c *counter) join(client net.Conn, redis string) {
	defer client.Close()
	server, err := net.Dial("tcp", redis)
	if err != nil {
		return // the client sees it
	}
	defer server.Close()
	var current *roundTrip
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		copied(server, client, func(data []byte) {
			if current == nil || current.replied > 0 {
				current = &roundTrip{}
				c.trips = append(c.trips, current)
			}
			current.asked += len(data)
			current.commands = append(current.commands, commands(data)...)
		}, &c.mu)
	})
	both.Go(func() {
		defer client.Close()
		copied(client, server, func(data []byte) {
			if current != nil {
				current.replied += len(data)
			}
		}, &c.mu)
	})
	both.Wait()
}

// copied notes each piece before it arrives, so that nothing is answered that is not
// written down.
func copied(to io.Writer, from io.Reader, note func([]byte), mu *sync.Mutex) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			mu.Lock()
			note(buffer[:n])
			mu.Unlock()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// commands are the names in a piece of RESP: arrays begin with their length, and that
// with the length of the name.
func commands(data []byte) (names []string) {
	lines := bytes.Split(data, []byte("\r\n"))
	for i := 0; i+2 < len(lines); i++ {
		if bytes.HasPrefix(lines[i], []byte("*")) && bytes.HasPrefix(lines[i+1], []byte("$")) {
			names = append(names, strings.ToLower(string(lines[i+2])))
		}
	}
	return names
}

// background is what no request waits for: new connections, the list of revocations,
// what replicas have decided.
var background = []string{"hello", "client", "auth", "select", "hgetall", "time", "subscribe", "ping", "xadd", "expire", "xrange"}

// during returns what a request waited for: the commands, with commas where one waited
// for the answer to the one before.
func (c *counter) during(t *testing.T, what string, do func()) string {
	t.Helper()
	c.mu.Lock()
	c.trips = nil
	c.mu.Unlock()
	do()
	c.mu.Lock()
	defer c.mu.Unlock()
	var asked []string
	for _, trip := range c.trips {
		if !slices.Contains(background, cmp.Or(trip.commands...)) {
			t.Logf("%s: %s: %d bytes there, %d back", what, trip.commands, trip.asked, trip.replied)
			asked = append(asked, strings.Join(trip.commands, " "))
		}
	}
	return strings.Join(asked, ", ")
}

// TestRoundTripsToRedis pins how often each kind of exchange waits for Redis: each time
// is as long as the way there and back. docs/reference/capacity.md says the same.
func TestRoundTripsToRedis(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ replay, otherCaller string }{{"off", "evalsha"}, {"audit", "evalsha"}, {"enforce", ""}} {
		for _, limit := range []string{usualLimit, countedOneByOne} {
			t.Run(c.replay+" "+limit, func(t *testing.T) {
				t.Parallel()
				p, counter := counted(t, c.replay, limit)
				token := kubetest.PodToken(t, "first")
				login := func() { p.Expect(t, token, http.StatusOK, "") }
				counter.want(t, "a new token", "evalsha", login)
				if limit == usualLimit {
					testkit.Eventually(t, "what was taken in advance is enough for the next one", func() bool {
						return counter.during(t, "the same token", login) == ""
					})
					return
				}
				counter.want(t, "the same token", "evalsha", login)
				counter.want(t, "the same token of another caller", c.otherCaller, func() {
					status := p.StatusFrom(t, p.ClientFrom("127.0.0.2"), token)
					if refused := status == http.StatusForbidden; refused != (c.replay == "enforce") {
						t.Errorf("another caller: status %d", status)
					}
				})
				counter.want(t, "a bad credential", "evalsha", func() { p.Expect(t, "bad", http.StatusUnauthorized, "token_malformed") })
				revoke(t, p, "--pod-uid", "pod-of-first", "--reason", "gone", "--for", "1h")
				testkit.Eventually(t, "it is refused", func() bool { return p.Status(t, token) == http.StatusForbidden })
				counter.want(t, "a revoked token", "", func() { p.Expect(t, token, http.StatusForbidden, "revoked") })
			})
		}
	}
}

const (
	usualLimit      = "{rate: 50, burst: 200}"
	countedOneByOne = "{rate: 0.001, burst: 15}" // too small to take anything in advance
)

// counted serves with everything that Redis is for: limits, a list of revocations,
// decisions for the page. Scripts are known, and a connection is open.
func counted(t *testing.T, replay, limit string) (*proxytest.Proxy, *counter) {
	t.Helper()
	counter := newCounter(t, statetest.Redis(t).Address())
	p := proxytest.New(t, fmt.Sprintf("  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n"+
		"state: {redis: {addresses: [%q]}, replay: %s}\nlimits: {perServiceAccount: %s, perAddress: %s}\n", counter.address, replay, limit, countedOneByOne), nil)
	p.Configure(t, "admin: {", "admin: {console: true, ")
	serveWith(t, p)
	testkit.Eventually(t, "it gets ready", func() bool { return p.Ready(t) })
	if code, _, stderr := revoke(t, p, "--node", "prod/another", "--reason", "so that there is a list", "--for", "1h"); code != 0 {
		t.Fatal(stderr)
	}
	p.Expect(t, kubetest.PodToken(t, "before"), http.StatusOK, "")
	p.Expect(t, "bad", http.StatusUnauthorized, "token_malformed")
	return p, counter
}

func (c *counter) want(t *testing.T, what, want string, do func()) {
	t.Helper()
	if got := c.during(t, what, do); got != want {
		t.Errorf("%s: Redis was asked %q; want %q", what, got, want)
	}
}
