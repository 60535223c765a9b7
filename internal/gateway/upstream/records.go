package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// inRecords returns a dialer's DialContext, for TLS.
func inRecords(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &records{Conn: c}, nil
	}
}

// records is a connection whose Read ends at the end of a TLS record (RFC 8446, section 5.1).
// crypto/tls reads all available data. If that includes a piece of the next record, its buffer
// doubles, to 36 KiB from 18, for as long as a stream stalls. The data itself is returned
// unchanged. Without records, as after a proxy's response to CONNECT, Read is that of the
// connection.
//
// The next record's header is read together with each record. There are therefore no more system
// calls than records.
type records struct {
	net.Conn
	header [recordHeaderBytes]byte
	read   int // bytes of the header
	given  int // of those, already returned
	rest   int // bytes left of the record whose header was returned
	none   bool
	whole  bool // an end of the connection without a TLS announcement is an error

	raw   syscall.RawConn // for isQuiet alone, which is false without it
	hasty bool            // do not wait for data
}

const recordHeaderBytes = 5

var errCut = errors.New("the connection ended, and TLS had not said so")

// Read is for one goroutine at a time, as crypto/tls calls it.
func (r *records) Read(p []byte) (int, error) {
	switch {
	case r.none:
		return r.next(p)
	case r.given < r.read:
		n := copy(p, r.header[r.given:r.read])
		r.given += n
		r.begin()
		return n, nil
	case r.rest == 0:
		n, err := r.next(p[:min(len(p), recordHeaderBytes-r.read)])
		r.read += copy(r.header[r.read:], p[:n])
		r.given = r.read
		r.begin()
		return n, err
	}
	n, err := r.next(p[:min(len(p), r.rest+recordHeaderBytes)])
	if ahead := n - r.rest; ahead > 0 { // p is larger, but crypto/tls ignores the bytes behind n
		r.read, r.given = copy(r.header[:], p[r.rest:n]), 0
		n, err = r.rest, nil // the next read returns the error again, after the header that was read ahead
	}
	r.rest -= n
	return n, err
}

// begin starts a record after its whole header was returned.
func (r *records) begin() {
	if r.given < recordHeaderBytes {
		return
	}
	kind, version := r.header[0], r.header[1]
	r.none = kind < 20 || kind > 24 || version != 3
	r.rest = int(r.header[3])<<8 | int(r.header[4])
	r.read, r.given = 0, 0
}

// next reads what comes next on the connection.
func (r *records) next(p []byte) (n int, err error) {
	if !r.hasty {
		n, err = r.Conn.Read(p)
		// crypto/tls takes an end between two records for the end of the connection. A body without
		// a length would end there too (RFC 9112, section 9.8).
		if r.whole && !r.none && errors.Is(err, io.EOF) {
			err = errCut
		}
		return n, err
	}
	var failed error
	_ = r.raw.Read(func(fd uintptr) bool { // with an error, nothing was read: also not that nothing is there
		n, failed = readNow(fd, p)
		return true // whether something was there or not
	})
	switch {
	case errors.Is(failed, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded // crypto/tls goes on after that
	case n <= 0:
		return 0, io.EOF
	}
	return n, nil
}

// isQuiet reports whether no unread data has arrived, not even a piece of a record. It reads from
// the TLS connection above, which may buffer data itself. TLS consumes its own messages, such as a
// late session ticket. After false, r must not be used any more.
func (r *records) isQuiet(from io.Reader) bool {
	if r.raw == nil {
		return false
	}
	r.hasty = true
	_, err := from.Read(make([]byte, 1))
	r.hasty = false
	return errors.Is(err, os.ErrDeadlineExceeded) && r.read == 0 && r.rest == 0
}
