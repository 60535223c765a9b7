package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/testkit"
)

// distribution (2.8, 3.1) neither says that it wants a body, nor answers before it has it, when
// it has no use for it: a chunk out of order, a blob in the POST.
func TestABodyThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Name: "a", URL: "http://registry.example.com"})
		testkit.Must(t, err)
		c.wants.Store(&challenge{})
		ours, theirs := net.Pipe()
		c.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return ours, nil }
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
		response, err := c.Do(r, Need{})
		testkit.Must(t, err)
		Discard(response)
		if took := time.Since(began); response.StatusCode != http.StatusRequestedRangeNotSatisfiable || took != continueWithin || took > time.Second {
			t.Errorf("%s after %s", response.Status, took)
		}
		c.transport.CloseIdleConnections()
		_ = theirs.Close()
	})
}
