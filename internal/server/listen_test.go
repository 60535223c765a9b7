package server

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A client that reads no response fills the kernel's buffers, which are small: they count as the container's
// memory, and nothing else bounds them.
func TestResponsesThatAreNotRead(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := testkit.Value(net.Dial("tcp", p.Address))(t).(*net.TCPConn)
	defer raw.Close()
	testkit.Must(t, errors.Join(raw.SetReadBuffer(16<<10), raw.SetWriteBuffer(16<<10)))
	config := p.Client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "127.0.0.1"
	client := tls.Client(raw, config)
	testkit.Must(t, client.Handshake())
	requests := strings.Repeat("GET /certificates.pem HTTP/1.1\r\nHost: localhost\r\n\r\n", 20)
	sent := 0
	for sent < 1<<20 {
		testkit.Must(t, client.SetWriteDeadline(time.Now().Add(2*time.Second)))
		n, err := io.WriteString(client, requests)
		sent += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		testkit.Must(t, err)
	}
	t.Logf("%d bytes of requests were taken", sent)
	if sent > 125_000 {
		t.Errorf("%d bytes of requests were taken", sent)
	}
}
