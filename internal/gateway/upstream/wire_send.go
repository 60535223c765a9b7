package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

var (
	errHeadEnd  = errors.New("the head of the request ends here")
	errAnswered = errors.New("the answer came before the end of the body")
	errLength   = errors.New("the body has not the length that was said")
)

// sending is a request body that is being sent.
type sending struct {
	done chan struct{}
	err  error // when it is done
}

// release gives a connection back after its response was read, as soon as the whole body is known
// to be sent. A response may come before the sender learns that its last bytes were written.
func (c *wireConn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.sending.done:
		c.end(c.sending)
	default:
		c.released = true
		_ = c.SetWriteDeadline(time.Now().Add(continueWithin))
	}
}

// end keeps the connection if the whole body was sent. Otherwise the upstream would take the next
// request for the rest of the body.
func (c *wireConn) end(s *sending) {
	if s.err == nil {
		c.wire.put(c)
		return
	}
	_ = c.Close()
}

// sendHead sends a request up to its body.
func (c *wireConn) sendHead(r *http.Request) error {
	var behind headEnd
	if hasBody(r) {
		r = r.WithContext(r.Context())
		r.Body = &behind
	}
	if err := r.Write(c.writer); err != nil && !behind.reached {
		return err
	}
	return c.writer.Flush()
}

// headEnd is a body that ends the writing of a request after its head.
type headEnd struct{ reached bool }

func (e *headEnd) Read([]byte) (int, error) {
	e.reached = true
	return 0, errHeadEnd
}

func (e *headEnd) Close() error { return nil }

// send starts to send the body of a request.
func (c *wireConn) send(r *http.Request) {
	s := &sending{done: make(chan struct{})}
	c.sending = s
	go func() {
		s.err = c.sendBody(r)
		c.mu.Lock()
		defer c.mu.Unlock()
		close(s.done)
		var unsent *writeError
		switch {
		case c.released:
			c.end(s)
		case s.err == nil, errors.Is(s.err, errAnswered):
		case errors.As(s.err, &unsent): // the upstream accepts no more, and may have sent the reason
			if !c.closed {
				_ = c.SetDeadline(time.Now().Add(continueWithin))
			}
		default: // the upstream must not take a partial body for a complete one
			_ = c.Close()
		}
	}()
}

// moved extends the upstream's deadline, and reports whether to continue the body.
func (c *wireConn) moved(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		_ = c.SetDeadline(time.Now().Add(c.wire.patience(r.Method)))
	}
	return !c.closed
}

// A piece of a body is sent in one TLS record. In chunked encoding, its size precedes it and a line
// end follows it (RFC 9112, section 7.1).
const (
	sizeBytes  = 8 // 00003ff6, and without the end of its line 6 digits
	pieceBytes = 16<<10 - sizeBytes - 2
)

func (c *wireConn) sendBody(r *http.Request) error {
	piece, left, inChunks := make([]byte, 16<<10), r.ContentLength, r.ContentLength <= 0
	for {
		if !c.moved(r) {
			return errAnswered
		}
		n, err := r.Body.Read(piece[sizeBytes : sizeBytes+pieceBytes])
		if n > 0 {
			if !c.moved(r) {
				return errAnswered
			}
			text := piece[sizeBytes : sizeBytes+n]
			switch {
			case inChunks:
				text = fmt.Appendf(piece[:0], "%06x\r\n", n)[:sizeBytes+n]
				text = append(text, "\r\n"...)
			case int64(n) > left:
				return errLength
			}
			left -= int64(n)
			if _, err := c.Write(text); err != nil {
				return &writeError{err}
			}
		}
		switch {
		case !inChunks && left == 0: // the answer may come before the body's end is read
			return nil
		case errors.Is(err, io.EOF) && inChunks:
			if _, err := io.WriteString(c, "0\r\n\r\n"); err != nil {
				return &writeError{err}
			}
			return nil
		case errors.Is(err, io.EOF):
			return errLength
		case err != nil:
			return err
		}
	}
}

// writeError says that the upstream does not accept a body.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

func (e *writeError) Unwrap() error { return e.err }
