package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/gorilla/mux"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// received is a request that reached an upstream.
type received struct {
	method, uri, host string
	header            http.Header
	body              string
}

// witness is an upstream that keeps all requests.
type witness struct {
	*registrytest.Server
	mu  sync.Mutex
	all []received
}

func newWitness(t testing.TB) *witness {
	w := &witness{}
	w.Server = registrytest.NewServer(t, w)
	return w
}

const (
	uploadAtUpstream = "/v2/acme/app/blobs/uploads/0123-4567?_state=a%2Fb&x=1"
	pageAtUpstream   = "/v2/acme/app/tags/list?next=a%2Fb"
)

func (u *witness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.RequestURI != "/v2/" {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.all = append(u.all, received{r.Method, r.RequestURI, r.Host, r.Header, string(body)})
		u.mu.Unlock()
	}
	switch {
	case r.Method == http.MethodPost:
		w.Header().Set("Location", uploadAtUpstream)
		w.WriteHeader(http.StatusAccepted)
	case strings.Contains(r.URL.Path, "/tags/"):
		w.Header().Set("Link", "<"+pageAtUpstream+`>; rel="next"`)
		_, _ = io.WriteString(w, `{"tags":[]}`)
	}
}

func (u *witness) take() []received {
	u.Asked()
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.all
	u.all = nil
	return all
}

// reading is how distribution's router reads a path.
type reading struct{ route, name, reference string }

func newReader() func(u *url.URL) (reading, bool) {
	router := v2.Router()
	router.SkipClean(true) // otherwise it answers //, . and .. with a redirect
	return func(u *url.URL) (reading, bool) {
		path, isReferrers := u.Path, false
		if i := strings.LastIndex(path, "/referrers/"); i >= 0 && !strings.Contains(path[i+len("/referrers/"):], "/") {
			// distribution has no referrers; the specification gives them the form of blobs.
			path, isReferrers = path[:i]+"/blobs/"+path[i+len("/referrers/"):], true
		}
		if strings.HasSuffix(path, "/blobs/uploads") {
			path += "/" // the specification has the slash at the end; distribution demands it
		}
		var match mux.RouteMatch
		if !router.Match(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}, &match) {
			return reading{}, false
		}
		r := reading{match.Route.GetName(), match.Vars["name"], match.Vars["reference"] + match.Vars["digest"] + match.Vars["uuid"]}
		if isReferrers {
			r.route = "referrers"
		}
		return r, true
	}
}

// nameAtGateway returns the name by which policies know a repository.
func nameAtGateway(name string) string {
	first, rest, _ := strings.Cut(name, "/")
	if first == "index.docker.io" || first == "registry-1.docker.io" {
		first = "docker.io"
	}
	if first == "docker.io" && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return first + "/" + rest
}

// kindsOfRoutes are the names of distribution's routes, and the parameters that may reach an upstream.
var kindsOfRoutes = map[string]struct {
	kind       string
	parameters []string
}{
	v2.RouteNameManifest:        {"manifest", []string{"tag"}},
	v2.RouteNameBlob:            {"blob", nil},
	v2.RouteNameTags:            {"tags", []string{"n", "last"}},
	"referrers":                 {"referrers", []string{"artifactType"}},
	v2.RouteNameBlobUpload:      {"uploads", []string{"digest", "digest-algorithm", "mount", "from"}},
	v2.RouteNameBlobUploadChunk: {"upload", nil},
}

// Whatever a client sends, an upstream gets the canonical form of the request that was judged:
// the repository and reference of the event, which distribution's own router reads in the client's
// path, too. It gets no parameter and no header that is not listed, and nothing that the token does
// not allow.
func FuzzForward(f *testing.F) {
	const (
		head   = "Accept: a/b\r\nRange: bytes=0-1\r\nCookie: a=b\r\n"
		digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	)
	for _, target := range []string{
		"GET /v2/ghcr.io/acme/app/manifests/v1?ns=docker.io", "HEAD /v2/docker.io/nginx/manifests/v1", "PUT /v2/ghcr.io/acme/app/manifests/" + digest + "?tag=v1&tag=v2&x=y", "DELETE /v2/ghcr.io/acme/app/manifests/v1?tag=v1",
		"GET /v2/ghcr.io/acme/app/blobs/sha256%3a" + digest[7:], "GET /v2/ghcr.io/a/blobs/uploads/manifests/tags", "GET /v2/ghcr.io/acme/app/tags/list?n=1&last=a%26digest=b", "GET /v2/ghcr.io/acme/app/tags/list?page={page}",
		"GET /v2/ghcr.io/acme/app/referrers/" + digest + "?artifactType=a/b&n=1", "POST /v2/ghcr.io/acme/app/blobs/uploads?mount=" + digest + "&from=acme/base", "POST /v2/ghcr.io/acme/app/blobs/uploads/?mount=" + digest + "&from=acme/secret",
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?digest-algorithm=sha512", "PATCH /v2/ghcr.io/acme/app/blobs/uploads/{upload}", "PUT /v2/ghcr.io/acme/app/blobs/uploads/{upload}?digest=" + digest, "DELETE /v2/ghcr.io/acme/app/blobs/uploads/{upload}",
		"GET /v2/ghcr.io/acme/../secret/manifests/v1", "GET /v2/ghcr.io/acme%2fapp/manifests/v1", "GET //v2/ghcr.io/acme/app/manifests/v1", "GET /v2//ghcr.io/acme/app/manifests/v1", "GET https://other.example/v2/ghcr.io/acme/app/manifests/v1", "OPTIONS *",
	} {
		method, path, _ := strings.Cut(target, " ")
		f.Add(method, path, head+"Content-Length: 4\r\n", "body", true)
		f.Add(method, path, head, "", false)
	}
	f.Add("PATCH", "/v2/ghcr.io/acme/app/blobs/uploads/{upload}", "Transfer-Encoding: chunked\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Range: 0-3\r\n", "4\r\nbody\r\n0\r\n\r\n", true)

	upstreams := map[string]*witness{"ghcr.io": newWitness(f), "docker.io": newWitness(f)}
	r := newRig(f, upstreamSettings{name: "ghcr.io", to: upstreams["ghcr.io"].Server}, upstreamSettings{name: "docker.io", to: upstreams["docker.io"].Server})
	r.limiter.left = 1 << 62
	handler := r.handler()
	read := newReader()
	token := func(t testing.TB, scopes ...string) string {
		parsed := testkit.Value(registryauth.ParseScopes(scopes))(t)
		issued, err := r.issuer.Issue(registryauth.Grant{Subject: "system:serviceaccount:team-a:web", Access: parsed, Holder: &registryauth.Holder{Cluster: "prod", Namespace: "team-a", ServiceAccount: "web", ServiceAccountUID: "uid-1", TokenID: "jti-web"}})
		testkit.Must(t, err)
		return issued.Value.Reveal()
	}
	serve := func(request *http.Request) http.Header {
		w := httptest.NewRecorder()
		func() {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler {
					panic(p)
				}
			}()
			handler.ServeHTTP(w, request)
		}()
		return w.Header()
	}
	ask := func(method, path string) http.Header {
		request := httptest.NewRequest(method, path, nil)
		request.Header.Set("Authorization", "Bearer "+token(f, "repository:ghcr.io/acme/app:pull,push"))
		return serve(request)
	}
	upload := strings.TrimPrefix(ask(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/").Get("Location"), "/v2/ghcr.io/acme/app/blobs/uploads/")
	link := ask(http.MethodGet, "/v2/ghcr.io/acme/app/tags/list").Get("Link")
	page, _, _ := strings.Cut(strings.TrimPrefix(link, "</v2/ghcr.io/acme/app/tags/list?page="), ">")
	r.events.take()
	upstreams["ghcr.io"].take()

	rounds := 0
	f.Fuzz(func(t *testing.T, method, target, headers, body string, wide bool) {
		target = strings.ReplaceAll(strings.ReplaceAll(target, "{upload}", upload), "{page}", page)
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: gateway\r\n" + headers + "\r\n" + body)))
		if err != nil {
			return
		}
		client, isRoute := read(request.URL)
		name := nameAtGateway(client.name)
		may := map[string][]string{"ghcr.io/acme/app": {"pull", "push", "delete"}, "ghcr.io/acme/base": {"pull"}, "docker.io/library/nginx": {"pull"}}
		if wide {
			if _, err := registryauth.ParseScope("repository:" + name + ":pull"); err != nil {
				return
			}
			may = map[string][]string{name: {"pull", "push", "delete"}}
		}
		var scopes []string
		for _, name := range slices.Sorted(maps.Keys(may)) {
			scopes = append(scopes, "repository:"+name+":"+strings.Join(may[name], ","))
		}
		clientBody := &strings.Builder{}
		request.Body = io.NopCloser(io.TeeReader(request.Body, clientBody))
		request.Header.Set("Authorization", "Bearer "+token(t, scopes...))
		// A request of which the client sent a part can reach the upstream when the next one is judged.
		rounds++
		round := fmt.Sprintf("%q", fmt.Sprint(rounds))
		request.Header.Add("If-Match", round)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		serve(request.WithContext(ctx))
		var event *exchange.Event
		if events := r.events.take(); len(events) > 0 {
			event = events[0]
		}
		for upstream, at := range upstreams {
			all := slices.DeleteFunc(at.take(), func(r received) bool {
				marks := r.header["If-Match"]
				return len(marks) > 0 && marks[len(marks)-1] != round
			})
			for i, got := range all {
				what := fmt.Sprintf("%s %s: %s was asked %s %s", method, target, upstream, got.method, got.uri)
				if i > 0 || event == nil {
					t.Fatalf("%s, more than once or without an event", what)
				}
				if !isRoute {
					t.Fatalf("%s, and distribution has no route for the client's path", what)
				}
				// The judged request.
				g := event.Gateway
				kind := kindsOfRoutes[client.route]
				if g.Kind != kind.kind || g.Upstream != upstream || g.Method != got.method || request.Method != got.method || got.host != at.Listener.Addr().String() {
					t.Fatalf("%s at %s; the event is %s, distribution reads %+v", what, got.host, shown(event), client)
				}
				needs := []string{"pull"}
				switch {
				case kind.kind == "uploads", kind.kind == "upload", got.method == http.MethodPut:
					needs = []string{"pull", "push"}
				case got.method == http.MethodDelete:
					needs = []string{"delete"}
				}
				for _, action := range needs {
					if !slices.Contains(may[name], action) {
						t.Fatalf("%s without the right to %s %s", what, action, name)
					}
				}
				to := testkit.Value(url.ParseRequestURI(got.uri))(t)
				wanted, reference := []string{"repository:" + name + ":" + strings.Join(needs, ",")}, client.reference
				if from := to.Query().Get("from"); from != "" {
					wanted, reference = append(wanted, "repository:"+upstream+"/"+from+":pull"), to.Query().Get("mount")
				}
				concealed := strings.Contains(shown(event), "looks like")
				if !concealed && (g.Repository != name || kind.kind != "upload" && g.Reference != reference || !slices.Equal(event.Requested, wanted)) {
					t.Fatalf("%s; the event is %s, distribution reads %+v", what, shown(event), client)
				}
				// The sent request.
				sent, ok := read(to)
				_, repository, _ := strings.Cut(name, "/")
				isSealed := kind.kind == "upload" || kind.kind == "tags" && request.URL.Query().Get("page") != ""
				if !ok || sent.route != client.route || sent.name != repository || kind.kind != "upload" && sent.reference != client.reference || to.RequestURI() != got.uri || to.EscapedPath() != to.Path {
					t.Fatalf("%s; distribution reads %+v there, %+v here", what, sent, client)
				}
				if isSealed {
					want := pageAtUpstream
					if kind.kind == "upload" {
						want = uploadAtUpstream
						if digest := request.URL.Query().Get("digest"); digest != "" && got.method == http.MethodPut {
							want = strings.Replace(want, "x=1", "digest="+url.QueryEscape(digest)+"&x=1", 1)
						}
					}
					if got.uri != want {
						t.Fatalf("%s, want %s", what, want)
					}
				} else {
					checkQuery(t, what, request.URL.Query(), to, kind.parameters, may, upstream)
				}
				for key, values := range got.header {
					switch key {
					case "Authorization":
						if user, password, ok := (&http.Request{Header: got.header}).BasicAuth(); !ok || user != registrytest.User || password != registrytest.Password {
							t.Fatalf("%s with the credential %q", what, values)
						}
					case "User-Agent":
						if values[0] != "pullpass/test" {
							t.Fatalf("%s by %q", what, values)
						}
					case "Content-Length":
					case "Expect":
						if values[0] != "100-continue" {
							t.Fatalf("%s with Expect: %q", what, values)
						}
					case "Content-Type":
						if media := strings.ToLower(values[0]); strings.Contains(media, "form") || kind.kind != "manifest" && media != "application/octet-stream" {
							t.Fatalf("%s with the type %q", what, values)
						}
					case "Accept", "Content-Range", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since":
						if !slices.Equal(values, request.Header[key]) {
							t.Fatalf("%s with %s %q, the client sent %q", what, key, values, request.Header[key])
						}
					default:
						t.Fatalf("%s with %s: %q", what, key, values)
					}
				}
				if got.body != "" && got.body != clientBody.String() {
					t.Fatalf("%s with the body %q, the client sent %q", what, got.body, clientBody)
				}
			}
		}
	})
}

// checkQuery checks that an upstream got the known parameters, each as the client sent it.
func checkQuery(t *testing.T, what string, client url.Values, to *url.URL, known []string, may map[string][]string, upstream string) {
	t.Helper()
	sent, err := url.ParseQuery(to.RawQuery)
	if err != nil || sent.Encode() != to.RawQuery {
		t.Fatalf("%s: %v", what, err)
	}
	for key, values := range sent {
		if !slices.Contains(known, key) {
			t.Fatalf("%s with the parameter %s", what, key)
		}
		if key == "from" {
			if !slices.Contains(may[upstream+"/"+values[0]], "pull") || !strings.HasSuffix(client.Get(key), strings.TrimPrefix(values[0], "library/")) {
				t.Fatalf("%s, which the client may not pull", what)
			}
			continue
		}
		if !reflect.DeepEqual(values, client[key]) {
			t.Fatalf("%s with %s=%q, the client sent %q", what, key, values, client[key])
		}
	}
}
