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

// records is a connection whose Read ends where a record of TLS ends (RFC 8446, section
// 5.1). crypto/tls reads as much as there is, and has then a piece of the next record,
// which doubles its buffer: 36 KiB instead of 18, for as long as a stream stalls. What
// comes as read is returned whatever it is; without records, as after a proxy's answer to CONNECT,
// Read is that of the connection.
//
// One read of the next record's header comes with each record, so there are no more
// system calls than records.
type records struct {
	net.Conn
	header [recordHeaderBytes]byte
	read   int // of the header
	given  int // of what was read of it
	rest   int // of the record behind a header that was given
	none   bool

	raw   syscall.RawConn // for isQuiet alone
	hasty bool            // what is not there now is not waited for
}

const recordHeaderBytes = 5

// Read is for one goroutine at a time, as crypto/tls calls it.
func (r *records) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0 || r.none && r.given == r.read:
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
	if ahead := n - r.rest; ahead > 0 { // p is larger, and nobody looks at its end
		r.read, r.given = copy(r.header[:], p[r.rest:n]), 0
		n, err = r.rest, nil // an error comes again, behind what was read ahead
	}
	r.rest -= n
	return n, err
}

// begin begins a record when its header was given.
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
		return r.Conn.Read(p)
	}
	var failed error
	if err := r.raw.Read(func(fd uintptr) bool {
		n, failed = syscall.Read(int(fd), p)
		return true // whether something was there or not
	}); err != nil {
		return 0, net.ErrClosed // nothing was read: also not that nothing is there
	}
	switch {
	case errors.Is(failed, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded // crypto/tls goes on after that
	case n <= 0:
		return 0, io.EOF
	}
	return n, nil
}

// isQuiet reports whether nothing has come that was not read yet, not even a piece of a
// record, by reading from the TLS connection above: it may hold something itself. What is
// TLS's own, as a ticket that comes late, it takes. After false it is of no use any more.
func (r *records) isQuiet(from io.Reader) bool {
	r.hasty = true
	n, err := from.Read(make([]byte, 1))
	r.hasty = false
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && r.read == 0 && r.rest == 0
}
