package upstream

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// stubConn is a connection of which a write can fail.
type stubConn struct {
	net.Conn
	fails     string // a write of this text fails
	writing   func()
	written   strings.Builder
	deadlines []time.Duration // from the moment on
	closed    bool
}

var errPipe = errors.New("broken pipe")

func (c *stubConn) Write(p []byte) (int, error) {
	c.writing()
	c.written.Write(p)
	if c.fails != "" && strings.Contains(string(p), c.fails) {
		return 0, errPipe
	}
	return len(p), nil
}

func (c *stubConn) SetDeadline(at time.Time) error {
	c.deadlines = append(c.deadlines, time.Until(at))
	return nil
}

func (c *stubConn) SetWriteDeadline(time.Time) error { return nil }

func (c *stubConn) Close() error {
	c.closed = true
	return nil
}

// The sending of a body ends in several ways, and the connection is kept or closed. The upstream must not take a part of a body for all of it, and an answer
// that comes instead is still read.
func TestEndsOfBodies(t *testing.T) {
	t.Parallel()
	broken := errors.New("the client's body breaks off")
	for name, test := range map[string]struct {
		body     io.Reader
		length   int64
		fails    string
		answered string // when the answer is there: before, or while something is read or written
		err      error
		closed   bool
		written  string
		hurried  bool // the answer may take a second, not the usual time
	}{
		"whole":                        {body: strings.NewReader("text"), length: 4, written: "text"},
		"whole, in chunks":             {body: strings.NewReader("text"), length: -1, written: "000004\r\ntext\r\n0\r\n\r\n"},
		"of unknown length":            {body: strings.NewReader(""), length: 0, written: "0\r\n\r\n"},
		"too short":                    {body: strings.NewReader("te"), length: 4, err: errLength, closed: true, written: "te"},
		"too long":                     {body: strings.NewReader("texts"), length: 4, err: errLength, closed: true},
		"broken off":                   {body: iotest.ErrReader(broken), length: 4, err: broken, closed: true},
		"broken off, in chunks":        {body: io.MultiReader(strings.NewReader("te"), iotest.ErrReader(broken)), length: -1, err: broken, closed: true, written: "000002\r\nte\r\n"},
		"answered before":              {body: iotest.ErrReader(broken), length: 4, answered: "before", err: errAnswered},
		"answered while it is read":    {body: strings.NewReader("text"), length: 4, answered: "read", err: errAnswered},
		"refused":                      {body: iotest.OneByteReader(strings.NewReader("text")), length: 4, fails: "e", err: errPipe, written: "te", hurried: true},
		"refused at its end":           {body: strings.NewReader("text"), length: -1, fails: "0\r\n\r\n", err: errPipe, written: "000004\r\ntext\r\n0\r\n\r\n", hurried: true},
		"refused, and answered before": {body: strings.NewReader("text"), length: 4, fails: "text", answered: "written", err: errPipe, written: "text"},
	} {
		conn := &stubConn{fails: test.fails}
		c := &wireConn{Conn: conn, wire: &wire{}}
		answer := func(when string) {
			if when == test.answered {
				c.mu.Lock()
				c.closed = true
				c.mu.Unlock()
			}
		}
		answer("before")
		conn.writing = func() { answer("written") }
		body := io.TeeReader(test.body, writerFunc(func(p []byte) (int, error) { answer("read"); return len(p), nil }))
		c.send(&http.Request{Method: http.MethodPut, Body: io.NopCloser(body), ContentLength: test.length})
		<-c.sending.done
		c.mu.Lock() // the sending has released it
		last := time.Hour
		if n := len(conn.deadlines); n > 0 {
			last = conn.deadlines[n-1]
		}
		if !errors.Is(c.sending.err, test.err) || conn.closed != test.closed || conn.written.String() != test.written || last <= continueWithin != test.hurried {
			t.Errorf("%s: %v, closed %t, written %q, the last deadline after %s", name, c.sending.err, conn.closed, conn.written.String(), last)
		}
		if begun := len(conn.deadlines) > 0; begun == (test.answered == "before") {
			t.Errorf("%s: a deadline is set: %t", name, begun)
		}
		c.mu.Unlock()
		if c.end(&sending{err: errLength}); !conn.closed || len(c.wire.idle) > 0 {
			t.Errorf("%s: the connection is used again", name)
		}
	}
}

// An answer can be read to its end before the last bytes of a body are known to be written. Then the connection waits for that.
func TestReleasedConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		length int64
		idle   int
	}{"whole": {4, 1}, "too short": {5, 0}} {
		conn := &stubConn{writing: func() {}}
		c := &wireConn{Conn: conn, wire: &wire{}}
		reader, writer := io.Pipe()
		c.send(&http.Request{Method: http.MethodPut, Body: reader, ContentLength: test.length})
		c.release()
		if len(c.wire.idle) > 0 || conn.closed {
			t.Errorf("%s: it did not wait", name)
		}
		_, _ = io.WriteString(writer, "text")
		_ = writer.Close()
		<-c.sending.done
		c.mu.Lock()
		if len(c.wire.idle) != test.idle || conn.closed == (test.idle > 0) {
			t.Errorf("%s: %d idle, closed %t", name, len(c.wire.idle), conn.closed)
		}
		c.mu.Unlock()
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
