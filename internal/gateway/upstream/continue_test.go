package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// If distribution (2.8, 3.1) is going to reject a body, it neither sends 100 Continue nor responds
// before it has the body: for a chunk out of order, or a blob in the POST.
func TestABodyThatNobodyAsksFor(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := testkit.Value(New(Config{Name: "a", URL: "http://registry.example.com"}))(t)
		c.wants.Store(&learned{})
		ours, theirs := net.Pipe()
		c.wire.dial = func(context.Context, string, string) (net.Conn, error) { return ours, nil }
		go func() {
			r, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(theirs, "HTTP/1.1 416 Requested Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")
		}()
		r := c.versionRequest(t.Context())
		r.Method, r.Body, r.ContentLength = http.MethodPatch, io.NopCloser(strings.NewReader("chunk")), 5
		began := time.Now()
		response := testkit.Value(c.Do(r, Need{}))(t)
		Discard(response)
		if took := time.Since(began); response.StatusCode != http.StatusRequestedRangeNotSatisfiable || took != continueWithin || took > time.Second {
			t.Errorf("%s after %s", response.Status, took)
		}
		c.wire.CloseIdleConnections()
		_ = theirs.Close()
	})
}
