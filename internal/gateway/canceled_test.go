package gateway_test

import (
	"cmp"
	"context"
	"crypto/sha512"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A client that hangs up is recorded with the status that it was sent. It is not a failure of the
// upstream.
func TestClientsThatLeave(t *testing.T) {
	t.Parallel()
	const base = "/v2/ghcr.io/acme/app"
	for name, test := range map[string]struct {
		request string // without its Host and Authorization
		answer  func(w http.ResponseWriter, r *http.Request)
		read    int // of the answer, before the client leaves
		status  int
	}{
		"before the answer": {
			request: "GET " + base + "/manifests/v1 HTTP/1.1\r\n\r\n",
			answer: func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
			},
			status: 499,
		},
		"in an answer that does not end": {
			request: "GET " + base + "/blobs/" + registrytest.DigestOf(nil) + " HTTP/1.1\r\n\r\n",
			answer: func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					_, _ = io.WriteString(w, strings.Repeat("x", 1<<16))
				}
			},
			read: 4096, status: 200,
		},
		"in an answer that waits": {
			request: "GET " + base + "/blobs/" + registrytest.DigestOf(nil) + " HTTP/1.1\r\n\r\n",
			answer: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<14)) // less stays in buffers
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
			read: 1, status: 200,
		},
		"in a list of tags": {
			request: "GET " + base + "/tags/list HTTP/1.1\r\n\r\n",
			answer: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, `{"name":`)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
			status: 499,
		},
		"in its own body": {
			request: "POST " + base + "/blobs/uploads/ HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf",
			answer: func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			},
			status: 499,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, r := newGHCR(t)
			asked := make(chan struct{}, 1)
			registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
				if q.URL.Path == "/v2/" {
					return false
				}
				asked <- struct{}{}
				test.answer(w, q)
				return true
			})
			first, rest, _ := strings.Cut(test.request, "\r\n")
			connection := testkit.Value(net.Dial("tcp", r.Listener.Addr().String()))(t)
			testkit.Must(t, connection.SetDeadline(time.Now().Add(time.Minute)))
			testkit.Value(fmt.Fprintf(connection, "%s\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n%s", first, r.token("web", "repository:ghcr.io/acme/app:pull,push"), rest))(t)
			<-asked
			testkit.Value(io.CopyN(io.Discard, connection, int64(test.read)))(t)
			testkit.Must(t, connection.Close())
			r.Close() // when the request has ended
			if e := r.one(); e.Status != test.status || e.Result != "granted" || e.Reason != "request_canceled" || e.Message == "" {
				t.Errorf("%s", shown(e))
			}
			if status := r.clients["ghcr.io"].Status(); status.Failure != "" {
				t.Errorf("the upstream fails: %s", status.Failure)
			}
		})
	}
}

// A manifest was not pushed if the upstream was not sent all of it. Its digest is only a claim.
func TestPushOfHalfAManifest(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	connection := testkit.Value(net.Dial("tcp", r.Listener.Addr().String()))(t)
	testkit.Value(fmt.Fprintf(connection, "PUT /v2/ghcr.io/acme/app/manifests/%s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: 3\r\n\r\n{}",
		registrytest.DigestOf([]byte("{}")), r.token("web", "repository:ghcr.io/acme/app:pull,push"), registrytest.ManifestType))(t)
	testkit.Must(t, connection.(*net.TCPConn).CloseWrite())
	testkit.Value(io.Copy(io.Discard, connection))(t)
	testkit.Must(t, connection.Close())
	if e := r.one(); e.Reason != "request_canceled" || e.Gateway.Received != 2 || e.Gateway.Digest != "" {
		t.Errorf("%s", shown(e))
	}
}

// A client does not hide that it pushed a manifest by hanging up. It keeps its place meanwhile, and a
// revocation still ends its request.
func TestPushersThatLeave(t *testing.T) {
	t.Parallel()
	digest := registrytest.DigestOf([]byte("{}"))
	for name, test := range map[string]struct {
		upstream, status int
		revoked, chunked bool
		reason           string
		reference        string // a digest; empty: v1
	}{
		"stored":  {upstream: 201, status: 201},
		"sha512":  {upstream: 500, status: 499, reason: "request_canceled", reference: fmt.Sprintf("sha512:%x", sha512.Sum512([]byte("{}")))},
		"chunked": {upstream: 500, status: 499, reason: "request_canceled", chunked: true},
		"invalid": {upstream: 400, status: 400},
		"denied":  {upstream: 403, status: 499, reason: "request_canceled"},
		"failing": {upstream: 500, status: 499, reason: "request_canceled"},
		"revoked": {revoked: true, status: 403, reason: "revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, r := newGHCR(t)
			asked, clients, answers := make(chan struct{}, 1), make(chan context.Context, 1), make(chan struct{})
			r.config.Caller = func(q *http.Request) nodeproof.Caller {
				clients <- q.Context()
				return nodeproof.Caller{}
			}
			registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
				if q.URL.Path == "/v2/" {
					return false
				}
				_, _ = io.Copy(io.Discard, q.Body)
				asked <- struct{}{}
				select {
				case <-q.Context().Done():
				case <-answers:
					w.Header().Set("Docker-Content-Digest", digest)
					w.WriteHeader(test.upstream)
				}
				return true
			})
			connection := testkit.Value(net.Dial("tcp", r.Listener.Addr().String()))(t)
			body := "Content-Length: 2\r\n\r\n{}"
			if test.chunked {
				body = "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
			}
			testkit.Value(fmt.Fprintf(connection, "PUT /v2/ghcr.io/acme/app/manifests/%s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\n%s",
				cmp.Or(test.reference, "v1"), r.token("web", "repository:ghcr.io/acme/app:pull,push"), registrytest.ManifestType, body))(t)
			<-asked
			testkit.Must(t, connection.Close())
			<-(<-clients).Done() // the gateway knows that the client is gone
			if load := r.memory.Load(); load.Streams != 1 {
				t.Errorf("%d streams", load.Streams)
			}
			if test.revoked {
				r.revocations.set("jti-web")
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go r.memory.Run(ctx)
			} else {
				close(answers)
			}
			if e := r.one(); e.Status != test.status || e.Reason != test.reason || e.Gateway.Digest != cmp.Or(test.reference, digest) || e.Gateway.UpstreamStatus != test.upstream || e.Gateway.Received != 2 {
				t.Errorf("%s", shown(e))
			}
			testkit.Eventually(t, "the place is given back", func() bool { return r.memory.Load().Streams == 0 })
		})
	}
}
