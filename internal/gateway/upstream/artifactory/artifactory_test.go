package artifactory

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The stand-in responds as JFrog's documentation of /access/api/v1/oidc/token shows.
func TestATokenIsGivenForAnAssertion(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	jwt := func(subject string) string {
		return "h." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub": %q, "exp": %d}`, subject, time.Now().Add(2*time.Hour).Unix())) + ".s"
	}
	for _, c := range []struct {
		name, answer       string
		username, password string
		lasts              time.Duration
	}{
		{"with a name", `{"access_token": "secret", "expires_in": 600, "token_type": "Bearer", "scope": "applied-permissions/groups:pull", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "username": "puller"}`,
			"puller", "secret", 10 * time.Minute},
		{"with a name in the token", fmt.Sprintf(`{"access_token": %q}`, jwt("jfac@01h/users/prod-eu/payments/api")), "prod-eu/payments/api", jwt("jfac@01h/users/prod-eu/payments/api"), 2 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			url, roots := loginstest.TLSStandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				var body map[string]string
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
					t.Error(err)
				}
				if subject := issuer.Subject(t, "acme", body["subject_token"]); subject != loginstest.Caller {
					t.Errorf("the assertion is about %s", subject)
				}
				delete(body, "subject_token")
				want := map[string]string{
					"grant_type":         "urn:ietf:params:oauth:grant-type:token-exchange",
					"subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
					"provider_name":      "pullpass",
				}
				if !maps.Equal(body, want) || r.Method != http.MethodPost || r.URL.Path != "/access/api/v1/oidc/token" || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%s %s %v with %v", r.Method, r.URL, r.Header, body)
				}
				_, _ = io.WriteString(w, c.answer)
			}))
			logins, err := (&Credential{URL: url, Provider: "pullpass", Audience: "acme"}).Open(logins.Service{Upstream: "acme.jfrog.io", Roots: roots, Assertions: issuer})
			testkit.Must(t, err)
			for range 3 {
				loginstest.Until(t, loginstest.Expect(t, logins, loginstest.Caller, c.username, c.password), c.lasts)
			}
			if asked != 1 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	newLogins := func(t *testing.T, standIn http.Handler) upstream.Logins {
		logins, err := (&Credential{URL: loginstest.StandIn(t, standIn), Provider: "pullpass", Audience: "acme"}).Open(logins.Service{Upstream: "acme.jfrog.io", Assertions: issuer})
		testkit.Must(t, err)
		return logins
	}
	loginstest.Faults(t, newLogins)
	logins := newLogins(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"access_token": "secret"}`) }))
	if _, err := logins.Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), "not whose it is") {
		t.Errorf("error %v of a token without a user", err)
	}
	for answer, want := range map[string]string{"{}": "the answer has none", `{"errors": [{"message": "no such provider"}]}`: "400 Bad Request: no such provider"} {
		logins := newLogins(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if answer != "{}" {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = io.WriteString(w, answer)
		}))
		if _, err := logins.Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", answer, err, want)
		}
	}
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	for want, credential := range map[string]Credential{
		"URL cannot be read": {Provider: "pullpass"},
		"takes assertions":   {URL: "https://acme.jfrog.io", Provider: "pullpass"},
	} {
		if _, err := credential.Open(logins.Service{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestNoLoginWithoutAnAssertion(t *testing.T) {
	t.Parallel()
	loginstest.WithoutAssertion(t, &Credential{URL: "https://acme.jfrog.io", Provider: "pullpass", Audience: "acme"})
}

func TestFields(t *testing.T) {
	t.Parallel()
	for credential, want := range map[Credential]string{
		{Provider: "pullpass", Audience: strings.Repeat("a", maxAudienceBytes)}: "",
		{Provider: "pullpass"}: "",
		{Provider: "pullpass", Audience: strings.Repeat("a", maxAudienceBytes+1)}: "audience is not an audience",
		{Provider: "pullpass", Audience: "a b"}:                                   "audience is not an audience",
		{Audience: "a"}:                                                           "provider is not a name",
		{Provider: "pullpass", URL: "https://acme.jfrog.io"}:                      "url is the URL",
	} {
		if got := loginstest.FaultsOf(&credential); (got == "") != (want == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q, want %q", credential, got, want)
		}
		if !credential.OfCaller() {
			t.Error("a token is each caller's own")
		}
	}
}
