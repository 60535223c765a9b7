package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// tokenServer is a token server other than Pullpass. It knows a registrytest.User and its
// registrytest.Password, and grants all requested scopes.
type tokenServer struct {
	*registrytest.Server
	expiresIn int
	delay     time.Duration
	scopes    sync.Map // asked for
	asked     atomic.Int64
}

// newTokenRegistry is distribution with a token server.
func newTokenRegistry(t testing.TB) (*registrytest.Server, *tokenServer) {
	t.Helper()
	keys := newKeys(t)
	issuer := testkit.Value(registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "other-token-server", Service: "upstream", Lifetime: 5 * time.Minute, Keys: keys}))(t)
	s := &tokenServer{expiresIn: 300}
	s.Server = registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		time.Sleep(s.delay)
		user, pass, ok := r.BasicAuth()
		if ok && (user != registrytest.User || pass != registrytest.Password) || r.URL.Query().Get("service") != "upstream" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		scopes, err := registryauth.ParseScopes(r.URL.Query()["scope"])
		if err != nil || !ok {
			scopes = slices.DeleteFunc(scopes, func(s registryauth.Scope) bool { return !strings.HasPrefix(s.Name, "public/") })
		}
		s.scopes.Store(strings.Join(r.URL.Query()["scope"], " "), true)
		issued, err := issuer.Issue(registryauth.Grant{Subject: user, Access: scopes})
		if err != nil {
			panic(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": issued.Value.Reveal(), "expires_in": s.expiresIn})
	}))
	jwks := testkit.Value(signing.MarshalJWKS(keys))(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	testkit.Must(t, os.WriteFile(file, jwks, 0o600))
	registry := registrytest.NewRegistry(t, fmt.Sprintf("auth: {token: {realm: %q, service: upstream, issuer: other-token-server, jwks: %q}}", s.URL+"/token", file))
	return registry, s
}

// The gateway requests a token for exactly the repository and actions, once for all concurrent
// requests. It requests a new one only near the expiry, or if the upstream refuses the old one.
func TestUpstreamTokens(t *testing.T) {
	t.Parallel()
	registry, tokens := newTokenRegistry(t)
	now := time.Now()
	var clock atomic.Int64
	clock.Store(now.UnixNano())
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) {
		c.CAFile, c.Now = bothCAs(t, registry, tokens.Server), func() time.Time { return time.Unix(0, clock.Load()) }
	}})
	tokens.delay = 50 * time.Millisecond
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	var pulls sync.WaitGroup
	statuses := make([]int, 100) // each with its own TLS connection, on busy machines
	for i := range statuses {
		pulls.Go(func() {
			statuses[i] = r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", token, nil).status
		})
	}
	pulls.Wait()
	if slices.Max(statuses) != 404 || slices.Min(statuses) != 404 {
		t.Errorf("statuses from %d to %d", slices.Min(statuses), slices.Max(statuses))
	}
	if n := tokens.asked.Load(); n != 1 {
		t.Errorf("100 pulls at once asked for %d tokens", n)
	}
	// One learns of the token endpoint. On a busy machine, net/http sends a few again whose connection was closed meanwhile.
	if n := registry.Count(http.MethodGet, "/v2/"); n > 110 {
		t.Errorf("100 pulls at once made %d requests", n)
	}
	tokens.delay = 0
	tokens.scopes.Range(func(scope, _ any) bool {
		if scope != "repository:acme/app:pull" {
			t.Errorf("asked for %q", scope)
		}
		return true
	})

	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/?mount="+registrytest.DigestOf(nil)+"&from=acme/base", "ghcr.io/acme/app", "")
	if at.status != 202 {
		t.Errorf("push: %d %s", at.status, at.body)
	}
	if _, ok := tokens.scopes.Load("repository:acme/app:pull,push"); !ok {
		t.Error("no token to push was asked for")
	}
	other := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "")
	if got := r.push(http.MethodDelete, other.header.Get("Location"), "ghcr.io/acme/app", ""); got.status != 204 {
		t.Errorf("give the upload up: %d %s", got.status, got.body)
	}
	asked := tokens.asked.Load()
	clock.Add(int64(200 * time.Second))
	r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
	if n := tokens.asked.Load(); n != asked {
		t.Error("a token was asked for that was still good")
	}
	clock.Add(int64(90 * time.Second))
	r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
	if n := tokens.asked.Load(); n != asked+1 {
		t.Errorf("near its end, %d tokens were asked for", n-asked)
	}

	// The upstream refuses a token that it issued: a new one is requested, once.
	refusals := 0
	registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
		if refusals--; refusals < 0 || q.URL.Path == "/v2/" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="upstream",error="invalid_token"`, tokens.URL+"/token"))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	for _, test := range []struct{ refusals, status int }{{1, 404}, {2, 502}} {
		refusals, asked = test.refusals, tokens.asked.Load()
		got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
		if n := tokens.asked.Load() - asked; got.status != test.status || n > 2 {
			t.Errorf("refused %d times: %d %s, %d tokens", test.refusals, got.status, got.body, n)
		}
	}
	// In the middle of an upload, that costs no bytes.
	refusals = 1
	upload := r.push(http.MethodPatch, at.header.Get("Location"), "ghcr.io/acme/app", "content", "Content-Type", "application/octet-stream")
	if upload.status != 202 || upload.header.Get("Range") != "0-6" {
		t.Errorf("upload: %d %v %s", upload.status, upload.header, upload.body)
	}
}

// A fault of a token endpoint is a failure of the upstream, and is reported.
func TestUpstreamTokenFailures(t *testing.T) {
	t.Parallel()
	answering := func(status int, body string, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		status int
		reason string
	}{
		"401":                    {answering(401, ""), 502, "upstream_credential"},
		"403":                    {answering(403, ""), 502, "upstream_credential"},
		"429":                    {answering(429, "", "Retry-After", "5"), 429, "upstream_limited"},
		"500":                    {answering(500, ""), 502, "upstream_failing"},
		"a redirect":             {answering(302, "", "Location", "https://evil.example/"), 502, "upstream_invalid"},
		"no JSON":                {answering(200, "<html>"), 502, "upstream_invalid"},
		"no token":               {answering(200, "{}"), 502, "upstream_invalid"},
		"a line in it":           {answering(200, `{"token":"a\r\nX: y"}`), 502, "upstream_invalid"},
		"too large":              {answering(200, `{"token":"`+strings.Repeat("x", 70<<10)+`"}`), 502, "upstream_invalid"},
		"nothing":                {func(w http.ResponseWriter, _ *http.Request) bool { return hangUp(w, "") }, 502, "upstream_unreachable"},
		"one that opens nothing": {answering(200, `{"token":"abc","expires_in":300}`), 502, "upstream_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, tokens := newTokenRegistry(t)
			r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) { c.CAFile = bothCAs(t, registry, tokens.Server) }})
			tokens.Answer(test.answer)
			for range 3 {
				got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
				if e := r.one(); got.status != test.status || e.Reason != test.reason || strings.Contains(shown(e)+got.body, registrytest.Password) {
					t.Errorf("%d %s %s", got.status, got.body, shown(e))
				}
			}
			// One request for the repository, and one without scopes to check the password.
			if n := len(tokens.Asked()); test.reason == "upstream_credential" && n != 2 {
				t.Errorf("a password that was refused was sent %d times", n)
			}
			for _, asked := range registry.Asked() {
				if asked.URL.Path != "/v2/" && asked.Header.Get("Authorization") == "" {
					t.Errorf("%s was asked anonymously", asked.URL)
				}
			}
		})
	}
}

// A token endpoint gets the password. It must use TLS. Its address may be private only if the
// upstream's is, or if the configuration names it.
func TestTokenEndpoints(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	for realm, reason := range map[string]string{
		"http://127.0.0.1:1/token":  "upstream_credential",
		"http://evil.example/token": "upstream_credential",
		"ftp://127.0.0.1/token":     "upstream_credential",
		"https://127.0.0.1:1/token": "upstream_unreachable",
		"https://localhost:1/token": "upstream_unreachable", // the upstream itself has such an address
		"https://u:p@127.0.0.1/":    "upstream_credential",
		"https://no.invalid/token":  "upstream_unreachable",
	} {
		r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
		registry.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
		if e := r.one(); got.status != 502 || e.Reason != reason {
			t.Errorf("%s: %d %s", realm, got.status, shown(e))
		}
	}
}

// Without a credential, an upstream is asked anonymously.
func TestAnonymousUpstream(t *testing.T) {
	t.Parallel()
	registry, tokens := newTokenRegistry(t)
	anonymous := func(c *upstream.Config, _ *gateway.Upstream) {
		c.Logins, c.CAFile = nil, bothCAs(t, registry, tokens.Server)
	}
	basic := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: anonymous},
		upstreamSettings{name: "basic", to: basic, change: func(c *upstream.Config, _ *gateway.Upstream) { c.Logins = nil }})
	for path, want := range map[string]struct {
		status int
		reason string
	}{
		"ghcr.io/public/app": {404, ""}, "ghcr.io/acme/app": {502, "upstream_credential"}, "basic/acme/app": {502, "upstream_credential"},
	} {
		got := r.pull("/v2/"+path+"/manifests/v1", path)
		if e := r.one(); got.status != want.status || e.Reason != want.reason || e.Reason != "" && !strings.Contains(e.Message, "configure a credential") {
			t.Errorf("%s: %d %s", path, got.status, shown(e))
		}
	}
	for _, name := range []string{"ghcr.io", "basic"} {
		if status := r.clients[name].Status(); name == "ghcr.io" && status.Failure != "" {
			t.Errorf("what one repository lacks is said of %s: %s", name, status.Failure)
		}
	}
}
