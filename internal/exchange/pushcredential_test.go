package exchange_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// exchanged returns a request for a push credential.
func exchanged(token string, scopes ...string) *http.Request {
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {token},
		"subject_token_type":   {"urn:ietf:params:oauth:token-type:jwt"},
		"requested_token_type": {"urn:pullpass:token-type:push-credential"},
		"service":              {testService}, "scope": {strings.Join(scopes, " ")},
	}
	request := httptest.NewRequest(http.MethodPost, "/token", strings.NewReader(form.Encode()))
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return request
}

const pushScope = "repository:team-a/web:pull,push"

// pushCredential exchanges the token of a job for a push credential.
func (r *rig) pushCredential(t *testing.T) string {
	t.Helper()
	request := exchanged(r.job(t, nil), pushScope)
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, request)
	var body struct {
		Token           string `json:"access_token"`
		IssuedTokenType string `json:"issued_token_type"`
		TokenType       string `json:"token_type"`
		ExpiresIn       int    `json:"expires_in"`
		Scope           string `json:"scope"`
	}
	testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &body))
	if w.Code != http.StatusOK || body.IssuedTokenType != "urn:pullpass:token-type:push-credential" || body.TokenType != "N_A" || body.ExpiresIn != 900 || body.Scope != pushScope {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return body.Token
}

// A push credential is valid after the job's token has expired, for the scopes of its exchange,
// until its own expiry.
func TestPushCredentialOutlivesItsToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	credential := r.pushCredential(t)
	if e := r.lastEvent(t, 1); e.PushCredential == "" || e.IssuedID != e.PushCredential || e.Identity.Run != "1001" || e.Result != exchange.ResultGranted {
		t.Errorf("the event of the exchange is %+v", e)
	}
	r.advance(6 * time.Minute) // the token has expired
	a := r.do(t, get(credential, pushScope))
	if a.status != http.StatusOK || len(a.access) != 1 || a.claims["sub"] != "github/repo:octo-org/web:ref:refs/heads/main" {
		t.Fatalf("status %d, %v, %+v", a.status, a.access, a.body)
	}
	if e := r.lastEvent(t, 2); e.CredentialID != "JTI=job-1" || e.PushCredential != r.events[0].PushCredential {
		t.Errorf("the event is %+v", e)
	}
	r.advance(8 * time.Minute)
	if a := r.do(t, get(credential, pushScope)); a.status != http.StatusOK || int64(a.claims["exp"].(float64)) > made.Add(15*time.Minute).Unix() {
		t.Errorf("just before its end: %d, exp %v", a.status, a.claims["exp"])
	}
	r.advance(time.Minute)
	if a := r.do(t, get(credential, pushScope)); a.status != http.StatusUnauthorized {
		t.Errorf("at its end: %d", a.status)
	}
	if e := r.lastEvent(t, 4); e.Reason != "push_credential" {
		t.Errorf("the reason is %s", e.Reason)
	}
}

// It grants no more than the scopes of its exchange, and no more than the policy allows now.
func TestPushCredentialIsBound(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		jobs(c)
		c.policy += "- name: other\n  subjects: [{identities: [github]}]\n  allow: [{repositories: [\"other/**\"], actions: [pull, push]}]\n"
	})
	credential := r.pushCredential(t)
	if a := r.do(t, get(r.job(t, nil), "repository:other/x:pull")); len(a.access) != 1 {
		t.Fatalf("the job itself gets %v", a.access)
	}
	a := r.do(t, get(credential, "repository:other/x:pull", "repository:team-a/web:pull,push,delete"))
	if a.status != http.StatusOK || len(a.access) != 1 || a.access[0].String() != pushScope {
		t.Errorf("status %d, %v", a.status, a.access)
	}
	if e := r.lastEvent(t, 3); len(e.Scopes) != 2 || e.Scopes[0].Reason != "the push credential is not for it" {
		t.Errorf("the event says %+v", e.Scopes)
	}
	r.follow(t, func(c *exchange.Config) { c.Policy = parsePolicy(t, testPolicy) })
	if a := r.do(t, get(credential, pushScope)); a.status != http.StatusOK || len(a.access) > 0 {
		t.Errorf("after the policy changed: %d, %v", a.status, a.access)
	}
}

// A revocation of the job, its token or the credential refuses it.
func TestPushCredentialRevoked(t *testing.T) {
	t.Parallel()
	for name, revoked := range map[string]func(*oidc.Identity, *rig) bool{
		"the job's token": func(id *oidc.Identity, _ *rig) bool { return id.TokenID == "job-1" },
		"the run":         func(id *oidc.Identity, _ *rig) bool { return id.External != nil && id.External.Run == "1001" },
		"the credential":  func(id *oidc.Identity, r *rig) bool { return id.TokenID == r.recorded()[0].PushCredential },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jobs)
			credential := r.pushCredential(t)
			r.follow(t, func(c *exchange.Config) {
				c.Revocations = revokedIf(func(id *oidc.Identity) bool { return revoked(id, r) })
			})
			if a := r.do(t, get(credential, pushScope)); a.status != http.StatusForbidden {
				t.Errorf("status %d", a.status)
			}
			if e := r.lastEvent(t, 2); e.Reason != "revoked" || e.Revocation == nil {
				t.Errorf("the event is %+v", e)
			}
		})
	}
}

type revokedIf func(*oidc.Identity) bool

func (f revokedIf) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if f(id) {
		return &exchange.Revocation{Target: "x", Reason: "stolen"}, nil
	}
	return nil, nil
}

func TestNoPushCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	credential := r.pushCredential(t)
	ended := r.job(t, func(c map[string]any) { c["exp"] = r.Now().Unix() + 30 })
	for name, test := range map[string]struct {
		rig     *rig
		request func(*rig) *http.Request
		status  int
		reason  string
	}{
		"for a pod":               {newRig(t, nil), func(r *rig) *http.Request { return exchanged(r.token(t, nil), "repository:team-a/web:pull") }, 403, "push_credential"},
		"for another of its kind": {r, func(*rig) *http.Request { return exchanged(credential, pushScope) }, 403, "push_credential"},
		"for nothing":             {r, func(r *rig) *http.Request { return exchanged(r.job(t, nil), "repository:secret:push") }, 403, "push_credential"},
		"at another service": {r, func(*rig) *http.Request {
			q := get(credential, pushScope)
			q.URL.RawQuery = strings.Replace(q.URL.RawQuery, testService, otherService, 1)
			return q
		}, 401, "push_credential"},
		"changed":                   {r, func(*rig) *http.Request { return get(testkit.OtherEnd(credential), pushScope) }, 401, "push_credential"},
		"nothing sealed":            {r, func(*rig) *http.Request { return get("pullpass-push.", pushScope) }, 401, "push_credential"},
		"of a token that has ended": {r, func(r *rig) *http.Request { r.advance(time.Minute); return exchanged(ended, pushScope) }, 401, "token_expired"},
		"by another tenant's job": {r, func(r *rig) *http.Request {
			return exchanged(r.job(t, func(c map[string]any) { c["repository_owner_id"] = "8" }), pushScope)
		}, 401, "token_require"},
		"anonymously": {r, func(*rig) *http.Request { return exchanged("", pushScope) }, 400, "request_malformed"},
	} {
		a := test.rig.do(t, test.request(test.rig))
		events := test.rig.recorded()
		if e := events[len(events)-1]; a.status != test.status || e.Reason != test.reason {
			t.Errorf("%s: status %d, reason %s: %s", name, a.status, e.Reason, e.Message)
		}
	}
}

// The first caller with the job's token also owns its push credentials, even after the token has
// expired. state.NewMemoryOwners would have forgotten it by then.
func TestPushCredentialReplayed(t *testing.T) {
	t.Parallel()
	owners := newOwners()
	r := newRig(t, func(c *rigConfig) { jobs(c); c.replay, c.owners = exchange.ReplayEnforce, owners })
	credential := r.pushCredential(t)
	if left := owners.until.Sub(r.Now()); left < 15*time.Minute+4*time.Minute { // a push credential may be issued just before the token expires
		t.Errorf("the owner is remembered for %s", left)
	}
	r.advance(6 * time.Minute)
	for address, want := range map[string]int{"192.0.2.1": http.StatusOK, "192.0.2.2": http.StatusForbidden} {
		if a := r.do(t, from(at(address), get(credential, pushScope))); a.status != want {
			t.Errorf("%s: %d", address, a.status)
		}
	}
}

// A push credential counts as known where an address has spent its limit.
func TestPushCredentialAtASpentAddress(t *testing.T) {
	t.Parallel()
	r, _ := limited(t, 2, 10*time.Second, jobs)
	credential := r.pushCredential(t)
	for range 3 {
		r.do(t, get("no token", pushScope))
	}
	if a := r.do(t, get("pullpass-push.AAAA", pushScope)); a.status != http.StatusTooManyRequests {
		t.Errorf("one that was not sealed here: %d", a.status)
	}
	if a := r.do(t, get(credential, pushScope)); a.status != http.StatusOK {
		t.Errorf("status %d", a.status)
	}
	if a := r.do(t, with(get(credential, pushScope), "service", "other")); a.status != http.StatusTooManyRequests {
		t.Errorf("at an unknown service: %d", a.status)
	}
}

// The gateway ends the tokens of a push credential that is revoked, by their holder.
func TestPushCredentialIsTheHolder(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { jobs(c); c.namesHolder = true })
	credential := r.pushCredential(t)
	a := r.do(t, get(credential, pushScope))
	holder, _ := a.claims["pullpass"].(map[string]any)
	if e := r.lastEvent(t, 2); e.PushCredential == "" || holder["pushCredential"] != e.PushCredential {
		t.Errorf("the holder is %v, the event %+v", a.claims, e)
	}
}

// Without a key, a push credential can neither be made nor be read.
func TestPushCredentialWithoutKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { jobs(c); c.keys = noKeys{} })
	for name, request := range map[string]*http.Request{"made": exchanged(r.job(t, nil), pushScope), "read": get("pullpass-push.AAAA", pushScope)} {
		if a := r.do(t, request); a.status != http.StatusServiceUnavailable {
			t.Errorf("%s: status %d", name, a.status)
		}
	}
}

func TestPushCredentialTooLong(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	long := r.job(t, func(c map[string]any) { c["note"] = strings.Repeat("x", 9<<10) })
	if a := r.do(t, get(long, pushScope)); a.status != http.StatusOK {
		t.Fatalf("the token itself: %d", a.status)
	}
	if a := r.do(t, exchanged(long, pushScope)); a.status != http.StatusForbidden || !strings.Contains(a.body.Errors[0].Message, "too long") {
		t.Errorf("status %d, %+v", a.status, a.body.Errors)
	}
}
