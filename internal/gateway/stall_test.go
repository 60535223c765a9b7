package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// body is a body that stalls until its request ends, like those of net/http.
type body struct{ ctx context.Context }

func (b body) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

// A response that stalls is distinguished from one that broke off.
func TestStalledBody(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		q := &request{
			http: httptest.NewRequest(http.MethodGet, "/v2/", nil), w: httptest.NewRecorder(),
			body: &clientBody{}, event: &exchange.Event{Gateway: &exchange.GatewayRequest{}}, target: target{upstream: "ghcr.io"},
		}
		err := (&Handler{}).stream(cancel, q, http.StatusOK, body{ctx})
		var failed *upstream.Error
		if !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || failed.Status != http.StatusOK || time.Since(began) != stallTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}

		ctx, cancel = context.WithCancelCause(t.Context())
		err = (&Handler{}).answerTags(cancel, q, &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body{ctx})}, "")
		if failed = nil; !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || failed.Status != http.StatusOK || time.Since(began) != 2*stallTimeout {
			t.Errorf("a list of tags: %v after %s", err, time.Since(began))
		}
	})
}

// paced is a client that reads each piece slowly.
type paced struct {
	*httptest.ResponseRecorder
	pace   time.Duration
	pieces []int
}

func (c *paced) Write(p []byte) (int, error) {
	time.Sleep(c.pace)
	c.pieces = append(c.pieces, len(p))
	return len(p), nil
}

// A client that reads a layer slowly holds half as much memory as a fast one.
func TestSlowClientsHoldSmallPieces(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		for _, test := range []struct {
			pace        time.Duration
			bytes, last int
		}{
			{0, takenAtOnce, smallBytes}, {0, 2 * takenAtOnce, largeBytes}, {2 * atOnce, 2 * takenAtOnce, smallBytes},
		} {
			client := &paced{ResponseRecorder: httptest.NewRecorder(), pace: test.pace}
			sent, err := pass(client, bytes.NewReader(make([]byte, test.bytes)), func() {})
			if err != nil || sent != int64(test.bytes) || client.pieces[0] != smallBytes || slices.Max(client.pieces) != test.last {
				t.Errorf("%d bytes, each piece in %s: %d sent, %v, pieces from %d to %d", test.bytes, test.pace, sent, err, client.pieces[0], slices.Max(client.pieces))
			}
		}
	})
}

// pipe is a listener with one connection in memory, whose deadlines are in a bubble's time.
type pipe chan net.Conn

func (p pipe) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipe) Close() error   { return nil }
func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }

// connected returns a client's connection to a server.
func connected(t *testing.T, server *http.Server) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	listener := make(pipe, 1)
	listener <- theirs
	go func() {
		if server.TLSConfig != nil {
			_ = server.ServeTLS(listener, "", "")
		} else {
			_ = server.Serve(listener)
		}
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		close(listener)
		_ = server.Close()
	})
	return ours
}

// A client gets all that was sent before its stream ended, and sees that this is not everything. It
// must not see a fault of TLS instead: a record that is not sent in time leaves a gap.
func TestTheEndOfAStreamOverTLS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sent       int
		ends, read time.Duration // when the stream is ended, if at all, and when the client begins to read
	}{
		"a stall":                     {sent: 5000},
		"a stall in the first bytes":  {sent: 10},
		"an ended stream":             {sent: 5000, ends: time.Second},
		"ended while the client lags": {sent: 5000, ends: time.Second, read: time.Second + time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				h := &Handler{Config: Config{Memory: NewMemory(16), Recorder: &unrevoked{}, Logger: testkit.QuietLogger(), Now: time.Now}}
				ca := pkitest.NewAuthority(t, "test")
				server := &http.Server{
					Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						q := &request{http: r, w: w, body: newClientBody(w, r), bearer: &bearer{}, event: &exchange.Event{Gateway: &exchange.GatewayRequest{}}, target: target{upstream: "ghcr.io"}}
						defer h.finish(q)
						st := testkit.Value(h.admit(q))(t)
						if test.ends > 0 {
							time.AfterFunc(test.ends, func() { st.end(errShared) })
						}
						err := h.stream(st.cancel, q, http.StatusOK, io.MultiReader(bytes.NewReader(make([]byte, test.sent)), body{q.http.Context()}))
						h.refuse(q, cmp.Or(st.leave(q), err))
					}),
					TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*ca.Client(t, "gateway")}},
				}
				client := tls.Client(connected(t, server), &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool(), ServerName: "localhost"})
				defer func() { _ = client.Close() }()
				testkit.Value(io.WriteString(client, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
				time.Sleep(test.read)
				response := testkit.Value(http.ReadResponse(bufio.NewReader(client), nil))(t)
				if got, err := io.ReadAll(response.Body); len(got) != test.sent || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%d bytes of %d, %v", len(got), test.sent, err)
				}
			})
		})
	}
}

// A client that stalls in its own body is told so. A canceled request gets no response, also where
// the client could still read one.
func TestStalledPush(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sent   string
		status int // of the response, 0: none
		logged int
		text   string
	}{
		"a stall":   {sent: "4\r\nhalf\r\n", status: http.StatusRequestTimeout, logged: http.StatusRequestTimeout, text: "two minutes"},
		"malformed": {sent: "4\r\nhalf\r\nrest\r\n", logged: 499, text: "did not send"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				recorded := &unrevoked{}
				h := &Handler{Config: Config{Memory: NewMemory(16), Recorder: recorded, Logger: testkit.QuietLogger(), Now: time.Now}}
				client := connected(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					q := &request{http: r, w: w, body: newClientBody(w, r), event: &exchange.Event{Gateway: &exchange.GatewayRequest{}}}
					defer h.finish(q)
					failed := make(chan error, 1)
					go func() {
						_, err := io.Copy(io.Discard, q.body)
						failed <- fmt.Errorf("%w: %w", upstream.ErrBody, err)
					}()
					select { // as upstream.Client, which may see the end of the context first
					case err := <-failed:
						h.refuse(q, err)
					case <-r.Context().Done():
						h.refuse(q, r.Context().Err())
					}
				})})
				testkit.Value(io.WriteString(client, "PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"+test.sent))(t)
				got := testkit.Value(io.ReadAll(client))(t)
				want := ""
				if test.status > 0 {
					want = fmt.Sprintf("HTTP/1.1 %d ", test.status)
				}
				e := recorded.event
				if !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 || e.Status != test.logged || e.Result != exchange.ResultGranted || e.Reason != string(refusal.RequestCanceled) || !strings.Contains(e.Message, test.text) {
					t.Errorf("%q, recorded %d %s %s: %s", got, e.Status, e.Result, e.Reason, e.Message)
				}
			})
		})
	}
}
