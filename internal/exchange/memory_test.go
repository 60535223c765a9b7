package exchange_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// An issued token is reused after a reload, but not by a registry with different settings.
func TestAnExchangerGoesOnWithIssuedTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	first := r.do(t, get(token, "repository:team-a/web:pull")).body.Token
	r.follow(t, func(*exchange.Config) {})
	if r.do(t, get(token, "repository:team-a/web:pull")).body.Token != first {
		t.Error("the token was forgotten")
	}
	r.follow(t, func(c *exchange.Config) {
		other := testkit.Value(registryauth.NewIssuer(registryauth.IssuerConfig{
			Issuer: "other.example.com", Service: testService, Lifetime: 5 * time.Minute, Keys: r.keys, Now: r.Now,
		}))(t)
		c.Registries = []*registryauth.Issuer{other}
	})
	if a := r.do(t, get(token, "repository:team-a/web:pull")); a.claims["iss"] != "other.example.com" {
		t.Errorf("the token is of the issuer %q, which is not configured any more", a.claims["iss"])
	}
}

// Successive Handlers share their places, the halves of an attempt, and the limits.
func TestAHandlerGoesOnWithRequests(t *testing.T) {
	t.Parallel()
	working, release := make(chan bool), make(chan bool)
	r := newRig(t, func(c *rigConfig) {
		c.inFlight = 1
		c.verifier = verifierFunc(func() (oidc.Identity, error) {
			working <- true
			<-release
			return oidc.Identity{}, &oidc.Error{Reason: refusal.TokenSignature, Message: "the token's signature is wrong"}
		})
	})
	token, before := r.token(t, nil), r.handler
	first := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		before.ServeHTTP(w, post(token))
		first <- w.Code
	}()
	<-working
	r.follow(t, func(*exchange.Config) {})
	if a := r.do(t, post(token)); a.status != http.StatusServiceUnavailable {
		t.Errorf("status %d, and the only place is taken", a.status)
	}
	close(release)
	if status := <-first; status != http.StatusUnauthorized {
		t.Errorf("the request on the Handler before got %d", status)
	}

	r = newRig(t, nil)
	bad := r.token(t, func(c map[string]any) { c["aud"] = []string{"vault"} })
	r.do(t, post(bad))
	r.follow(t, func(*exchange.Config) {})
	r.do(t, get(bad))
	if !r.lastEvent(t, 2).Retry {
		t.Error("the GET that repeats a POST counts as another attempt")
	}

	r, _ = limited(t, 1, time.Minute, nil)
	for range 2 {
		r.do(t, get("a.b.c"))
	}
	r.follow(t, func(*exchange.Config) {})
	if a := r.do(t, get(r.token(t, nil))); a.status != http.StatusTooManyRequests {
		t.Errorf("status %d for a credential of an address that has spent its limit", a.status)
	}
}

func TestAndDenials(t *testing.T) {
	t.Parallel()
	now := parsePolicy(t, testPolicy)
	next := parsePolicy(t, strings.NewReplacer("{namespace}/**", "elsewhere/**", "team-bad", "team-worse").Replace(testPolicy))
	both := now.AndDenials(next)
	for namespace, want := range map[string]string{"team-a": "", "team-bad": "quarantine", "team-worse": "quarantine"} {
		scope := registryauth.Scope{Type: "repository", Name: namespace + "/web", Actions: []string{"pull"}}
		d := both.Decide(policy.Subject{Identity: &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace}}}, testService, []registryauth.Scope{scope})
		if granted := len(d.Granted()) == 1; d.DeniedBy != want || granted != (want == "") {
			t.Errorf("%s: denied by %q, granted %v", namespace, d.DeniedBy, d.Granted())
		}
	}
	if len(next.AndDenials(now).AnnotationKeys()) != 1 || both.Revision() == now.Revision() || both.Revision() == next.Revision() {
		t.Errorf("annotations %q, revision %s", both.AnnotationKeys(), both.Revision())
	}
}
