package upstream

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// readerConn is a connection with the data of a reader.
type readerConn struct {
	net.Conn
	io.Reader
}

func (c readerConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func record(kind byte, body int) []byte {
	return append([]byte{kind, 3, 3, byte(body >> 8), byte(body)}, bytes.Repeat([]byte{7}, body)...)
}

func TestRecordsEndReads(t *testing.T) {
	t.Parallel()
	var stream []byte
	ends := map[int]bool{}
	for _, body := range []int{1, 0, 16401, 5, 0, 0, 300, 16384} {
		stream = append(stream, record(23, body)...)
		ends[len(stream)] = true
	}
	r := &records{Conn: readerConn{Reader: bytes.NewReader(stream)}}
	p := make([]byte, 20<<10)
	for read := 0; read < len(stream); {
		n := testkit.Value(r.Read(p))(t)
		if !bytes.Equal(p[:n], stream[read:read+n]) {
			t.Fatalf("other bytes at %d", read)
		}
		read += n
		// A read returns a header or a body, and never a piece of the next record.
		if !ends[read] && !ends[read-recordHeaderBytes] && read != recordHeaderBytes {
			t.Errorf("a read ends at %d", read)
		}
	}
	if n, err := r.Read(p); n != 0 || err != io.EOF {
		t.Errorf("%d, %v at the end", n, err)
	}
}

// All data is returned unchanged, in any pieces.
func FuzzRecords(f *testing.F) {
	f.Add(append(record(22, 40), record(23, 700)...), uint8(255))
	f.Add([]byte("HTTP/1.1 200 Connection established\r\n\r\n\x16\x03\x01\x00\x05hello"), uint8(3))
	f.Add([]byte{23, 3, 3, 255, 255, 1, 2}, uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		for name, inner := range map[string]io.Reader{
			"at once": bytes.NewReader(stream), "by bytes": iotest.OneByteReader(bytes.NewReader(stream)), "by halves": iotest.HalfReader(bytes.NewReader(stream)),
			"with the end": iotest.DataErrReader(bytes.NewReader(stream)),
		} {
			r := &records{Conn: readerConn{Reader: inner}}
			var got bytes.Buffer
			if _, err := io.CopyBuffer(&got, struct{ io.Reader }{r}, make([]byte, int(size)+1)); err != nil || !bytes.Equal(got.Bytes(), stream) {
				t.Errorf("%s: %d bytes of %d, %v", name, got.Len(), len(stream), err)
			}
		}
	})
}

// largestRead records the largest buffer of a Read.
type largestRead struct {
	net.Conn
	bytes int
}

func (c *largestRead) Read(p []byte) (int, error) {
	c.bytes = max(c.bytes, len(p))
	return c.Conn.Read(p)
}

// Mistake: a stalled stream holds twice as much TLS data as one record.
func TestTLSHoldsOneRecord(t *testing.T) {
	t.Parallel()
	const body = 4 << 20
	cert, key := pkitest.NewAuthority(t, "upstream").Leaf(t, "upstream", -1, 1<<40)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	testkit.Must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, DynamicRecordSizingDisabled: true})
	testkit.Must(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = c.Write(make([]byte, body))
			_ = c.Close()
		}
	}()
	inner, err := inRecords(&net.Dialer{})(t.Context(), "tcp", l.Addr().String())
	testkit.Must(t, err)
	spy := &largestRead{Conn: inner}
	client := tls.Client(spy, &tls.Config{InsecureSkipVerify: true}) // the test does not check the certificate
	defer client.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{client}, make([]byte, 8<<10))
	if n != body || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if spy.bytes > 20<<10 {
		t.Errorf("the buffer of TLS has room for %d bytes", spy.bytes)
	}
}
