package exchange_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// wire is a connection to a server whose only deadlines are those of the handler.
type wire struct {
	net.Conn
	reader *bufio.Reader
}

// wires starts such a server and returns a function that connects to it.
func (r *rig) wires(t *testing.T) func() wire {
	t.Helper()
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	return func() wire {
		t.Helper()
		c := testkit.Value(net.Dial("tcp", server.Listener.Addr().String()))(t)
		t.Cleanup(func() { c.Close() })
		testkit.Must(t, c.SetReadDeadline(time.Now().Add(time.Minute))) // a hanging read fails
		return wire{c, bufio.NewReader(c)}
	}
}

// send sends the head of a POST, and a body, which may be less than the head says.
func (c wire) send(head, body string) {
	fmt.Fprintf(c, "POST /token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n%s\r\n%s", head, body)
}

func (c wire) receive(t *testing.T) *http.Response {
	t.Helper()
	response := testkit.Value(http.ReadResponse(c.reader, nil))(t)
	testkit.Value(io.Copy(io.Discard, response.Body))(t)
	return response
}

// crowd starts enough bodies that each further one gets a deadline.
func crowd(t *testing.T, connect func() wire) {
	t.Helper()
	for range load.MaxBodies {
		c := connect()
		c.send("Content-Length: 100\r\nExpect: 100-continue\r\n", "")
		if begun := c.receive(t); begun.StatusCode != http.StatusContinue {
			t.Fatalf("the body is not read: %s", begun.Status)
		}
	}
}

// An incomplete body ends its connection soon. net/http reads the rest of it, and has no limit of
// its own for that here.
func TestUnsentBodiesEndTheirConnections(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]struct {
		crowded    bool
		head, body string
	}{
		"not sent":                            {true, "Content-Length: 100\r\n", ""},
		"cut short":                           {true, "Content-Length: 100\r\n", "grant_type="},
		"a chunk cut short":                   {true, "Transfer-Encoding: chunked\r\n", "64\r\ngrant_type="},
		"too large, chunked":                  {true, "Transfer-Encoding: chunked\r\n", "20000\r\n" + strings.Repeat("a", 100_000)},
		"after an error, in a crowd":          {true, "Content-Length: 100\r\nAuthorization: Basic eDp5\r\n", ""},
		"after an error":                      {false, "Content-Length: 100\r\nAuthorization: Basic eDp5\r\n", ""},
		"after an error, cut short":           {false, "Content-Length: 100\r\nAuthorization: Basic eDp5\r\n", "grant_type="},
		"after an error, chunked":             {false, "Transfer-Encoding: chunked\r\nAuthorization: Basic eDp5\r\n", "64\r\ngrant_type="},
		"after an error, expected":            {false, "Content-Length: 100\r\nExpect: 100-continue\r\nAuthorization: Basic eDp5\r\n", ""},
		"larger than is read, declared":       {false, "Content-Length: 100000\r\n", ""},
		"larger than net/http would read":     {false, "Content-Length: 1000000\r\n", ""},
		"too large, chunked, and then silent": {false, "Transfer-Encoding: chunked\r\n", "20000\r\n" + strings.Repeat("a", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			connect := r.wires(t)
			if request.crowded {
				crowd(t, connect)
			}
			c := connect()
			c.send(request.head, request.body)
			if a := c.receive(t); a.StatusCode != http.StatusBadRequest {
				t.Errorf("status %d", a.StatusCode)
			}
			if _, err := c.reader.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
				t.Errorf("the connection is still open: %v", err)
			}
		})
	}
}

// A GET has no body. If one is announced, the server does not wait for it either.
func TestUnsentBodyOfAGet(t *testing.T) {
	t.Parallel()
	c := newRig(t, nil).wires(t)()
	fmt.Fprint(c, "GET /token?service=registry.example.com HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	if a := c.receive(t); a.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", a.StatusCode)
	}
	if _, err := c.reader.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("the connection is still open: %v", err)
	}
}

// A client that sends its whole body keeps the connection, for any content, and however many others
// send nothing.
func TestWholeBodiesKeepTheirConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	connect := r.wires(t)
	crowd(t, connect)
	good := testkit.Value(io.ReadAll(post(r.token(t, nil)).Body))(t)
	c := connect()
	for _, request := range []struct {
		head, body string
		status     int
	}{
		{"", "grant_type=nonsense", http.StatusBadRequest},
		{"", "%zz", http.StatusBadRequest},
		{"Authorization: Basic eDp5\r\n", "grant_type=password", http.StatusBadRequest},
		{"", "", http.StatusBadRequest},
		{"Authorization: Basic eDp5\r\n", "", http.StatusBadRequest},
		{"", string(good), http.StatusOK},
	} {
		c.send(fmt.Sprintf("%sContent-Length: %d\r\n", request.head, len(request.body)), request.body)
		if a := c.receive(t); a.StatusCode != request.status || a.Close {
			t.Errorf("%s%s: status %d, last answer of the connection: %t", request.head, request.body, a.StatusCode, a.Close)
		}
	}
}
