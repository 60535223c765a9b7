package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const service = "gateway.example.com"

// recorder keeps events, and fails the test if one has a status that is not documented for its
// reason.
type recorder struct {
	t      testing.TB
	mu     sync.Mutex
	events []*exchange.Event
}

func (r *recorder) Record(e *exchange.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Reason != "" && e.Status >= 400 && !slices.ContainsFunc(gateway.Classes(refusal.Reason(e.Reason)), func(c refusal.Class) bool {
		return c.Status() == e.Status && gateway.ResultOf(c) == e.Result
	}) {
		r.t.Errorf("%s: status %d and result %s are not of its classes", e.Reason, e.Status, e.Result)
	}
	r.events = append(r.events, e)
}

// take returns the events since the last call.
func (r *recorder) take() []*exchange.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.events
	r.events = nil
	return all
}

type revocations struct {
	mu     sync.Mutex
	target string // the id of a token, project or run
	err    error
}

func (r *revocations) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := []string{id.TokenID}
	if x := id.External; x != nil {
		names = append(names, x.Provider+"/project/"+x.Project, x.Provider+"/run/"+x.Run)
	}
	if r.err != nil || !slices.Contains(names, r.target) {
		return nil, r.err
	}
	return &exchange.Revocation{Target: "token " + r.target, By: "root", Reason: "stolen"}, nil
}

func (r *revocations) set(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// limiter counts, and refuses requests over its limit.
type limiter struct {
	mu   sync.Mutex
	left int
}

func (l *limiter) Take(context.Context, string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left--; l.left >= 0 {
		return 0
	}
	return time.Minute
}

// rig is a gateway with upstreams, and clients that have its tokens.
type rig struct {
	*httptest.Server
	t           testing.TB
	issuer      *registryauth.Issuer
	keys        signing.Keys
	events      *recorder
	revocations *revocations
	limiter     *limiter
	memory      *gateway.Memory
	config      gateway.Config
	clients     map[string]*upstream.Client
	uid         string // of every ServiceAccount
}

type upstreamSettings struct {
	name   string
	to     *registrytest.Server
	url    string // instead of that of to
	change func(*upstream.Config, *gateway.Upstream)
}

func newKeys(t testing.TB) signing.Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	return keys
}

// newGHCR returns a registry without credentials and a gateway to it.
func newGHCR(t testing.TB) (*registrytest.Server, *rig) {
	t.Helper()
	registry := registrytest.NewRegistry(t, "")
	return registry, newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
}

func newRig(t testing.TB, upstreams ...upstreamSettings) *rig {
	t.Helper()
	passwordFile := filepath.Join(t.TempDir(), "password")
	testkit.Must(t, os.WriteFile(passwordFile, []byte(registrytest.Password+"\n"), 0o600))
	r := &rig{t: t, keys: newKeys(t), events: &recorder{t: t}, revocations: &revocations{}, limiter: &limiter{left: 5}, memory: gateway.NewMemory(1 << 10), clients: map[string]*upstream.Client{}, uid: "uid-1"}
	all := map[string]gateway.Upstream{}
	for _, u := range upstreams {
		c := upstream.Config{Name: u.name, URL: u.url, UserAgent: "pullpass/test", Logins: basic.New(registrytest.User, passwordFile, nil)}
		if u.to != nil {
			c.URL, c.CAFile = u.to.URL, u.to.CAFile
		}
		if u.url != "" {
			c.URL = u.url
		}
		g := gateway.Upstream{Actions: []string{"pull", "push", "delete"}}
		if u.change != nil {
			u.change(&c, &g)
		}
		client := testkit.Value(upstream.New(c))(t)
		g.Client = client
		all[u.name], r.clients[u.name] = g, client
	}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.handler().ServeHTTP(w, q) }))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.Start()
	t.Cleanup(r.Close)
	r.config = gateway.Config{
		URL: r.URL, Issuer: "pullpass.example.com", Service: service, Keys: r.keys, Upstreams: all, Revocations: r.revocations, Addresses: exchange.NewAddressLimit(r.limiter, exchange.NewMemory(exchange.MemoryConfig{}), time.Now),
		Recorder: r.events, Logger: testkit.QuietLogger(), Memory: r.memory,
		Caller: func(q *http.Request) nodeproof.Caller { return nodeproof.Caller{} },
	}
	r.issuer = newIssuer(t, service, r.keys)
	return r
}

func newIssuer(t testing.TB, service string, keys signing.Keys) *registryauth.Issuer {
	t.Helper()
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "pullpass.example.com", Service: service, Lifetime: 5 * time.Minute, Keys: keys, NamesHolder: true})
	testkit.Must(t, err)
	return issuer
}

// handler returns a handler with the current configuration.
func (r *rig) handler() http.Handler {
	h, err := gateway.New(r.config)
	if err != nil {
		panic(err)
	}
	token := http.NewServeMux()
	token.HandleFunc("/token", r.serveToken)
	token.Handle("/v2/", h)
	return token
}

// serveToken grants every request. The real token endpoint has its own tests.
func (r *rig) serveToken(w http.ResponseWriter, q *http.Request) {
	if q.URL.Query().Get("service") != service {
		http.Error(w, "another service", http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"token": r.token("web", q.URL.Query()["scope"]...)})
}

// token returns a token of ServiceAccount team-a/NAME in cluster prod.
func (r *rig) token(name string, scopes ...string) string {
	r.t.Helper()
	parsed, err := registryauth.ParseScopes(scopes)
	testkit.Must(r.t, err)
	issued, err := r.issuer.Issue(registryauth.Grant{
		Subject: "system:serviceaccount:team-a:" + name, Access: parsed,
		Holder: &registryauth.Holder{Cluster: "prod", Namespace: "team-a", ServiceAccount: name, ServiceAccountUID: r.uid, Pod: "pod-1", PodUID: "pod-uid", Node: "node-1", NodeUID: "node-uid", TokenID: "jti-" + name},
	})
	testkit.Must(r.t, err)
	return issued.Value.Reveal()
}

// answer is a response that a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request to the gateway, and follows no redirect.
func (r *rig) do(method, path, token string, body io.Reader, header ...string) answer {
	r.t.Helper()
	request, err := http.NewRequest(method, r.URL+path, body)
	testkit.Must(r.t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		if request.Header.Add(header[i], header[i+1]); header[i] == "Host" {
			request.Host = header[i+1]
		}
	}
	response, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(request)
	if err != nil { // the gateway has ended the connection
		return answer{body: "|" + err.Error()}
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		data = append(data, "|"+err.Error()...)
	}
	return answer{response.StatusCode, response.Header, string(data)}
}

// pull is do with a token for the repository.
func (r *rig) pull(path, repository string, header ...string) answer {
	r.t.Helper()
	return r.do(http.MethodGet, path, r.token("web", "repository:"+repository+":pull"), nil, header...)
}

// one returns the only event since the last call.
func (r *rig) one() *exchange.Event {
	r.t.Helper()
	var events []*exchange.Event
	testkit.Eventually(r.t, "there is an event", func() bool { // it is recorded when the answer has ended
		events = r.events.take()
		return len(events) > 0
	})
	if len(events) != 1 {
		r.t.Fatalf("%d events: %s", len(events), shown(events))
	}
	return events[0]
}

func shown(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func bothCAs(t testing.TB, servers ...*registrytest.Server) string {
	t.Helper()
	var all []byte
	for _, s := range servers {
		data := testkit.Value(os.ReadFile(s.CAFile))(t)
		all = append(all, data...)
	}
	name := filepath.Join(t.TempDir(), "cas.crt")
	testkit.Must(t, os.WriteFile(name, all, 0o600))
	return name
}
