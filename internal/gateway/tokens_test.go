package gateway_test

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A token for the gateway is not valid elsewhere, and a token for elsewhere is not valid here: the
// audience and the keys are the gateway's own. Scopes that were not granted give no access.
func TestOtherTokens(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	i := registry.Put(t, "acme/app", "v1", []byte("layer"))
	registry.Put(t, "acme/other", "v1", []byte("other"))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry}, upstreamSettings{name: "harbor", to: registry})
	const path = "/v2/ghcr.io/acme/app/manifests/v1"
	scope := testkit.Value(registryauth.ParseScope("repository:ghcr.io/acme/app:pull"))(t)
	issue := func(issuer *registryauth.Issuer, grant registryauth.Grant) string {
		issued := testkit.Value(issuer.Issue(grant))(t)
		return issued.Value.Reveal()
	}
	all := registryauth.Grant{Subject: "system:serviceaccount:team-a:web", Access: []registryauth.Scope{scope}, Holder: &registryauth.Holder{Cluster: "prod", TokenID: "x"}}
	good := issue(r.issuer, all)
	unnamed, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "pullpass.example.com", Service: service, Lifetime: 5 * 60e9, Keys: r.keys})
	testkit.Must(t, err)
	elsewhere, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "another.example.com", Service: service, Lifetime: 5 * 60e9, Keys: r.keys, NamesHolder: true})
	testkit.Must(t, err)
	anonymous := issue(r.issuer, registryauth.Grant{Access: []registryauth.Scope{scope}})
	for name, test := range map[string]struct {
		token  string
		status int
		fault  string
	}{
		"good":                        {good, 200, ""},
		"anonymous":                   {anonymous, 200, ""},
		"of another service":          {issue(newIssuer(t, "registry.example.com", r.keys), all), 401, "invalid_token"},
		"of another issuer":           {issue(elsewhere, all), 401, "invalid_token"},
		"of another type":             {r.token("web", "other:ghcr.io/acme/app:pull"), 401, "insufficient_scope"},
		"by another key":              {issue(newIssuer(t, service, newKeys(t)), all), 401, "invalid_token"},
		"without the holder":          {issue(unnamed, all), 401, "invalid_token"},
		"cut":                         {good[:len(good)-4], 401, "invalid_token"},
		"no token":                    {"this-is-no-token", 401, "invalid_token"},
		"the upstream's password":     {registrytest.Password, 401, "invalid_token"},
		"of nothing":                  {r.token("web"), 401, "insufficient_scope"},
		"of another repository":       {r.token("web", "repository:ghcr.io/acme/other:pull"), 401, "insufficient_scope"},
		"of another upstream":         {r.token("web", "repository:harbor/acme/app:pull"), 401, "insufficient_scope"},
		"of the image's name alone":   {r.token("web", "repository:acme/app:pull"), 401, "insufficient_scope"},
		"to push, and not to pull":    {r.token("web", "repository:ghcr.io/acme/app:push"), 401, "insufficient_scope"},
		"of the catalog":              {r.token("web", "registry:catalog:*"), 401, "insufficient_scope"},
		"of a repository of a plugin": {r.token("web", "repository(plugin):ghcr.io/acme/app:pull"), 200, ""}, // the class is ignored, as registries do
	} {
		got := r.do(http.MethodGet, path, test.token, nil, "Accept", registrytest.ManifestType)
		challenge := got.header.Get("WWW-Authenticate")
		if got.status != test.status || test.fault != "" && !strings.HasSuffix(challenge, `,scope="repository:ghcr.io/acme/app:pull",error="`+test.fault+`"`) {
			t.Errorf("%s: %d %s", name, got.status, challenge)
		}
		if test.fault == "" {
			continue
		}
		events := r.events.take()
		last := events[len(events)-1]
		want := map[string]string{"invalid_token": "token_invalid", "insufficient_scope": "insufficient_scope"}[test.fault]
		if last.Reason != want || last.Result != "refused" || last.Status != 401 || strings.Contains(shown(last), test.token) {
			t.Errorf("%s: %s", name, shown(last))
		}
		r.limiter.left = 5
	}
	if got := r.do(http.MethodGet, path, good, nil, "Authorization", "Bearer x"); got.status != 401 {
		t.Errorf("two credentials: %d", got.status)
	}
	if got := r.do(http.MethodGet, path, "", nil, "Authorization", "Basic "+good); got.status != 401 {
		t.Errorf("a token as Basic: %d", got.status)
	}
	// A blob is readable by its digest only in an allowed repository.
	for path, status := range map[string]int{"/v2/ghcr.io/acme/app/blobs/": 200, "/v2/ghcr.io/acme/other/blobs/": 401, "/v2/harbor/acme/app/blobs/": 401} {
		if got := r.do(http.MethodGet, path+i.LayerDigest, good, nil); got.status != status {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	if got := r.pull("/v2/ghcr.io/acme/other/blobs/"+i.LayerDigest, "ghcr.io/acme/other"); got.status != 404 {
		t.Errorf("a blob of another repository: %d", got.status)
	}
}

// Each request is judged: a valid token is refused after a revocation.
func TestRevocation(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	status := func() answer {
		return r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", token, nil, "Accept", registrytest.ManifestType)
	}
	if got := status(); got.status != 200 {
		t.Fatalf("before: %d", got.status)
	}
	r.revocations.set(r.one().Gateway.TokenID)
	if got := status(); got.status != 403 {
		t.Errorf("the token itself is revoked: %d %s", got.status, got.body)
	}
	r.events.take()
	r.revocations.set("jti-web")
	if got := status(); got.status != 403 || !strings.Contains(got.body, "DENIED") {
		t.Errorf("revoked: %d %s", got.status, got.body)
	}
	if e := r.one(); e.Reason != "revoked" || e.Revocation.By != "root" || e.Pod.UID != "pod-uid" {
		t.Errorf("event: %s", shown(e))
	}
	r.revocations.target, r.revocations.err = "", errors.New("not read yet")
	if got := status(); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("revocations are unknown: %d %v", got.status, got.header)
	}
	if e := r.one(); e.Reason != "revocations_unavailable" {
		t.Errorf("event: %s", shown(e))
	}
}

// A sender of invalid tokens is told to wait. Known valid tokens pass.
func TestAddressLimit(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	good := r.token("web", "repository:ghcr.io/acme/app:pull")
	ask := func(token string) int {
		return r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", token, nil, "Accept", registrytest.ManifestType).status
	}
	if got := ask(good); got != 200 {
		t.Fatal(got)
	}
	var statuses []int
	for range 8 {
		statuses = append(statuses, ask("x"))
	}
	if statuses[5] != 401 || statuses[6] != 429 || ask(good) != 200 || ask("") != 401 {
		t.Errorf("%v, then %d and %d", statuses, ask(good), ask(""))
	}
}

// A credential that is not a token also takes from the limit of its address.
func TestAddressLimitOfOtherCredentials(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Basic eDp5", "Bearer", "Bearer  ", "x"} {
		r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
		for i := range 7 {
			got := r.do(http.MethodGet, "/v2/", "", nil, "Authorization", header)
			if want := map[bool]int{false: 401, true: 429}[i > 5]; got.status != want {
				t.Errorf("%q, request %d: %d", header, i, got.status)
			}
		}
	}
}

// So does an unreadable request, unless it has a valid token.
func TestAddressLimitOfUnreadableRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, path string
		header       []string
		status       int
	}{
		"no path":      {http.MethodGet, "/v2/ghcr.io/acme/app/other", nil, 404},
		"the catalog":  {http.MethodGet, "/v2/_catalog", nil, 404},
		"no upstream":  {http.MethodGet, "/v2/quay.io/acme/app/manifests/v1", nil, 404},
		"no digest":    {http.MethodGet, "/v2/ghcr.io/acme/app/blobs/x", nil, 400},
		"no query":     {http.MethodGet, "/v2/ghcr.io/acme/app/tags/list?n=1&n=2", nil, 400},
		"no method":    {http.MethodTrace, "/v2/ghcr.io/acme/app/manifests/v1", nil, 405},
		"a bad token":  {http.MethodGet, "/v2/ghcr.io/acme/app/other", []string{"Authorization", "Bearer x"}, 404},
		"another form": {http.MethodGet, "/v2/ghcr.io/acme/app/other", []string{"Authorization", "Basic eDp5"}, 404},
	} {
		r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
		for i := range 8 {
			got := r.do(test.method, test.path, "", nil, test.header...)
			if want := map[bool]int{false: test.status, true: 429}[i > 5]; got.status != want {
				t.Errorf("%s: request %d: %d", name, i, got.status)
			}
		}
	}
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
	good := r.token("web")
	for i := range 8 {
		if got := r.do(http.MethodGet, "/v2/_catalog", good, nil); got.status != 404 {
			t.Errorf("with a good token, request %d: %d", i, got.status)
		}
		if e := r.one(); e.Gateway.TokenID == "" {
			t.Errorf("the event does not say whose it is: %s", shown(e))
		}
	}
}

type panicking struct{}

func (panicking) Revoked(*oidc.Identity) (*exchange.Revocation, error) { panic("with a secret") }

// An internal error is one response and one event, without details.
func TestPanic(t *testing.T) {
	t.Parallel()
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
	r.config.Revocations = panicking{}
	got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
	if e := r.one(); got.status != 500 || strings.Contains(got.body+shown(e), "with a secret") || e.Reason != "internal_error" || e.Status != 500 {
		t.Errorf("%d %s %s", got.status, got.body, shown(e))
	}
}

// After a key is removed, tokens that were valid by it are refused.
func TestKeysThatAreTakenAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
	token := r.token("web")
	if got := r.do(http.MethodGet, "/v2/", token, nil); got.status != 200 {
		t.Fatal(got.status)
	}
	r.config.Keys = newKeys(t)
	if got := r.do(http.MethodGet, "/v2/", token, nil); got.status != 401 {
		t.Errorf("with other keys: %d", got.status)
	}
}

// No piece of the Authorization header is part of an event, in any form and wherever the client
// repeats it.
func TestPiecesOfCredentials(t *testing.T) {
	t.Parallel()
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewRegistry(t, "")})
	for _, header := range []string{
		"Bearer all-in-lower-case-0123456789", "bearer Of-Both-Cases-0123456789", "Basic YWxsOmluLWxvd2VyLWNhc2U=", "without-a-scheme-0123456789", "In-Place-Of-A-Scheme-0123456789 x", "Other all-in-lower-case-0123456789",
	} {
		r.limiter.left = 1
		piece := header[max(strings.Index(header, " ")+1, 0):]
		if len(piece) < 12 {
			piece = header
		}
		r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", "", nil, "Authorization", header, "User-Agent", "a client with "+piece[2:16])
		if e := r.one(); strings.Contains(shown(e), piece[2:16]) || e.Client == "" {
			t.Errorf("%s: %s", header, shown(e))
		}
	}
}

func TestEveryFieldIsRequired(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	whole := r.config
	for i := range reflect.TypeFor[gateway.Config]().NumField() {
		c := whole
		field := reflect.ValueOf(&c).Elem().Field(i)
		field.SetZero()
		name := reflect.TypeFor[gateway.Config]().Field(i).Name
		if _, err := gateway.New(c); (err == nil) != (name == "Now") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
