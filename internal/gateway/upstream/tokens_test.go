package upstream

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A token goes into a header, so it must not hold a character that ends one.
func TestValuesOfTokens(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		if got, want := isTokenValue(string([]byte{'a', byte(c), 'b'})), c > ' ' && c <= '~'; got != want {
			t.Errorf("%#x: %t", c, got)
		}
	}
	if isTokenValue("") {
		t.Error("nothing is a token")
	}
}

func newTestClient(t *testing.T, logins Logins) *Client {
	t.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c, err := New(Config{Name: "a", URL: "https://a.example", Logins: logins, Now: func() time.Time { return now }})
	testkit.Must(t, err)
	return c
}

func TestAnswersOfTokenEndpoints(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	for text, want := range map[string]struct {
		value  string
		useful time.Duration
	}{
		`{"token": "x"}`:                      {"x", usualLifetime * 3 / 4},
		`{"access_token": "y"}`:               {"y", usualLifetime * 3 / 4},
		`{"token": "x", "access_token": "y"}`: {"x", usualLifetime * 3 / 4},
		`{"token": "x", "expires_in": 0}`:     {"x", usualLifetime * 3 / 4},
		`{"token": "x", "expires_in": 300}`:   {"x", 285 * time.Second},
		`{"token": "x", "expires_in": 0.4}`:   {"x", 300 * time.Millisecond},
		`{"token": "x", "expires_in": "300"}`: {},
		`{"token": "x"`:                       {},
		`{"token": "x y"}`:                    {},
		`{}`:                                  {},
		`{"token": "` + strings.Repeat("x", maxTokenBytes) + `"}`:   {strings.Repeat("x", maxTokenBytes), usualLifetime * 3 / 4},
		`{"token": "` + strings.Repeat("x", maxTokenBytes+1) + `"}`: {},
	} {
		got, e := c.readToken([]byte(text), c.base)
		if want.value == "" {
			if e == nil || e.Reason != refusal.UpstreamInvalid {
				t.Errorf("%.60s: %v", text, e)
			}
			continue
		}
		if e != nil || got.value.Reveal() != want.value || got.useful.Sub(c.now()) != want.useful {
			t.Errorf("%.60s: %v, useful for %s", text, e, got.useful.Sub(c.now()))
		}
	}
}

// The remedy depends on the status, and on whether a login was sent.
func TestRefusalsByStatus(t *testing.T) {
	t.Parallel()
	anonymous, known := newTestClient(t, nil), newTestClient(t, newOne("secret"))
	failure := func(c *Client) func(*http.Response) *Error { return c.failureOf }
	token := func(hasLogin bool) func(*http.Response) *Error {
		return func(r *http.Response) *Error { return known.tokenRefusal(r, known.base, hasLogin) }
	}
	const credentialOf, denied, failing, invalid, limited = refusal.UpstreamCredential, refusal.UpstreamDenied, refusal.UpstreamFailing, refusal.UpstreamInvalid, refusal.UpstreamLimited
	for _, test := range []struct {
		what   string
		of     func(*http.Response) *Error
		status int
		reason refusal.Reason
		text   string
	}{
		{"token with a login", token(true), 400, credentialOf, "answers 400 to the gateway's user name"},
		{"token with a login", token(true), 401, credentialOf, "answers 401 to the gateway's user name"},
		{"token with a login", token(true), 403, credentialOf, "answers 403 to the gateway's user name"},
		{"token with a login", token(true), 404, credentialOf, "answers 404 to the gateway's user name"},
		{"token without one", token(false), 401, credentialOf, "answers 401 to anonymous requests"},
		{"token with a login", token(true), 302, invalid, "answers 302"},
		{"token with a login", token(true), 429, limited, "asks for fewer requests"},
		{"token with a login", token(true), 500, failing, "answers 500"},
		{"registry with a login", failure(known), 403, denied, "forbids this to the gateway's credential"},
		{"registry without one", failure(anonymous), 403, denied, "forbids this to anonymous requests"},
		{"registry with a login", failure(known), 407, credentialOf, "a proxy on the way wants a credential"},
		{"registry with a login", failure(known), 429, limited, "asks for fewer requests"},
		{"registry with a login", failure(known), 500, failing, "answers 500"},
		{"registry with a login", failure(known), 101, invalid, "answers 101"},
		{"registry with a login", failure(known), 200, "", ""},
		{"registry with a login", failure(known), 404, "", ""},
	} {
		e := test.of(&http.Response{StatusCode: test.status, Header: http.Header{"Retry-After": {"7"}}, Body: io.NopCloser(strings.NewReader(""))})
		if e == nil {
			e = &Error{}
		}
		if e.Reason != test.reason || !strings.Contains(e.Message, test.text) || test.reason != "" && e.Status != test.status || (e.RetryAfter != 0) != (test.reason == limited || e.Reason == failing && strings.HasPrefix(test.what, "registry")) {
			t.Errorf("%s: %d: %+v", test.what, test.status, e)
		}
	}
	for header, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "Thu, 01 Jan 2026 00:01:00 GMT": time.Minute, "Wed, 31 Dec 2025 00:00:00 GMT": 0} {
		if got := retryAfter(http.Header{"Retry-After": {header}}, known.now()); got != want {
			t.Errorf("%q: %s", header, got)
		}
	}
	for _, test := range []struct {
		client *Client
		wants  challenge
		used   credential
		reason refusal.Reason
		text   string
	}{
		{known, challenge{scheme: schemeUnknown}, credential{}, credentialOf, "wants neither Basic nor a token"},
		{anonymous, challenge{scheme: schemeBasic}, credential{}, credentialOf, "refuses anonymous requests"},
		{known, challenge{scheme: schemeBearer}, credential{token: &upstreamToken{}}, denied, "gave a token that it refuses"},
		{known, challenge{scheme: schemeBasic}, credential{}, credentialOf, "refuses the gateway's credential"},
	} {
		if e := test.client.refused(test.wants, test.used); e.Reason != test.reason || e.Status != http.StatusUnauthorized || !strings.Contains(e.Message, test.text) {
			t.Errorf("%+v", e)
		}
	}
}
