// Package loginstest is for the tests of the kinds of credential: an issuer of
// assertions that stand-ins of clouds can verify, and what each kind must not do with
// a cloud that refuses, stalls or talks nonsense.
package loginstest

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/pullpass/pullpass/internal/assertion"
	"github.com/pullpass/pullpass/internal/testkit"
	"github.com/pullpass/pullpass/internal/upstream"
)

// Caller is who asks, where nothing else is said.
const Caller = "prod-eu/payments/api"

// Issuer is a Pullpass that publishes its keys.
type Issuer struct {
	*assertion.Issuer
	url    string
	client *http.Client
}

// NewIssuer returns one with keys of its own.
func NewIssuer(t *testing.T) *Issuer {
	t.Helper()
	i := &Issuer{}
	mux := http.NewServeMux()
	mux.HandleFunc(assertion.DiscoveryPath, func(w http.ResponseWriter, r *http.Request) { i.ServeDiscovery(w, r) })
	mux.HandleFunc(assertion.KeysPath, func(w http.ResponseWriter, r *http.Request) { i.ServeKeys(w, r) })
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	issuer, err := assertion.New(assertion.Config{Issuer: server.URL, ManagedDir: filepath.Join(t.TempDir(), "assertions")})
	testkit.Must(t, err)
	testkit.Must(t, issuer.Maintain())
	i.Issuer, i.url, i.client = issuer, server.URL, server.Client()
	return i
}

// Subject does what a cloud does that knows the issuer's URL alone: it verifies an
// assertion for an audience, and returns whom it is about, or a fault.
func (i *Issuer) Subject(t *testing.T, audience, raw string) string {
	t.Helper()
	ctx := oidc.ClientContext(context.Background(), i.client)
	provider, err := oidc.NewProvider(ctx, i.url)
	if err != nil {
		return err.Error()
	}
	token, err := provider.Verifier(&oidc.Config{ClientID: audience}).Verify(ctx, raw)
	if err != nil {
		return err.Error()
	}
	return token.Subject
}

// StandIn starts a server that answers as a cloud does.
func StandIn(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// TLSStandIn is StandIn with TLS, and the CA of its certificate.
func TLSStandIn(t *testing.T, handler http.Handler) (url string, roots *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.URL, roots
}

// Expect asks for a login and holds it to what it should be.
func Expect(t *testing.T, logins upstream.Logins, caller, username, password string) upstream.Login {
	t.Helper()
	login, err := logins.Login(t.Context(), caller)
	testkit.Must(t, err)
	if got := login.Password.Reveal(); login.Username != username || got != password {
		t.Errorf("the login of %s is %s with %s, want %s with %s", caller, login.Username, got, username, password)
	}
	return login
}

// Until holds the end of a login to be so far away.
func Until(t *testing.T, login upstream.Login, want time.Duration) {
	t.Helper()
	if left := time.Until(login.Expiry); left > want+time.Minute || left < want-time.Minute {
		t.Errorf("the login ends in %s, want %s", left, want)
	}
}

var jwt = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// Faults asks stand-ins that answer as none should. newLogins makes logins of the kind
// that ask the handler. Every time there must be an error, soon, without a secret.
func Faults(t *testing.T, newLogins func(t *testing.T, standIn http.Handler) upstream.Logins) {
	t.Helper()
	const other = "zQ9-another-secret-of-the-cloud"
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request, sent string)
		want   string
	}{
		{"refuses and repeats", func(w http.ResponseWriter, _ *http.Request, sent string) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"error": "denied", "error_description": "not you %s"}`, sent)
		}, ""},
		{"refuses with a page", func(w http.ResponseWriter, _ *http.Request, sent string) {
			http.Error(w, "<html>"+sent, http.StatusUnauthorized)
		}, ""},
		{"talks nonsense", func(w http.ResponseWriter, _ *http.Request, sent string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"token": {"%s": %q`, other, sent)
		}, ""},
		{"gives nothing", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
		}, ""},
		{"never ends", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "application/json")
			for range 1 << 10 {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					return
				}
			}
		}, ""},
		{"sends elsewhere", func(w http.ResponseWriter, r *http.Request, sent string) {
			if r.URL.Path == "/elsewhere" {
				_, _ = io.WriteString(w, `{"token": "stolen"}`)
				return
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, ""},
		{"stalls", nil, "deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var sent []string
			logins := newLogins(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				_, password, _ := r.BasicAuth()
				assertion := jwt.FindString(string(body) + password)
				mu.Lock()
				sent = append(sent, assertion)
				mu.Unlock()
				if c.answer == nil {
					<-t.Context().Done()
					return
				}
				c.answer(w, r, assertion)
			}))
			within := 5 * time.Second
			if c.answer == nil {
				within = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			login, err := logins.Login(ctx, Caller)
			if err == nil {
				t.Fatalf("there is a login: %s with %s", login.Username, login.Password.Reveal())
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "a login for ") || len(err.Error()) > 600 || !login.Password.IsZero() {
				t.Errorf("error %q, want %q in it", err, c.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(sent) == 0 {
				t.Fatalf("the stand-in was never asked: %v", err)
			}
			text := fmt.Sprintf("%v %+v", err, err)
			for cause := err; cause != nil; cause = errors.Unwrap(cause) {
				text += cause.Error()
			}
			testkit.ExpectNoPiece(t, "the error", text, append(sent, other)...)
		})
	}
}
