package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// If distribution (2.8, 3.1) is going to reject a body, it neither sends 100 Continue nor responds
// before it has the body: for a chunk out of order, or a blob in the POST. A body is sent once, however long the answer takes.
func TestABodyThatNobodyAsksFor(t *testing.T) {
	for first, wait := range map[string]time.Duration{"": continueWithin, goOn: 0} {
		t.Run(strings.TrimSpace(first), func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				c := testkit.Value(New(Config{Name: "a", URL: "http://registry.example.com"}))(t)
				c.wants.Store(&learned{})
				ours, theirs := net.Pipe()
				c.wire.dial = func(context.Context, string, string) (net.Conn, error) { return ours, nil }
				const answers = 3 * time.Second
				go func() {
					r, err := http.ReadRequest(bufio.NewReader(theirs))
					if err != nil {
						return
					}
					_, _ = io.WriteString(theirs, first)
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(theirs, first)
					time.Sleep(answers)
					_, _ = io.WriteString(theirs, "HTTP/1.1 416 Requested Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")
				}()
				r := c.versionRequest(t.Context())
				r.Method, r.Body, r.ContentLength = http.MethodPatch, io.NopCloser(strings.NewReader("chunk")), 5
				began := time.Now()
				response := testkit.Value(c.Do(r, Need{}))(t)
				Discard(response)
				if took := time.Since(began); response.StatusCode != http.StatusRequestedRangeNotSatisfiable || took != wait+answers {
					t.Errorf("after %q: %s after %s", first, response.Status, took)
				}
				c.wire.CloseIdleConnections()
				_ = theirs.Close()
			})
		})
	}
}

// half ends what it sends at the first Close, as TLS does before its connection ends.
type half struct {
	*net.TCPConn
	closed atomic.Bool
}

func (c *half) Close() error {
	if !c.closed.Swap(true) {
		return c.CloseWrite()
	}
	return c.TCPConn.Close()
}

// A body that could not be read was not pushed, whatever the upstream answers to what it got.
func TestAnAnswerToAPartOfABody(t *testing.T) {
	t.Parallel()
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	}, nil)
	dial := c.wire.dial
	c.wire.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		inner, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &half{TCPConn: inner.(*net.TCPConn)}, nil
	}
	u := *c.Base()
	u.Path = "/v2/a/manifests/v1"
	body := io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("malformed"))))
	request := (&http.Request{Method: http.MethodPut, URL: &u, Host: u.Host, Header: http.Header{}, Body: body, ContentLength: -1}).WithContext(t.Context())
	var blamed *Error
	if response, err := c.send(request, "", &unsent{from: body}); !errors.Is(err, ErrBody) || errors.As(err, &blamed) {
		t.Errorf("%v, %v", response, err)
	}
}
