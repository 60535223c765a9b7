package exchange_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestGranted(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]func(string, ...string) *http.Request{"GET": get, "POST": post} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			a := r.do(t, request(r.token(t, nil), "repository:team-a/web:pull"))
			if a.status != http.StatusOK {
				t.Fatalf("status %d: %+v", a.status, a.body.Errors)
			}
			if want := []registryauth.Scope{{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}}; !reflect.DeepEqual(a.access, want) {
				t.Errorf("access %v, want %v", a.access, want)
			}
			for claim, want := range map[string]any{"iss": "pullpass.example.com", "aud": testService, "sub": "system:serviceaccount:team-a:web"} {
				if a.claims[claim] != want {
					t.Errorf("%s is %v, want %v", claim, a.claims[claim], want)
				}
			}
			if a.body.ExpiresIn != 300 || a.body.IssuedAt != "2026-03-04T05:06:07Z" {
				t.Errorf("expires_in %d, issued_at %s", a.body.ExpiresIn, a.body.IssuedAt)
			}
			e := r.lastEvent(t, 1)
			if e.Result != exchange.ResultGranted || e.Status != 200 || e.Reason != "" || e.Rule != "own-namespace" ||
				e.Cluster != "prod" || e.Namespace != "team-a" || *e.ServiceAccount != (exchange.Object{Name: "web", UID: webUID}) ||
				e.Pod.Name != "web-0" || e.Node.Name != "node1" || e.CredentialID != "JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91" ||
				e.IssuedID != a.claims["jti"] || e.Service != testService || e.Caller != "192.0.2.1" ||
				!reflect.DeepEqual(e.Requested, []string{"repository:team-a/web:pull"}) || !reflect.DeepEqual(e.Granted, e.Requested) {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// Harbor grants everything that the user has. The token specification requires the intersection of
// the requested and the allowed scopes.
func TestNeverMoreThanAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = annotated("team-a/web:pull,push")
	})
	a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull"))
	if len(a.access) != 1 || !reflect.DeepEqual(a.access[0].Actions, []string{"pull"}) {
		t.Errorf("access %v, want pull alone", a.access)
	}
}

// Missing permissions are not an error (token specification): the response is 200 with fewer
// scopes, and the event has the reason.
func TestPartialAndNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	a := r.do(t, get(token, "repository:team-a/web:pull,push", "repository:team-b/app:pull"))
	e := r.lastEvent(t, 1)
	if a.status != 200 || len(a.access) != 1 || e.Result != exchange.ResultPartial || e.Reason != "scope_not_granted" || len(e.Scopes) != 2 {
		t.Errorf("status %d, access %v, event %+v", a.status, a.access, e)
	}
	a = r.do(t, get(token, "repository:team-b/app:pull"))
	e = r.lastEvent(t, 2)
	if a.status != 200 || a.access == nil || len(a.access) != 0 || e.Result != exchange.ResultNone || e.Granted != nil ||
		len(e.Scopes) != 1 || e.Scopes[0].Reason == "" {
		t.Errorf("status %d, access %#v, event %+v", a.status, a.access, e)
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := r.do(t, get(r.token(t, nil)))
	if a.status != 200 || len(a.access) != 0 {
		t.Errorf("status %d, access %v", a.status, a.access)
	}
	if e := r.lastEvent(t, 1); e.Result != exchange.ResultGranted {
		t.Errorf("result %s", e.Result)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	down := func(c *rigConfig) {
		c.verifier = verifierFunc(func() (oidc.Identity, error) {
			return oidc.Identity{}, &oidc.Error{Reason: refusal.IssuerUnavailable, Message: "keys of cluster prod cannot be had", Cluster: "prod", Err: errors.New("dial tcp 10.1.2.3:443")}
		})
	}
	for _, test := range []struct {
		name    string
		rig     func(*rigConfig)
		request func(*testing.T, *rig) *http.Request
		status  int
		code    string // in errors[]
		oauth   string // for POST
		result  exchange.Result
		reason  string
		message string // a part of the client's message
	}{
		{
			name:    "unknown service",
			request: func(t *testing.T, r *rig) *http.Request { return with(get(r.token(t, nil)), "service", "other") },
			status:  400, code: "UNSUPPORTED", result: exchange.ResultInvalid, reason: "service_unknown", message: `"other"`,
		}, {
			name:    "no service",
			request: func(t *testing.T, r *rig) *http.Request { return with(get(r.token(t, nil)), "service", "") },
			status:  400, code: "UNSUPPORTED", result: exchange.ResultInvalid, reason: "request_malformed", message: "service",
		}, {
			name: "no grant type",
			request: func(t *testing.T, r *rig) *http.Request {
				request := httptest.NewRequest("POST", "/token", strings.NewReader("service="+testService))
				request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				return request
			},
			status: 400, code: "UNSUPPORTED", oauth: "invalid_request", result: exchange.ResultInvalid, reason: "request_malformed", message: "grant_type",
		}, {
			name:    "other method",
			request: func(*testing.T, *rig) *http.Request { return httptest.NewRequest("DELETE", "/token", nil) },
			status:  405, code: "UNSUPPORTED", result: exchange.ResultInvalid, reason: "method_not_allowed", message: "GET and POST",
		}, {
			name: "forged signature",
			request: func(t *testing.T, r *rig) *http.Request {
				genuine := strings.Split(r.token(t, nil), ".")
				return get(strings.Join(genuine[:2], ".")+"."+strings.Split(sign(t, r.stranger, map[string]any{"a": 1}), ".")[2], "repository:team-a/web:pull")
			},
			status: 401, code: "UNAUTHORIZED", result: exchange.ResultRefused, reason: "token_signature", message: "signature",
		}, {
			name: "other audience",
			request: func(t *testing.T, r *rig) *http.Request {
				return post(r.token(t, func(c map[string]any) { c["aud"] = []string{"vault"} }), "repository:team-a/web:pull")
			},
			status: 401, code: "UNAUTHORIZED", oauth: "invalid_grant", result: exchange.ResultRefused, reason: "token_audience", message: "audience",
		}, {
			name:    "anonymous",
			request: func(*testing.T, *rig) *http.Request { return get("", "repository:team-a/web:pull") },
			status:  401, code: "UNAUTHORIZED", result: exchange.ResultRefused, reason: "anonymous", message: "no credential",
		}, {
			name:    "anonymous login",
			request: func(*testing.T, *rig) *http.Request { return get("") },
			status:  401, code: "UNAUTHORIZED", result: exchange.ResultRefused, reason: "anonymous", message: "no credential",
		}, {
			name: "denied subject",
			request: func(t *testing.T, r *rig) *http.Request {
				return post(r.token(t, inNamespace("team-bad")), "repository:team-bad/web:pull")
			},
			status: 403, code: "DENIED", oauth: "access_denied", result: exchange.ResultRefused, reason: "subject_denied", message: "quarantine",
		}, {
			name: "issuer down", rig: down,
			request: func(t *testing.T, r *rig) *http.Request {
				return get(r.token(t, nil), "repository:team-a/web:pull")
			},
			status: 503, code: "UNAVAILABLE", result: exchange.ResultUnavailable, reason: "issuer_unavailable", message: "cannot be had",
		}, {
			// An error read as "no annotations" would be a wrong refusal, and with other rules a wrong grant.
			name: "annotations cannot be read", rig: func(c *rigConfig) { c.objects = objects{err: errors.New("api down 10.1.2.3")} },
			request: func(t *testing.T, r *rig) *http.Request {
				return get(r.token(t, nil), "repository:team-a/web:pull")
			},
			status: 503, code: "UNAVAILABLE", result: exchange.ResultUnavailable, reason: "kubernetes_unavailable", message: "try again",
		}, {
			name: "no signing key", rig: func(c *rigConfig) { c.keys = noKeys{} },
			request: func(t *testing.T, r *rig) *http.Request {
				return get(r.token(t, nil), "repository:team-a/web:pull")
			},
			status: 503, code: "UNAVAILABLE", result: exchange.ResultUnavailable, reason: "signing_key_unavailable", message: "try again",
		}, {
			name: "a fault of ours", rig: func(c *rigConfig) {
				c.verifier = verifierFunc(func() (oidc.Identity, error) { return oidc.Identity{}, errors.New("secret detail 10.1.2.3") })
			},
			request: func(t *testing.T, r *rig) *http.Request {
				return post(r.token(t, nil), "repository:team-a/web:pull")
			},
			status: 500, code: "UNKNOWN", oauth: "server_error", result: exchange.ResultError, reason: "internal_error", message: "internal error",
		}, {
			name: "a panic", rig: func(c *rigConfig) {
				c.verifier = verifierFunc(func() (oidc.Identity, error) { panic("secret detail 10.1.2.3") })
			},
			request: func(t *testing.T, r *rig) *http.Request {
				return post(r.token(t, nil), "repository:team-a/web:pull")
			},
			status: 500, code: "UNKNOWN", result: exchange.ResultError, reason: "internal_error", message: "internal error",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, test.rig)
			a := r.do(t, test.request(t, r))
			if a.status != test.status || a.body.Errors[0].Code != test.code || a.body.Error != test.oauth {
				t.Errorf("status %d, code %s, error %q", a.status, a.body.Errors[0].Code, a.body.Error)
			}
			if !strings.Contains(a.body.Errors[0].Message, test.message) {
				t.Errorf("message %q does not say %q", a.body.Errors[0].Message, test.message)
			}
			if strings.Contains(a.body.Errors[0].Message, "10.1.2.3") || strings.Contains(a.body.Errors[0].Message, "secret detail") {
				t.Errorf("the caller is told internals: %q", a.body.Errors[0].Message)
			}
			if a.status == 401 != strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Basic realm=") {
				t.Errorf("status %d with WWW-Authenticate %q", a.status, a.header.Get("WWW-Authenticate"))
			}
			e := r.lastEvent(t, 1)
			if e.Status != test.status || e.Result != test.result || e.Reason != test.reason || e.Message == "" || e.Granted != nil || e.IssuedID != "" {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// More requests than places and queue get a 503 in the registry's form and an
// event, and the next one is served again.
func TestOverload(t *testing.T) {
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
	token := r.token(t, nil)
	first := make(chan answer)
	go func() { first <- r.do(t, post(token)) }()
	<-working
	a := r.do(t, post(token))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" || a.body.Error != "temporarily_unavailable" {
		t.Errorf("status %d, Retry-After %q, error %q", a.status, a.header.Get("Retry-After"), a.body.Error)
	}
	if e := r.lastEvent(t, 1); e.Reason != "overloaded" || e.Result != exchange.ResultUnavailable {
		t.Errorf("event %+v", e)
	}
	close(release)
	if a := <-first; a.status != http.StatusUnauthorized {
		t.Errorf("the first request got %d", a.status)
	}
	go func() { <-working }()
	if a := r.do(t, post(token)); a.status != http.StatusUnauthorized {
		t.Errorf("a request after the overload got %d", a.status)
	}
}

// A token that may have been sent must be in the audit log, even if the response ends in a panic.
func TestPanicWhileAnswering(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.handler.ServeHTTP(panickingWriter{httptest.NewRecorder()}, get(r.token(t, nil), "repository:team-a/web:pull"))
	if e := r.lastEvent(t, 1); e.Status != http.StatusOK || e.Result != exchange.ResultGranted || e.IssuedID == "" || len(e.Granted) != 1 {
		t.Errorf("event %+v", e)
	}
}

type panickingWriter struct{ http.ResponseWriter }

func (panickingWriter) Write([]byte) (int, error) { panic("the connection is gone") }

// Failures of the kubelet arrive as anonymous pulls, without an event on the pod. The audit line
// must name the causes.
func TestAnonymousCauses(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.do(t, get("", "repository:team-a/web:pull"))
	e := r.lastEvent(t, 1)
	for _, cause := range []string{"cacheType", "request-serviceaccounts-token-audience", "annotation", "plugin", "matchImages"} {
		if !strings.Contains(e.Message, cause) {
			t.Errorf("the event does not name %s: %s", cause, e.Message)
		}
	}
}

func TestAnonymousRule(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := r.do(t, get("", "repository:public/base:pull"))
	if a.status != 200 || len(a.access) != 1 || a.claims["sub"] != "" {
		t.Errorf("status %d, access %v, sub %v", a.status, a.access, a.claims["sub"])
	}
	if e := r.lastEvent(t, 1); e.Result != exchange.ResultGranted || e.ServiceAccount != nil || e.Rule != "public" {
		t.Errorf("event %+v", e)
	}
}

// The claims of a refused token help to find its sender, but are not facts.
func TestClaimedIsNotIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.do(t, get(r.token(t, func(c map[string]any) { c["aud"] = []string{"vault"} })))
	e := r.lastEvent(t, 1)
	if e.ServiceAccount != nil || e.Namespace != "" || e.CredentialID != "" {
		t.Errorf("unproven claims stand as identity: %+v", e)
	}
	if e.Claimed == nil || e.Claimed.Subject != "system:serviceaccount:team-a:web" || e.Claimed.Verified {
		t.Errorf("claimed %+v", e.Claimed)
	}
}

// An annotation selects and never grants. It belongs to the UID: a ServiceAccount that was
// recreated under the same name does not have it.
func TestAnnotationsByUID(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = annotated("team-a/web:push team-b/x:push")
	})
	a := r.do(t, get(r.token(t, nil), "repository:team-a/web:push", "repository:team-b/x:push"))
	if len(a.access) != 1 || a.access[0].Name != "team-a/web" {
		t.Errorf("access %v, want push on team-a/web alone", a.access)
	}
	recreated := r.token(t, func(c map[string]any) {
		c["kubernetes.io"].(map[string]any)["serviceaccount"] = map[string]any{"name": "web", "uid": "another-uid"}
	})
	if a := r.do(t, get(recreated, "repository:team-a/web:push")); len(a.access) != 0 {
		t.Errorf("access %v for another UID", a.access)
	}
}

// The second request of a pull gets the same token. This requires the same credential, the same
// grants and enough lifetime.
func TestReuse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	other := r.token(t, func(c map[string]any) { c["jti"] = "another" })
	id := func(a answer) any { return a.claims["jti"] }

	first := r.do(t, post(token, "repository:team-a/web:pull"))
	if again := r.do(t, get(token, "repository:team-a/web:pull")); id(again) != id(first) || !r.lastEvent(t, 2).Reused {
		t.Error("the same request got another token")
	}
	if a := r.do(t, get(other, "repository:team-a/web:pull")); id(a) == id(first) {
		t.Error("another credential got the same token")
	}
	if a := r.do(t, get(token, "repository:team-a/worker:pull")); id(a) == id(first) {
		t.Error("another scope got the same token")
	}
	if a := r.do(t, with(get(token, "repository:team-a/web:pull"), "service", otherService)); id(a) == id(first) || a.claims["aud"] != otherService {
		t.Errorf("another service got the same token, for %v", a.claims["aud"])
	}
	r.advance(100 * time.Second)
	if a := r.do(t, get(token, "repository:team-a/web:pull")); id(a) != id(first) || a.body.ExpiresIn != 200 {
		t.Errorf("after 100 s: another token, or expires_in %d instead of what is left", a.body.ExpiresIn)
	}
	r.advance(51 * time.Second)
	if a := r.do(t, get(token, "repository:team-a/web:pull")); id(a) == id(first) || a.body.ExpiresIn != 300 {
		t.Errorf("past half of its life the token was returned again, expires_in %d", a.body.ExpiresIn)
	}
}

// A replaced key, which may have leaked, must not appear in responses again.
func TestReuseEndsWithTheKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	first := r.do(t, get(token, "repository:team-a/web:pull"))
	testkit.Value(r.keys.(*signing.ManagedKeys).Rotate(signing.RotateOptions{}))(t)
	if a := r.do(t, get(token, "repository:team-a/web:pull")); a.claims["jti"] == first.claims["jti"] {
		t.Error("a token of the old key was returned again")
	}
}

// A token may expire between its verification and the signing of the issued token.
func TestTokenThatEndsOnTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.verifier = verifierFunc(func() (oidc.Identity, error) {
			return oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a"}, Expiry: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}, nil
		})
	})
	if a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull")); a.status != http.StatusUnauthorized {
		t.Errorf("status %d", a.status)
	}
	if e := r.lastEvent(t, 1); e.Reason != string(refusal.TokenExpired) {
		t.Errorf("reason %s", e.Reason)
	}
}

func TestServiceTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	_, err := exchange.New(exchange.Config{
		Verifier: panickingVerifier{}, Policy: parsePolicy(t, testPolicy), Registries: []*registryauth.Issuer{r.issuer, r.issuer},
		Revocations: revocations{}, Replay: exchange.ReplayOff, ServiceAccounts: unlimited, Memory: r.settings.Memory,
	})
	if err == nil || !strings.Contains(err.Error(), "configured twice") {
		t.Errorf("error %v", err)
	}
}

// Headers from an unauthenticated client must not fill the audit log.
func TestClientIsCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	request := get(r.token(t, nil), "repository:team-a/web:pull")
	request.Header.Set("User-Agent", strings.Repeat("ä", 5000))
	r.do(t, request)
	if e := r.lastEvent(t, 1); len(e.Client) != 256 || !strings.HasPrefix(e.Client, "ä") {
		t.Errorf("%d bytes of the User-Agent were kept", len(e.Client))
	}
}

// Clients count on 60 seconds (token specification), so a short token is not
// returned again with less.
func TestReuseLeavesAMinute(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.tokenLifetime = 100 * time.Second })
	token := r.token(t, nil)
	r.do(t, get(token, "repository:team-a/web:pull"))
	r.advance(45 * time.Second)
	if a := r.do(t, get(token, "repository:team-a/web:pull")); a.body.ExpiresIn < 60 {
		t.Errorf("expires_in %d", a.body.ExpiresIn)
	}
}

// A remembered token must not outlive a change of the policy, which is evaluated for each request.
func TestPolicyChangeIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	if a := r.do(t, get(token, "repository:team-a/web:pull")); len(a.access) != 1 {
		t.Fatal("not granted")
	}
	r.follow(t, func(c *exchange.Config) {
		c.Policy = parsePolicy(t, strings.ReplaceAll(testPolicy, "{namespace}/**", "elsewhere/**"))
	})
	if a := r.do(t, get(token, "repository:team-a/web:pull")); len(a.access) != 0 {
		t.Errorf("access %v after the policy was taken back", a.access)
	}
	r.follow(t, func(c *exchange.Config) {
		c.Policy = parsePolicy(t, strings.ReplaceAll(testPolicy, "team-bad", "team-a"))
	})
	if a := r.do(t, get(token, "repository:team-a/web:pull")); a.status != 403 {
		t.Errorf("status %d after the namespace was denied", a.status)
	}
}

// An issued token must not outlive the incoming token (artifact-keeper#1166), except for the
// minimum of 60 seconds in the token specification.
func TestEndsWithTheIncomingToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ left, want time.Duration }{
		{time.Hour, 300 * time.Second}, {120 * time.Second, 120 * time.Second}, {20 * time.Second, 60 * time.Second},
	} {
		r := newRig(t, nil)
		a := r.do(t, get(r.token(t, func(c map[string]any) { c["exp"] = r.Now().Add(test.left).Unix() }), "repository:team-a/web:pull"))
		if got := time.Duration(a.body.ExpiresIn) * time.Second; got != test.want {
			t.Errorf("%s left: expires_in %s, want %s", test.left, got, test.want)
		}
	}
}

// containerd repeats a refused POST as GET: one attempt, counted once. A GET of a different caller
// or credential, a second GET and a late GET each count separately.
func TestRetryIsOneAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	bad := r.token(t, func(c map[string]any) { c["aud"] = []string{"vault"} })
	worse := r.token(t, func(c map[string]any) { c["aud"] = []string{"nothing"} })
	from := func(address string, request *http.Request) *http.Request {
		request.RemoteAddr = address
		return request
	}
	requests := 0
	retry := func(request *http.Request) bool {
		r.do(t, request)
		requests++
		return r.lastEvent(t, requests).Retry
	}
	if retry(post(bad)) {
		t.Error("a POST is the first half")
	}
	if retry(get(worse)) || retry(from("198.51.100.1:1", get(bad))) {
		t.Error("another credential or caller counts as the same attempt")
	}
	if !retry(get(bad)) {
		t.Error("the GET that repeats the POST counts as another attempt")
	}
	if retry(get(bad)) {
		t.Error("one POST excuses two GETs")
	}
	retry(post(bad))
	r.advance(time.Minute)
	if retry(get(bad)) {
		t.Error("a GET a minute later counts as the same attempt")
	}
	good := r.token(t, nil)
	unknown := post(good)
	unknown.Body = io.NopCloser(strings.NewReader(url.Values{"grant_type": {"password"}, "service": {"unknown"}, "password": {good}, "username": {"x"}}.Encode()))
	unknown.ContentLength = -1
	if retry(unknown); r.lastEvent(t, requests).Reason != "service_unknown" {
		t.Fatalf("%+v", r.lastEvent(t, requests))
	}
	if retry(get(good)) {
		t.Error("a POST hides a GET with another outcome")
	}
	retry(post(good))
	if retry(get(good)) {
		t.Error("a granted POST excuses a GET")
	}
	retry(post(""))
	if retry(get("")) {
		t.Error("a POST that could not be read excuses a GET without a credential")
	}
}

// Tokens get into logs in many ways (docker_auth, harbor#7884). No event and no log line may hold
// one, whatever fails.
func TestNoTokenInEventsAndLogs(t *testing.T) {
	t.Parallel()
	panics := func(c *rigConfig) {
		c.verifier = panickingVerifier{}
	}
	for _, change := range []func(*rigConfig){nil, panics} {
		r := newRig(t, change)
		var tokens []string
		for _, alter := range []func(map[string]any){
			nil, inNamespace("team-bad"), func(c map[string]any) { c["aud"] = "x" }, func(c map[string]any) { delete(c, "jti") },
		} {
			token := r.token(t, alter)
			tokens = append(tokens, token)
			for _, request := range []*http.Request{
				get(token, "repository:team-a/web:pull"), post(token, "repository:team-a/web:pull"), get(token, "nonsense"),
				with(get(""), "password", token), get(token[:len(token)-3]),
			} {
				w := httptest.NewRecorder()
				r.handler.ServeHTTP(w, request)
				if w.Code != http.StatusOK {
					r.log.WriteString(w.Body.String())
				}
			}
		}
		written := testkit.Value(json.Marshal(r.events))(t)
		all := r.log.String() + string(written)
		for _, token := range tokens {
			for _, part := range strings.Split(token, ".")[1:] {
				if strings.Contains(all, part[:len(part)-4]) {
					t.Fatalf("a token was written:\n%s", all)
				}
			}
		}
	}
}

func with(request *http.Request, key, value string) *http.Request {
	query := request.URL.Query()
	query.Set(key, value)
	request.URL.RawQuery = query.Encode()
	return request
}

// Each part is necessary.
func TestMissingParts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for name, remove := range map[string]func(*exchange.Config){
		"verifier": func(c *exchange.Config) { c.Verifier = nil }, "revocations": func(c *exchange.Config) { c.Revocations = nil },
		"limit": func(c *exchange.Config) { c.ServiceAccounts = nil }, "policy": func(c *exchange.Config) { c.Policy = nil },
		"memory": func(c *exchange.Config) { c.Memory = nil }, "registries": func(c *exchange.Config) { c.Registries = nil },
	} {
		c := r.settings
		remove(&c)
		if x, err := exchange.New(c); err == nil || x != nil || !strings.Contains(err.Error(), "are required") {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for name, remove := range map[string]func(*exchange.HandlerConfig){
		"exchanger": func(c *exchange.HandlerConfig) { c.Exchanger = nil }, "recorder": func(c *exchange.HandlerConfig) { c.Recorder = nil },
		"caller": func(c *exchange.HandlerConfig) { c.Caller = nil }, "addresses": func(c *exchange.HandlerConfig) { c.Addresses = nil },
		"logger": func(c *exchange.HandlerConfig) { c.Logger = nil }, "memory": func(c *exchange.HandlerConfig) { c.Memory = nil },
	} {
		c := r.endpoint
		remove(&c)
		if h, err := exchange.NewHandler(c); err == nil || h != nil || !strings.Contains(err.Error(), "are required") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Without a clock, that of the machine counts.
func TestNoClock(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.endpoint.Now = nil
	r.follow(t, func(c *exchange.Config) { c.Now = nil })
	if a := r.do(t, get(r.token(t, nil), "repository:team-a/x:pull")); a.status == http.StatusInternalServerError || r.log.Len() > 0 {
		t.Errorf("status %d, log %s", a.status, r.log)
	}
}

// The log is for faults of Pullpass: a client cannot fill it.
func TestOnlyFaultsAreLogged(t *testing.T) {
	t.Parallel()
	fault := errors.New("disk on fire")
	r := newRig(t, func(c *rigConfig) {
		c.wrap = func(v exchange.Verifier) exchange.Verifier { return faultyVerifier{v, fault} }
	})
	r.do(t, get(r.token(t, nil), "repository:team-a/x:pull"))
	r.do(t, post("a.b.c"))
	r.do(t, get(""))
	if r.log.Len() > 0 {
		t.Errorf("logged for clients: %s", r.log)
	}
	if a := r.do(t, get("fault")); a.status != http.StatusInternalServerError || !strings.Contains(r.log.String(), "disk on fire") {
		t.Errorf("status %d, log %q", a.status, r.log)
	}
}

// faultyVerifier fails for the credential "fault".
type faultyVerifier struct {
	exchange.Verifier
	err error
}

func (v faultyVerifier) Verify(ctx context.Context, c oidc.Credential) (oidc.Identity, error) {
	if c.Reveal() == "fault" {
		return oidc.Identity{}, v.err
	}
	return v.Verifier.Verify(ctx, c)
}

// A credential in a form is removed from the other fields, as one in a header is.
func TestFormsAreRedacted(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	request := post(token)
	request.Header.Set("User-Agent", token)
	r.do(t, request)
	if e := r.lastEvent(t, 1); strings.Contains(e.Client, token[10:60]) {
		t.Errorf("the client is %s", e.Client)
	}

	// A password that looks like no token, also of a request that cannot be read.
	const password = "correct-horse-battery-staple"
	unread := get("", "nonsense")
	unread.SetBasicAuth("user", password)
	noColon := get("")
	noColon.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(password)))
	for i, request := range []*http.Request{post(password), get(password), unread, noColon} {
		request.Header.Set("User-Agent", password)
		r.do(t, request)
		if e := r.lastEvent(t, i+2); strings.Contains(e.Client, password) {
			t.Errorf("request %d: the client is %s", i, e.Client)
		}
	}
}

type verifierFunc func() (oidc.Identity, error)

func (f verifierFunc) Verify(context.Context, oidc.Credential) (oidc.Identity, error) { return f() }

func (verifierFunc) Remembers(oidc.Credential) bool { return false }

func (f verifierFunc) VerifyThen(context.Context, oidc.Credential, time.Time) (oidc.Identity, error) {
	return f()
}

type panickingVerifier struct{ exchange.Verifier }

func (panickingVerifier) Verify(_ context.Context, c oidc.Credential) (oidc.Identity, error) {
	panic(c.Reveal())
}

func (panickingVerifier) Remembers(c oidc.Credential) bool { panic(c.Reveal()) }

type noKeys struct{}

func (noKeys) Signing() (*signing.SigningKey, error) { return nil, signing.ErrNoSigningKey }

func (noKeys) Trusted() signing.TrustBundle { return signing.TrustBundle{} }

func (noKeys) Status() signing.Status { return signing.Status{} }

func (noKeys) EndsSoon() error { return nil }

func (noKeys) Shared() []*signing.SigningKey { return nil }
