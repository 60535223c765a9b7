package exchange_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	testService  = "registry.example.com"
	testIssuer   = "https://issuer.example.com"
	testAudience = "registry.example.com"
	otherService = "mirror.example.com" // another registry, with the same keys
	webUID       = "6d2b46cf-ca6d-4816-a59d-1d08107f9180"
	node1UID     = "2bf1cc3e-4f38-4595-b30d-f4751860f82e"
)

// testPolicy lets team-a pull its own repositories, and more by annotation.
const testPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
- name: public
  anonymous: true
  allow: [{repositories: ["public/**"], actions: [pull]}]
deny:
- name: quarantine
  subjects: [{namespaces: ["team-bad"]}]
`

// signingKeys are created once for all tests, because RSA keys are expensive.
var signingKeys = sync.OnceValue(func() [2]*rsa.PrivateKey {
	var keys [2]*rsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return keys
})

// fastKey is for tests with a hundred thousand tokens.
var fastKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

// made is the start of the rig's clock.
var made = pki.Made

// rig is a token endpoint made of the real parts: verifier, policy, keys.
type rig struct {
	handler   *exchange.Handler
	exchanger *exchange.Exchanger
	settings  exchange.Config
	endpoint  exchange.HandlerConfig
	issuer    *registryauth.Issuer
	keys      signing.Keys
	signer    jose.Signer
	stranger  jose.Signer // same kid, different key
	log       *strings.Builder

	mu     sync.Mutex
	now    time.Time
	events []*exchange.Event
}

type rigConfig struct {
	policy        string
	objects       exchange.Objects
	nodes         map[string]exchange.NodeChecks
	verifier      exchange.Verifier
	cacheBytes    int
	tokenLifetime time.Duration
	recorder      exchange.Recorder
	keys          signing.Keys
	caller        func(*http.Request) nodeproof.Caller
	inFlight      int
	revocations   exchange.Revocations
	replay        exchange.ReplayMode
	owners        exchange.Owners
	limits        exchange.Limiter // of both kinds
	wrap          func(exchange.Verifier) exchange.Verifier
	nodeOptional  bool // the verifier accepts tokens without a node
	namesHolder   bool // tokens name their holder, as the gateway's do
}

func newRig(t testing.TB, change func(*rigConfig)) *rig {
	t.Helper()
	r := &rig{now: made, log: &strings.Builder{}}
	c := rigConfig{
		policy:        testPolicy,
		tokenLifetime: 5 * time.Minute,
		caller:        callerOf,
		recorder:      r,
		inFlight:      100,
		revocations:   revocations{},
		replay:        exchange.ReplayOff,
		limits:        unlimited,
	}
	dir := t.TempDir()
	keys := signingKeys()
	jwks := testkit.Value(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: keys[0].Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"},
		{Key: fastKey().Public(), KeyID: "k2", Algorithm: "ES256", Use: "sig"},
	}}))(t)
	jwksFile := filepath.Join(dir, "jwks.json")
	testkit.Must(t, os.WriteFile(jwksFile, jwks, 0o600))
	if change != nil {
		change(&c)
	}
	if c.verifier == nil {
		c.verifier = testkit.Value(oidc.New(oidc.Config{
			Issuers: []oidc.Issuer{{
				Cluster: "prod", URL: testIssuer, Audiences: []string{testAudience}, Bound: oidc.BoundPod, RequireNode: !c.nodeOptional,
				PullSecrets: oidc.PullSecrets{Audience: pullAudience, Namespaces: []string{"team-*"}},
				MaxLifetime: 24 * time.Hour, MaxKeyAge: 24 * time.Hour, Discovery: oidc.Discovery{JWKSFile: jwksFile},
			}, {
				Provider: &oidc.Provider{Name: "github", Profile: identity.GitHub, Require: map[string][]string{"repository_owner_id": {"7"}}},
				URL:      jobIssuer, Audiences: []string{testAudience},
				MaxLifetime: time.Hour, MaxKeyAge: 24 * time.Hour, Discovery: oidc.Discovery{JWKSFile: jwksFile},
			}},
			CacheBytes: c.cacheBytes,
			Now:        r.Now,
		}))(t)
	}
	if c.wrap != nil {
		c.verifier = c.wrap(c.verifier)
	}
	if c.keys == nil {
		managed := testkit.Value(signing.NewManagedKeys(signing.ManagedKeysConfig{
			Dir: filepath.Join(dir, "keys"), Algorithm: signing.ES256, Trust: signing.TrustCertificate,
			Service: testService, Lifetime: c.tokenLifetime, Now: r.Now,
		}))(t)
		testkit.Must(t, managed.Maintain())
		c.keys = managed
	}
	r.keys = c.keys
	r.issuer = testkit.Value(registryauth.NewIssuer(registryauth.IssuerConfig{
		Issuer: "pullpass.example.com", Service: testService, Lifetime: c.tokenLifetime, Keys: c.keys, NamesHolder: c.namesHolder, Now: r.Now,
	}))(t)
	other := testkit.Value(registryauth.NewIssuer(registryauth.IssuerConfig{
		Issuer: "pullpass.example.com", Service: otherService, Lifetime: c.tokenLifetime, Keys: c.keys, Now: r.Now,
	}))(t)
	r.settings = exchange.Config{
		Verifier:        c.verifier,
		Objects:         c.objects,
		Nodes:           c.nodes,
		Revocations:     c.revocations,
		Replay:          c.replay,
		Owners:          c.owners,
		ServiceAccounts: c.limits,
		Registries:      []*registryauth.Issuer{r.issuer, other},
		Policy:          parsePolicy(t, c.policy),
		Memory:          exchange.NewMemory(exchange.MemoryConfig{IssuedBytes: c.cacheBytes, InFlight: c.inFlight}),
		Now:             r.Now,
	}
	r.endpoint = exchange.HandlerConfig{
		Recorder:  c.recorder,
		Caller:    c.caller,
		Addresses: c.limits,
		Logger:    slog.New(slog.NewJSONHandler(r.log, nil)),
		Memory:    r.settings.Memory,
		Now:       r.Now,
	}
	r.follow(t, func(*exchange.Config) {})
	r.signer = newSigner(t, keys[0])
	r.stranger = newSigner(t, keys[1])
	return r
}

// follow replaces the Exchanger and the Handler.
func (r *rig) follow(t testing.TB, change func(*exchange.Config)) {
	t.Helper()
	change(&r.settings)
	var err error
	r.exchanger, err = exchange.New(r.settings)
	testkit.Must(t, err)
	r.endpoint.Exchanger = r.exchanger
	r.handler, err = exchange.NewHandler(r.endpoint)
	testkit.Must(t, err)
}

func newSigner(t testing.TB, key *rsa.PrivateKey) jose.Signer {
	t.Helper()
	signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1")))(t)
	return signer
}

func parsePolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p := testkit.Value(policy.ParseFor(map[string]identity.Profile{"github": identity.GitHub}, policy.File{Name: "policy.yaml", Data: []byte(text)}))(t)
	return p
}

func (r *rig) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// Record implements exchange.Recorder.
func (r *rig) Record(e *exchange.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// lastEvent returns the newest event, and fails the test unless there is
// exactly one for each request made so far.
func (r *rig) lastEvent(t testing.TB, requests int) *exchange.Event {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != requests {
		t.Fatalf("%d events for %d requests", len(r.events), requests)
	}
	return r.events[requests-1]
}

func (r *rig) recorded() []*exchange.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// token signs the claims of a pod of team-a/web after change, which may be nil.
func (r *rig) token(t testing.TB, change func(claims map[string]any)) string {
	t.Helper()
	claims := r.claims()
	if change != nil {
		change(claims)
	}
	return sign(t, r.signer, claims)
}

// claims returns the claims of a kubelet's token for a pod of team-a/web.
func (r *rig) claims() map[string]any {
	now := r.Now()
	return map[string]any{
		"iss": testIssuer, "aud": []string{testAudience}, "sub": "system:serviceaccount:team-a:web",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": "63ef7a8c-1d81-4c97-8f89-724a51634a91",
		"kubernetes.io": map[string]any{
			"namespace":      "team-a",
			"serviceaccount": map[string]any{"name": "web", "uid": webUID},
			"pod":            map[string]any{"name": "web-0", "uid": "da2e7a3c-63e8-4855-9874-2073194456f5"},
			"node":           map[string]any{"name": "node1", "uid": node1UID},
		},
	}
}

func sign(t testing.TB, signer jose.Signer, claims map[string]any) string {
	t.Helper()
	token := testkit.Value(jwt.Signed(signer).Claims(claims).Serialize())(t)
	testkit.Note(t, "token", token)
	return token
}

// inNamespace moves the claims to another namespace.
func inNamespace(namespace string) func(map[string]any) {
	return func(c map[string]any) {
		c["sub"] = "system:serviceaccount:" + namespace + ":web"
		c["kubernetes.io"].(map[string]any)["namespace"] = namespace
	}
}

// answer is a parsed response of the token endpoint.
type answer struct {
	status int
	header http.Header
	body   struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
		IssuedAt    string `json:"issued_at"`
		Errors      []struct{ Code, Message string }
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	access []registryauth.Scope
	claims map[string]any
}

func (r *rig) do(t testing.TB, request *http.Request) answer {
	t.Helper()
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, request)
	a := answer{status: w.Code, header: w.Header()}
	if err := json.Unmarshal(w.Body.Bytes(), &a.body); err != nil {
		t.Fatalf("status %d, body is not JSON: %v\n%s", w.Code, err, w.Body)
	}
	if a.status == http.StatusOK {
		if a.body.Token == "" || a.body.Token != a.body.AccessToken {
			t.Errorf("token and access_token must be the same and there")
		}
		a.claims, a.access = r.readToken(t, a.body.Token)
	} else if len(a.body.Errors) != 1 || a.body.Errors[0].Code == "" || a.body.Errors[0].Message == "" {
		t.Errorf("status %d without the registry's error form: %s", w.Code, w.Body)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control is %q", got)
	}
	return a
}

func (r *rig) readToken(t testing.TB, raw string) (map[string]any, []registryauth.Scope) {
	t.Helper()
	token := testkit.Value(jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256}))(t)
	claims := map[string]any{}
	var access struct {
		Access []struct {
			Type    string   `json:"type"`
			Class   string   `json:"class"`
			Name    string   `json:"name"`
			Actions []string `json:"actions"`
		} `json:"access"`
	}
	testkit.Must(t, token.UnsafeClaimsWithoutVerification(&claims, &access)) // the registry's own check is the oracle in registryauth
	scopes := []registryauth.Scope{}
	for _, a := range access.Access {
		scopes = append(scopes, registryauth.Scope(a))
	}
	return claims, scopes
}

// get is the form of docker and crane, post that of containerd.
func get(token string, scopes ...string) *http.Request {
	request := httptest.NewRequest(http.MethodGet, "/token?"+url.Values{"service": {testService}, "scope": scopes}.Encode(), nil)
	if token != "" {
		request.SetBasicAuth("serviceaccount", token)
	}
	return request
}

func post(token string, scopes ...string) *http.Request {
	form := url.Values{
		"grant_type": {"password"}, "service": {testService}, "client_id": {"containerd-client"},
		"username": {"serviceaccount"}, "password": {token}, "scope": {strings.Join(scopes, " ")},
	}
	request := httptest.NewRequest(http.MethodPost, "/token", strings.NewReader(form.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	request.Header.Set("User-Agent", "containerd/v2.4.2")
	return request
}

// objects returns fixed facts by UID of the ServiceAccount, or an error.
type objects struct {
	byUID map[string]exchange.Facts
	err   error
}

func (o objects) Lookup(_ context.Context, id oidc.Identity, _ oidc.Credential) (exchange.Facts, error) {
	return o.byUID[id.Kubernetes.ServiceAccount.UID], o.err
}

// annotated returns objects in which web has the annotation that policies read.
func annotated(repositories string) objects {
	return objects{byUID: map[string]exchange.Facts{
		webUID: {Annotations: map[string]string{"pullpass.dev/repositories": repositories}},
	}}
}

type callerKey struct{}

// from sets the caller of the request.
func from(caller nodeproof.Caller, request *http.Request) *http.Request {
	return request.WithContext(context.WithValue(request.Context(), callerKey{}, caller))
}

func callerOf(r *http.Request) nodeproof.Caller {
	if caller, ok := r.Context().Value(callerKey{}).(nodeproof.Caller); ok {
		return caller
	}
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	caller := nodeproof.Caller{Address: peer.Addr()}
	if r.TLS != nil {
		caller.Certificates = r.TLS.PeerCertificates
	}
	return caller
}
