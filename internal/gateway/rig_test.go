package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/sirupsen/logrus"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pkitest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/signing"
	"github.com/pullpass/pullpass/internal/testkit"
	"github.com/pullpass/pullpass/internal/upstream"
)

const (
	service = "gateway.example.com"
	robot   = "acme-robot"
	// password is long enough that a piece of it is no chance.
	password = "the-password-of-the-robot-0123456789"
)

// server is an HTTPS server that counts what it is asked, and can be put in the way.
type server struct {
	*httptest.Server
	caFile string

	mu       sync.Mutex
	requests []*http.Request // without bodies
	handler  http.Handler
	instead  func(w http.ResponseWriter, r *http.Request) bool // reports whether it has answered
}

func newServer(t testing.TB, handler http.Handler) *server {
	t.Helper()
	s := &server{handler: handler, caFile: filepath.Join(t.TempDir(), "ca.crt")}
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.Subject, c.IPAddresses, c.DNSNames = pkix.Name{CommonName: "upstream"}, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
		c.KeyUsage, c.ExtKeyUsage = 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	if err := os.WriteFile(s.caFile, pkitest.CertPEM(cert), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert.TLS()}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Clone(context.Background()))
	instead := s.instead
	s.mu.Unlock()
	if instead == nil || !instead(w, r) {
		s.handler.ServeHTTP(w, r)
	}
}

// answer puts f in the way of the registry; nil: nothing any more.
func (s *server) answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instead = f
}

// asked returns the requests since the last call.
func (s *server) asked() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}

// count returns how many of the requests since the last call begin like that.
func (s *server) count(method, prefix string) int {
	n := 0
	for _, r := range s.asked() {
		if r.Method == method && strings.HasPrefix(r.URL.Path, prefix) {
			n++
		}
	}
	return n
}

// newRegistry is distribution with a user, robot.
func newRegistry(t testing.TB, auth string) *server {
	t.Helper()
	logrus.SetOutput(io.Discard)
	if auth == "" {
		dir := t.TempDir()
		// bcrypt of the password, cost 4, made by htpasswd -nbB.
		must(t, os.WriteFile(filepath.Join(dir, "htpasswd"), htpasswd(t), 0o600))
		auth = "auth: {htpasswd: {realm: upstream, path: " + filepath.Join(dir, "htpasswd") + "}}"
	}
	config, err := configuration.Parse(strings.NewReader("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {inmemory: {}, delete: {enabled: true}}\nhttp: {secret: of-the-test, relativeurls: false}\n" + auth + "\n"))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return newServer(t, handlers.NewApp(ctx, config))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// recorder keeps events, and lets nothing pass that is a piece of a credential.
type recorder struct {
	mu     sync.Mutex
	events []*exchange.Event
}

func (r *recorder) Record(e *exchange.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	target string // a token's id
	err    error
}

func (r *revocations) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || id.TokenID != r.target {
		return nil, r.err
	}
	return &exchange.Revocation{Target: "token " + r.target, By: "root", Reason: "stolen"}, nil
}

// limiter counts, and refuses what is beyond its bound.
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

// rig is a gateway before upstreams, and clients that have tokens of it.
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
}

type upstreamSettings struct {
	name   string
	to     *server
	url    string // instead of that of to
	change func(*upstream.Config, *gateway.Upstream)
}

func newKeys(t testing.TB) signing.Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	must(t, err)
	return keys
}

func newRig(t testing.TB, upstreams ...upstreamSettings) *rig {
	t.Helper()
	passwordFile := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(passwordFile, []byte(password+"\n"), 0o600))
	r := &rig{t: t, keys: newKeys(t), events: &recorder{}, revocations: &revocations{}, limiter: &limiter{left: 5}, memory: gateway.NewMemory(), clients: map[string]*upstream.Client{}}
	all := map[string]gateway.Upstream{}
	for _, u := range upstreams {
		c := upstream.Config{Name: u.name, URL: u.url, UserAgent: "pullpass/test", Logins: upstream.NewBasic(robot, passwordFile, nil)}
		if u.to != nil {
			c.URL, c.CAFile = u.to.URL, u.to.caFile
		}
		if u.url != "" {
			c.URL = u.url
		}
		g := gateway.Upstream{Actions: []string{"pull", "push", "delete"}}
		if u.change != nil {
			u.change(&c, &g)
		}
		client, err := upstream.New(c)
		must(t, err)
		g.Client = client
		all[u.name], r.clients[u.name] = g, client
	}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.handler().ServeHTTP(w, q) }))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.Start()
	t.Cleanup(r.Close)
	r.config = gateway.Config{
		URL: r.URL, Issuer: "pullpass.example.com", Service: service, Keys: r.keys, Upstreams: all, Revocations: r.revocations, Addresses: r.limiter,
		Recorder: r.events, Logger: testkit.QuietLogger(), Memory: r.memory,
		Caller: func(q *http.Request) exchange.Caller { return exchange.Caller{} },
	}
	r.issuer = newIssuer(t, service, r.keys)
	return r
}

func newIssuer(t testing.TB, service string, keys signing.Keys) *registryauth.Issuer {
	t.Helper()
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "pullpass.example.com", Service: service, Lifetime: 5 * time.Minute, Keys: keys, NamesHolder: true})
	must(t, err)
	return issuer
}

// handler is as the configuration is now.
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

// serveToken gives everybody what they ask for: what the real one grants, its own
// tests say.
func (r *rig) serveToken(w http.ResponseWriter, q *http.Request) {
	if q.URL.Query().Get("service") != service {
		http.Error(w, "another service", http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"token": r.token("web", q.URL.Query()["scope"]...)})
}

// token is one of ServiceAccount team-a/NAME in cluster prod.
func (r *rig) token(name string, scopes ...string) string {
	r.t.Helper()
	parsed, err := registryauth.ParseScopes(scopes)
	must(r.t, err)
	issued, err := r.issuer.Issue(registryauth.Grant{
		Subject: "system:serviceaccount:team-a:" + name, Access: parsed,
		Holder: &registryauth.Holder{Cluster: "prod", Namespace: "team-a", ServiceAccount: name, ServiceAccountUID: "uid-1", Pod: "pod-1", PodUID: "pod-uid", Node: "node-1", NodeUID: "node-uid", TokenID: "jti-" + name},
	})
	must(r.t, err)
	return issued.Value.Reveal()
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

// do asks the gateway, following nothing.
func (r *rig) do(method, path, token string, body io.Reader, header ...string) answer {
	r.t.Helper()
	request, err := http.NewRequest(method, r.URL+path, body)
	must(r.t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
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
	events := r.events.take()
	if len(events) != 1 {
		r.t.Fatalf("%d events: %s", len(events), shown(events))
	}
	return events[0]
}

func shown(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// image is a manifest of one layer.
type image struct{ manifest, digest, layer, layerDigest string }

// put puts an image into a registry directly.
func (s *server) put(t testing.TB, repository, tag string, layer []byte) image {
	t.Helper()
	client := s.Client()
	send := func(method, address string, body []byte, contentType string, want int) http.Header {
		request, err := http.NewRequest(method, address, bytes.NewReader(body))
		must(t, err)
		request.SetBasicAuth(robot, password)
		request.Header.Set("Content-Type", contentType)
		response, err := client.Do(request)
		must(t, err)
		defer func() { _ = response.Body.Close() }()
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != want {
			t.Fatalf("%s %s: %d %s", method, address, response.StatusCode, text)
		}
		return response.Header
	}
	blob := func(content []byte) string {
		digest := digestOf(content)
		at := send(http.MethodPost, s.URL+"/v2/"+repository+"/blobs/uploads/", nil, "", http.StatusAccepted).Get("Location")
		u, err := url.Parse(at)
		must(t, err)
		query := u.Query()
		query.Set("digest", digest)
		u.RawQuery = query.Encode()
		send(http.MethodPut, u.String(), content, "application/octet-stream", http.StatusCreated)
		return digest
	}
	config := blob([]byte("{}"))
	i := image{layer: string(layer), layerDigest: blob(layer)}
	i.manifest = manifestOf(config, i.layerDigest, len(layer))
	i.digest = digestOf([]byte(i.manifest))
	send(http.MethodPut, s.URL+"/v2/"+repository+"/manifests/"+tag, []byte(i.manifest), manifestType, http.StatusCreated)
	s.asked()
	return i
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func manifestOf(config, layer string, size int) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`, manifestType, config, layer, size)
}

func hasPrefix(list []string, prefix string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, prefix) })
}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func bothCAs(t testing.TB, servers ...*server) string {
	t.Helper()
	var all []byte
	for _, s := range servers {
		data, err := os.ReadFile(s.caFile)
		must(t, err)
		all = append(all, data...)
	}
	name := filepath.Join(t.TempDir(), "cas.crt")
	must(t, os.WriteFile(name, all, 0o600))
	return name
}
