package quay

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const robot = "acme+pullpass"

// The stand-in responds like Quay's endpoint/oauth: it issues a token for an hour, for an assertion
// with a subject in the robot's federation.
func TestARobotsTokenIsGivenForAnAssertion(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	var asked atomic.Int64
	var url string
	url, roots := loginstest.TLSStandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		username, password, _ := r.BasicAuth()
		if r.Method != http.MethodGet || r.URL.Path != "/oauth2/federation/robot/token" || r.URL.RawQuery != "" || username != robot {
			t.Errorf("%s %s as %s", r.Method, r.URL, username)
		}
		subject := issuer.Subject(t, url, password)
		if !strings.HasPrefix(subject, "prod-eu/payments/") {
			http.Error(w, `{"message": "Could not authenticate robot"}`, http.StatusUnauthorized)
			return
		}
		claims := fmt.Sprintf(`{"sub": %q, "exp": %d}`, subject, time.Now().Add(time.Hour).Unix())
		fmt.Fprintf(w, `{"token": "h.%s.s"}`, base64.RawURLEncoding.EncodeToString([]byte(claims)))
	}))
	logins := testkit.Value((&Credential{Robot: robot}).Open(logins.Service{Upstream: "quay.io", URL: url, Roots: roots, Assertions: issuer}))(t)

	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			login, err := logins.Login(t.Context(), loginstest.Caller)
			if err != nil || login.Username != robot || !strings.HasPrefix(login.Password.Reveal(), "h.") {
				t.Errorf("%v, %v", login, err)
				return
			}
			loginstest.Until(t, login, time.Hour)
		})
	}
	all.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times for one caller", n)
	}
	// A different caller has a different login, or none.
	if _, err := logins.Login(t.Context(), "prod-eu/payments/worker"); err != nil || asked.Load() != 2 {
		t.Errorf("%v, after %d requests", err, asked.Load())
	}
	if _, err := logins.Login(t.Context(), "prod-eu/other/api"); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: Could not authenticate robot") {
		t.Errorf("error %v, want what Quay says", err)
	}
	if _, err := logins.Login(t.Context(), ""); !errors.Is(err, upstream.ErrNoCaller) {
		t.Errorf("error %v of an anonymous caller", err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	loginstest.Faults(t, func(t *testing.T, standIn http.Handler) upstream.Logins {
		logins := testkit.Value((&Credential{Robot: robot}).Open(logins.Service{Upstream: "quay.io", URL: loginstest.StandIn(t, standIn), Assertions: issuer}))(t)
		return logins
	})
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	for want, service := range map[string]logins.Service{
		"URL cannot be read": {},
		"takes assertions":   {URL: "https://quay.io"},
	} {
		if _, err := (&Credential{Robot: robot}).Open(service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestNoLoginWithoutAnAssertion(t *testing.T) {
	t.Parallel()
	loginstest.WithoutAssertion(t, &Credential{Robot: robot})
}

func TestFields(t *testing.T) {
	t.Parallel()
	for credential, want := range map[Credential]string{
		{robot}:      "",
		{"acme"}:     "robot is not a robot account",
		{"+p"}:       "robot is not a robot account",
		{"acme+"}:    "robot is not a robot account",
		{"acme+p:q"}: "robot is not a robot account",
		{"acme+p q"}: "robot is not a robot account",
	} {
		if got := loginstest.FaultsOf(&credential); (got == "") != (want == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q, want %q", credential, got, want)
		}
	}
}
