package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const deployToken = "gitlab+deploy-token-1"

// gitLab stands in for GitLab. Its registry is distribution. Its token endpoint, on a different
// host, grants a deploy token access to one group. Other scopes are left out of the token. The
// response has no lifetime.
type gitLab struct {
	*registrytest.Server
	mu    sync.Mutex
	asked []string // query strings of good requests
}

func newGitLab(t *testing.T) (registry *registrytest.Server, site *gitLab) {
	t.Helper()
	keys := newKeys(t)
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "gitlab-issuer", Service: "container_registry", Lifetime: 5 * time.Minute, Keys: keys})
	testkit.Must(t, err)
	site = &gitLab{}
	site.Server = registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		query := r.URL.Query()
		switch {
		case r.URL.Path != "/jwt/auth" || r.Method != http.MethodGet || query.Get("service") != "container_registry":
			http.NotFound(w, r)
			return
		case user != deployToken || pass != registrytest.Password:
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"HTTP Basic: Access denied."}]}`)
			return
		}
		scopes := testkit.Value(registryauth.ParseScopes(query["scope"]))(t)
		issued, err := issuer.Issue(registryauth.Grant{Subject: user, Access: slices.DeleteFunc(scopes, func(s registryauth.Scope) bool { return !strings.HasPrefix(s.Name, "acme/") })})
		testkit.Must(t, err)
		site.mu.Lock()
		site.asked = append(site.asked, query.Encode())
		site.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]string{"token": issued.Value.Reveal()})
	}))
	jwks := testkit.Value(signing.MarshalJWKS(keys))(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	testkit.Must(t, os.WriteFile(file, jwks, 0o600))
	registry = registrytest.NewRegistry(t, fmt.Sprintf("auth: {token: {realm: %q, service: container_registry, issuer: gitlab-issuer, jwks: %q}}", site.URL+"/jwt/auth", file))
	return registry, site
}

// take returns the scopes that were requested since the last call.
func (g *gitLab) take() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked := g.asked
	g.asked = nil
	return asked
}

func TestGitLab(t *testing.T) {
	t.Parallel()
	registry, site := newGitLab(t)
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	password := filepath.Join(t.TempDir(), "gitlab.pass")
	testkit.Must(t, os.WriteFile(password, []byte(registrytest.Password+"\n"), 0o600))
	r := newRig(t, upstreamSettings{name: "registry.gitlab.com", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) {
		c.Logins, c.CAFile, c.Now = basic.New(deployToken, password, now), bothCAs(t, registry, site.Server), now
	}})
	const name = "registry.gitlab.com/"
	const web, base = "acme/backend/services/web", "acme/base"
	path := func(repository, rest string) string { return "/v2/" + name + repository + rest }
	expect := func(what string, scopes ...string) {
		t.Helper()
		want := []string{}
		for _, scope := range scopes {
			query := url.Values{"service": {"container_registry"}}
			for one := range strings.FieldsSeq(scope) {
				query.Add("scope", "repository:"+one)
			}
			want = append(want, query.Encode())
		}
		if got := site.take(); !slices.Equal(got, want) {
			t.Errorf("%s: asked for %q, want %q", what, got, want)
		}
	}

	blob := "a layer"
	digest := registrytest.DigestOf([]byte(blob))
	started := r.push(http.MethodPost, path(base, "/blobs/uploads/"), name+base, "")
	if got := r.push(http.MethodPut, started.header.Get("Location")+"?digest="+digest, name+base, blob, "Content-Type", "application/octet-stream"); got.status != http.StatusCreated {
		t.Errorf("push: %d %s", got.status, got.body)
	}
	expect("a push", base+":pull,push")

	both := r.token("web", "repository:"+name+web+":pull,push", "repository:"+name+base+":pull")
	if got := r.do(http.MethodPost, path(web, "/blobs/uploads/?mount="+digest+"&from="+name+base), both, nil); got.status != http.StatusCreated {
		t.Errorf("mount: %d %s", got.status, got.body)
	}
	expect("a mount", web+":pull,push "+base+":pull")

	for _, pull := range []struct {
		after  time.Duration
		scopes []string
	}{
		{0, []string{web + ":pull"}},
		{40 * time.Second, nil},                     // without a lifetime, a minute counts (token specification)
		{10 * time.Second, []string{web + ":pull"}}, // a token is replaced before its expiry
	} {
		clock.Add(int64(pull.after))
		if got := r.pull(path(web, "/blobs/"+digest), name+web); got.status != http.StatusOK || got.body != blob {
			t.Errorf("pull: %d %s", got.status, got.body)
		}
		expect("a pull", pull.scopes...)
	}

	r.events.take()
	if got, e := r.pull(path("other/web", "/blobs/"+digest), name+"other/web"), r.one(); got.status != http.StatusBadGateway || e.Reason != "upstream_denied" {
		t.Errorf("another group: %d %s %s", got.status, got.body, shown(e))
	}
	clock.Add(int64(time.Minute))
	testkit.Must(t, os.WriteFile(password, []byte("revoked\n"), 0o600))
	if got, e := r.pull(path(web, "/blobs/"+digest), name+web), r.one(); got.status != http.StatusBadGateway || e.Reason != "upstream_credential" || strings.Contains(got.body+shown(e), "revoked") {
		t.Errorf("a deploy token that was revoked: %d %s %s", got.status, got.body, shown(e))
	}
}
