package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// replying answers all but GET /v2/ with a status, headers and a body, after it has read the request's body.
func replying(s *registrytest.Server, status int, body string, header ...string) {
	s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	})
}

// Only methods that push send a body, and only if the client sent one. The query of an upload's address
// stays as the upstream wrote it.
func TestBodiesThatAreForwarded(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const base, repository, text = "/v2/ghcr.io/acme/app", "ghcr.io/acme/app", "text"
	digest := registrytest.DigestOf([]byte(text))
	replying(registry, http.StatusAccepted, "", "Location", "/v2/acme/app/blobs/uploads/x?b=2&a=1&c")
	at := r.push(http.MethodPost, base+"/blobs/uploads/", repository, "").header.Get("Location")
	const own = "/v2/acme/app/blobs/uploads/x?"
	for _, test := range []struct {
		method, path, body, media string
		uri, sent, declared       string // that the upstream gets; declared is "none" without a Content-Type
	}{
		{"GET", base + "/manifests/v1", text, "application/json", "/v2/acme/app/manifests/v1", "", "none"},
		{"DELETE", base + "/manifests/v1", text, "application/json", "/v2/acme/app/manifests/v1", "", "none"},
		{"PUT", base + "/manifests/v1", text, "application/json", "/v2/acme/app/manifests/v1", text, "application/json"},
		{"PUT", base + "/manifests/v1", text, "text/plain", "/v2/acme/app/manifests/v1", text, "none"},
		{"PUT", base + "/manifests/v1", "", "application/json", "/v2/acme/app/manifests/v1", "", "none"},
		{"POST", base + "/blobs/uploads/", "", "", "/v2/acme/app/blobs/uploads/", "", "none"},
		{"POST", base + "/blobs/uploads/?digest=" + digest, text, "", "/v2/acme/app/blobs/uploads/?digest=sha256%3A" + digest[7:], text, "application/octet-stream"},
		{"GET", at, text, "application/json", own + "b=2&a=1&c", "", "none"},
		{"DELETE", at, text, "application/json", own + "b=2&a=1&c", "", "none"},
		{"PATCH", at, text, "", own + "b=2&a=1&c", text, "application/octet-stream"},
		{"PATCH", at + "?digest=" + digest, text, "", own + "b=2&a=1&c", text, "application/octet-stream"},
		{"PUT", at, "", "", own + "b=2&a=1&c", "", "none"},
		{"PUT", at + "?digest=" + digest, text, "", own + "a=1&b=2&c=&digest=sha256%3A" + digest[7:], text, "application/octet-stream"},
	} {
		got := make(chan string, 2)
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/v2/" {
				return false
			}
			body, _ := io.ReadAll(q.Body)
			media, ok := q.Header["Content-Type"]
			if !ok {
				media = []string{"none"}
			}
			got <- fmt.Sprintf("%s %s %q %d %v %q", q.Method, q.URL.RequestURI(), body, q.ContentLength, q.TransferEncoding, media)
			w.WriteHeader(http.StatusOK)
			return true
		})
		r.events.take()
		token := r.token("web", "repository:"+repository+":*")
		answer := r.do(test.method, test.path, token, strings.NewReader(test.body), "Content-Type", test.media)
		want := fmt.Sprintf("%s %s %q %d [] [%q]", test.method, test.uri, test.sent, len(test.sent), test.declared)
		if answer.status != http.StatusOK {
			t.Errorf("%s %s: %d %s", test.method, test.path, answer.status, answer.body)
		} else if asked := <-got; asked != want || len(got) > 0 {
			t.Errorf("%s %s: the upstream got %s, want %s", test.method, test.path, asked, want)
		}
		if e := r.one(); e.Gateway.Received != int64(len(test.sent)) {
			t.Errorf("%s %s: %s", test.method, test.path, shown(e))
		}
	}
}

// A blob is mounted only if a mount is asked for, and its digest does not count for a blob that is sent at once.
func TestChallengesOfOtherRequests(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	digest := registrytest.DigestOf(nil)
	const own = `,scope="repository:ghcr.io/acme/app:pull`
	for request, want := range map[string]string{
		"GET /v2/": "", "HEAD /v2/": "",
		"GET /v2/ghcr.io/acme/app/manifests/v1":                                                   own + `"`,
		"GET /v2/ghcr.io/acme/app/manifests/v1?mount=" + digest + "&from=acme/base":               own + `"`,
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?from=acme/base":                                 own + `,push"`,
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?mount=" + digest:                                own + `,push"`,
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?mount=" + digest + "&from=acme/base":            own + `,push repository:ghcr.io/acme/base:pull"`,
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?mount=" + digest + "&from=ghcr.io/acme/../base": own + `,push"`,
	} {
		method, path, _ := strings.Cut(request, " ")
		got := r.do(method, path, "", nil)
		if want = `Bearer realm="` + r.URL + `/token",service="` + service + `"` + want; got.status != 401 || got.header.Get("WWW-Authenticate") != want {
			t.Errorf("%s: %d %s, want %s", request, got.status, got.header.Get("WWW-Authenticate"), want)
		}
	}
	if got := r.do(http.MethodHead, "/v2/", r.token("web"), nil); got.status != 200 {
		t.Errorf("HEAD /v2/: %d", got.status)
	}
}

// The event of a request says what it asked for, and nothing that it did not ask for.
func TestEventsOfRequests(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	replying(registry, http.StatusAccepted, "", "Location", "/v2/acme/app/blobs/uploads/x")
	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "").header.Get("Location")
	good := r.token("web", "repository:ghcr.io/acme/app:*")
	for _, test := range []struct {
		method, path, token string
		want                string // method, kind, reference and tags
	}{
		{"GET", "/v2/", "x", "GET version  [] []"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/v1", "x", "GET manifest v1 [] [repository:ghcr.io/acme/app:pull]"},
		{"PATCH", at, good, "PATCH upload  [] [repository:ghcr.io/acme/app:pull,push]"},
		{"PUT", "/v2/ghcr.io/acme/app/blobs/uploads/a-b?tag=v1", good, "PUT upload  [] [repository:ghcr.io/acme/app:pull,push]"},
		{"DELETE", "/v2/ghcr.io/acme/app/manifests/v1", good, "DELETE manifest v1 [] [repository:ghcr.io/acme/app:delete]"},
		{"FORGET", "/v2/ghcr.io/acme/app/manifests/v1", good, "of this request   [] []"},
	} {
		r.events.take()
		r.do(test.method, test.path, test.token, nil)
		e := r.one()
		g := e.Gateway
		if got := fmt.Sprintf("%s %s %s %v %v", g.Method, g.Kind, g.Reference, g.Tags, e.Requested); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.method, test.path, got, test.want)
		}
	}
}

// The event has the pod and the node of a token that names them, the time, and the trace if there is one.
func TestEventsOfHolders(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	replying(registry, http.StatusNotFound, "")
	at := time.Now().Add(-time.Second).UTC()
	r.config.Now = func() time.Time { return at }
	scope := testkit.Value(registryauth.ParseScope("repository:ghcr.io/acme/app:pull"))(t)
	spans := tracetest.NewSpanRecorder()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
	for _, named := range []bool{false, true} {
		holder := &registryauth.Holder{Cluster: "prod", Namespace: "team-a", ServiceAccount: "web", TokenID: "x"}
		request := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", nil)
		trace := ""
		if named {
			holder.Pod, holder.Node = "pod-1", "node-1"
			request = request.WithContext(ctx)
			trace = root.SpanContext().TraceID().String()
		}
		issued := testkit.Value(r.issuer.Issue(registryauth.Grant{Subject: "system:serviceaccount:team-a:web", Access: []registryauth.Scope{scope}, Holder: holder}))(t)
		request.Header.Set("Authorization", "Bearer "+issued.Value.Reveal())
		r.handler().ServeHTTP(httptest.NewRecorder(), request)
		e := r.one()
		if (e.Pod != nil) != named || (e.Node != nil) != named || named && (e.Pod.Name != "pod-1" || e.Node.Name != "node-1") || e.TraceID != trace || !e.Time.Equal(at) || e.Latency != 0 {
			t.Errorf("named %t: %s", named, shown(e))
		}
	}
	root.End()
	all := spans.Ended()
	if seen := fmt.Sprint(all[len(all)-1].Attributes()); !strings.Contains(seen, "pullpass.kind") || !strings.Contains(seen, "manifest") {
		t.Errorf("the span has %s", seen)
	}
}

// The next page of the referrers of a manifest has the gateway's address.
func TestNextReferrers(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	own := "/referrers/" + registrytest.DigestOf(nil)
	replying(registry, http.StatusOK, "{}", "Link", "</v2/acme/app"+own+`?last=a>; rel="next"`)
	if got := r.pull("/v2/ghcr.io/acme/app"+own, "ghcr.io/acme/app"); got.status != 200 || got.header.Get("Link") != "</v2/ghcr.io/acme/app"+own+`?last=a>; rel="next"` {
		t.Errorf("%d %q", got.status, got.header)
	}
}

// A sealed page is one of its own list: not of the referrers of another manifest, nor of the tags.
func TestPagesOfOtherLists(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const app = "/v2/ghcr.io/acme/app"
	own, other := "/referrers/"+registrytest.DigestOf(nil), "/referrers/"+registrytest.DigestOf([]byte("other"))
	replying(registry, http.StatusOK, `{"name":"acme/app","tags":[]}`, "Link", "</v2/acme/app"+own+`?token=1>; rel="next"`)
	link, _, _ := strings.Cut(r.pull(app+own, "ghcr.io/acme/app").header.Get("Link"), ">")
	_, page, _ := strings.Cut(link, "?")
	replying(registry, http.StatusOK, `{"name":"acme/app","tags":[]}`)
	for list, want := range map[string]int{own: 200, other: 400, "/tags/list": 400} {
		if got := r.pull(app+list+"?"+page, "ghcr.io/acme/app"); got.status != want {
			t.Errorf("%s: %d", list, got.status)
		}
	}
}

// The answer of an upstream reaches the client. Redirects that lead nowhere and pages for browsers do not.
// No header is set that the upstream did not send.
func TestAnswersThatPass(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const base = "/v2/ghcr.io/acme/app"
	page := []string{"Content-Type", "text/html"}
	elsewhere := []string{"Location", "https://evil.example/", "Link", `<https://evil.example/>; rel="next"`, "WWW-Authenticate", "Basic"}
	for _, test := range []struct {
		method, path string
		answer       int
		header       []string
		status       int
		location     string // "none": there is no such header
	}{
		{"GET", "/manifests/v1", 200, nil, 200, "none"},
		{"GET", "/manifests/v1", 200, elsewhere, 200, "none"},
		{"GET", "/manifests/v1", 299, nil, 299, "none"},
		{"GET", "/manifests/v1", 300, elsewhere, 502, "none"},
		{"GET", "/manifests/v1", 305, elsewhere, 502, "none"},
		{"GET", "/manifests/v1", 304, elsewhere, 304, "none"},
		{"GET", "/manifests/v1", 399, nil, 502, "none"},
		{"GET", "/manifests/v1", 400, elsewhere, 400, "none"},
		{"GET", "/manifests/v1", 404, page, 404, "none"},
		{"GET", "/manifests/v1", 200, page, 502, "none"},
		{"HEAD", "/manifests/v1", 200, nil, 200, "none"},
		{"GET", "/tags/list", 404, elsewhere, 404, "none"},
		{"GET", "/blobs/" + registrytest.DigestOf(nil), 200, elsewhere, 200, "none"},
		{"DELETE", "/manifests/v1", 202, elsewhere, 202, "none"},
		{"PUT", "/manifests/v1", 201, elsewhere, 201, base + "/manifests/v1"},
		{"PUT", "/manifests/v1", 404, elsewhere, 404, "none"},
		{"POST", "/blobs/uploads/", 404, elsewhere, 404, "none"},
	} {
		name := fmt.Sprintf("%s %s, %d %q", test.method, test.path, test.answer, test.header)
		replying(registry, test.answer, "", test.header...)
		got := r.do(test.method, base+test.path, r.token("web", "repository:ghcr.io/acme/app:*"), nil)
		location, ok := got.header["Location"]
		if !ok {
			location = []string{"none"}
		}
		if got.status != test.status || location[0] != test.location {
			t.Errorf("%s: %d %q", name, got.status, location)
		}
		if e := r.one(); (e.Reason == "") != (test.status < 500) || e.Status != test.status {
			t.Errorf("%s: %s", name, shown(e))
		}
		for _, key := range []string{"Link", "Www-Authenticate", "Docker-Content-Digest"} {
			if values, ok := got.header[key]; ok {
				t.Errorf("%s: %s is %q", name, key, values)
			}
		}
	}
}

// A connection serves the next request, unless a body was not read.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	replying(registry, http.StatusOK, "")
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", "/manifests/v1", "", ""}, {"PUT", "/manifests/v1", "text", ""}, {"GET", "/manifests/v1", "text", "close"}, {"GET", "/other", "", ""},
	} {
		request := httptest.NewRequest(test.method, "/v2/ghcr.io/acme/app"+test.path, iotest.DataErrReader(strings.NewReader(test.body))) // like net/http, which returns io.EOF with the last bytes
		request.ContentLength = int64(len(test.body))
		request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:*"))
		w := httptest.NewRecorder()
		r.handler().ServeHTTP(w, request)
		if got := w.Header().Get("Connection"); got != test.want {
			t.Errorf("%s %s: %d %q, want %q", test.method, test.path, w.Code, got, test.want)
		}
	}
}

// The digest of a redirect is the registry's own, unless the storage says one.
func TestDigestsOfRedirects(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	storage := registrytest.NewServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, follow := range []bool{false, true} {
		r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, g *gateway.Upstream) {
			g.Follow, c.RedirectHosts, c.CAFile = follow, []string{"127.0.0.1"}, bothCAs(t, registry, storage)
		}})
		for _, test := range []struct {
			by, of string
			want   []string
		}{
			{"", "", nil}, {"sha256:aa", "", []string{"sha256:aa"}}, {"sha256:aa", "sha256:bb", []string{"sha256:bb"}}, {"", "sha256:bb", []string{"sha256:bb"}},
		} {
			header := []string{"Location", storage.URL}
			if test.by != "" {
				header = append(header, "Docker-Content-Digest", test.by)
			}
			replying(registry, http.StatusFound, "", header...)
			storage.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
				if test.of != "" {
					w.Header().Set("Docker-Content-Digest", test.of)
				}
				return true
			})
			want := test.want
			if !follow {
				if want = nil; test.by != "" {
					want = []string{test.by}
				}
			}
			got := r.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app")
			if digest := got.header["Docker-Content-Digest"]; !slices.Equal(digest, want) || got.status != map[bool]int{false: 307, true: 200}[follow] {
				t.Errorf("followed %t, %q and %q: %d %q", follow, test.by, test.of, got.status, digest)
			}
		}
	}
}

// A storage may say that a blob did not change, or that it has no such range.
func TestStatusesOfStorages(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	storage := registrytest.NewServer(t, http.NotFoundHandler())
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, g *gateway.Upstream) {
		g.Follow, c.RedirectHosts, c.CAFile = true, []string{"127.0.0.1"}, bothCAs(t, registry, storage)
	}})
	replying(registry, http.StatusFound, "", "Location", storage.URL)
	for answer, status := range map[int]int{200: 200, 206: 206, 304: 304, 416: 416, 204: 502, 404: 502, 403: 502} {
		storage.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(answer)
			return true
		})
		if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app"); got.status != status {
			t.Errorf("%d: %d %s", answer, got.status, got.body)
		}
	}
}

// A holder without a name may push, where a rule lets it.
func TestAnonymousUploads(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	replying(registry, http.StatusAccepted, "", "Location", "/v2/acme/app/blobs/uploads/x")
	scope := testkit.Value(registryauth.ParseScope("repository:ghcr.io/acme/app:pull,push"))(t)
	issued := testkit.Value(r.issuer.Issue(registryauth.Grant{Access: []registryauth.Scope{scope}}))(t)
	begun := r.do(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", issued.Value.Reveal(), nil)
	if got := r.do(http.MethodPatch, begun.header.Get("Location"), issued.Value.Reveal(), strings.NewReader("text")); begun.status != 202 || got.status != 202 {
		t.Errorf("%d %s, %d %s", begun.status, begun.body, got.status, got.body)
	}
	if got := r.push(http.MethodPatch, begun.header.Get("Location"), "ghcr.io/acme/app", "text"); got.status != 404 {
		t.Errorf("with a name: %d %s", got.status, got.body)
	}
}

// unsealing are keys of which none seals.
type unsealing struct{ signing.Keys }

func (unsealing) Shared() []*signing.SigningKey { return nil }

// Without a key no address is sealed, and none is given to the client as it is.
func TestNoKeyToSeal(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	r.config.Keys = unsealing{r.keys}
	for _, test := range []struct{ method, path, location, link string }{
		{"POST", "/blobs/uploads/", "/v2/acme/app/blobs/uploads/x", ""},
		{"GET", "/tags/list", "", `</v2/acme/app/tags/list?token=x>; rel="next"`},
	} {
		replying(registry, http.StatusAccepted, `{"tags":[]}`, "Location", test.location, "Link", test.link)
		got := r.do(test.method, "/v2/ghcr.io/acme/app"+test.path, r.token("web", "repository:ghcr.io/acme/app:*"), nil)
		e := r.one()
		if got.status != 503 || !strings.Contains(got.body, "UNAVAILABLE") || got.header["Location"] != nil || got.header["Link"] != nil || e.Reason != "internal_error" {
			t.Errorf("%s: %d %s %v %s", test.path, got.status, got.body, got.header, shown(e))
		}
	}
}

// An address that was not sealed for the request has a reason of its own.
func TestReasonsOfSealedAddresses(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	for path, want := range map[string]string{
		"PATCH /v2/ghcr.io/acme/app/blobs/uploads/x": "404 upload_unknown", "GET /v2/ghcr.io/acme/app/tags/list?page=x": "400 path_invalid",
	} {
		method, path, _ := strings.Cut(path, " ")
		got := r.do(method, path, r.token("web", "repository:ghcr.io/acme/app:*"), nil)
		if e := r.one(); fmt.Sprint(got.status, " ", e.Reason) != want {
			t.Errorf("%s: %d %s, want %s", path, got.status, shown(e), want)
		}
	}
}

// partly knows the revocations of push credentials, but not those of tokens.
type partly struct{}

func (partly) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if id.TokenID == "push-1" {
		return nil, nil
	}
	return nil, errors.New("not read yet")
}

func TestRevocationsKnownInPart(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	r.config.Revocations = partly{}
	if got := r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", r.job("one", "repository:ghcr.io/acme/app:pull"), nil); got.status != 503 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// unwritable is a client that takes no answer.
type unwritable struct{ *httptest.ResponseRecorder }

func (unwritable) Write([]byte) (int, error) { return 0, errors.New("gone") }

// A client is at fault for a body that it does not send as it should, and for an answer that it does not take,
// also as long as its connection stays.
func TestFaultsOfClients(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	serve := func(request *http.Request, w http.ResponseWriter) {
		defer func() { _ = recover() }() // as net/http does: the connection ends
		request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:*"))
		r.handler().ServeHTTP(w, request)
	}
	replying(registry, http.StatusOK, "text")
	w := httptest.NewRecorder()
	body := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("malformed")))
	serve(httptest.NewRequest(http.MethodPut, "/v2/ghcr.io/acme/app/manifests/v1", body), w)
	if e := r.one(); w.Body.Len() > 0 || e.Reason != "request_canceled" || e.Status != 499 || !strings.Contains(e.Message, "send") {
		t.Errorf("%d %s", w.Code, shown(e))
	}
	serve(httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", nil), unwritable{httptest.NewRecorder()})
	if e := r.one(); e.Reason != "request_canceled" || e.Status != 200 || !strings.Contains(e.Message, "take") {
		t.Errorf("%s", shown(e))
	}
}
