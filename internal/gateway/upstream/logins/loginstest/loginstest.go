// Package loginstest tests the kinds of credential. It has an issuer of assertions that stand-ins
// of clouds can verify, and common tests with clouds that refuse, stall or send invalid responses.
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

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Caller is the default caller.
const Caller = "prod-eu/payments/api"

// Issuer is a Pullpass that publishes its keys.
type Issuer struct {
	*assertion.Issuer
	url    string
	client *http.Client
}

// NewIssuer returns an Issuer with its own keys.
func NewIssuer(t *testing.T) *Issuer {
	t.Helper()
	i := &Issuer{}
	mux := http.NewServeMux()
	mux.HandleFunc(assertion.DiscoveryPath, func(w http.ResponseWriter, r *http.Request) { i.ServeDiscovery(w, r) })
	mux.HandleFunc(assertion.KeysPath, func(w http.ResponseWriter, r *http.Request) { i.ServeKeys(w, r) })
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	issuer := testkit.Value(assertion.New(assertion.Config{Issuer: server.URL, ManagedDir: filepath.Join(t.TempDir(), "assertions")}))(t)
	testkit.Must(t, issuer.Maintain())
	i.Issuer, i.url, i.client = issuer, server.URL, server.Client()
	return i
}

// Subject verifies an assertion for an audience like a cloud that knows only the issuer's URL. It
// returns the subject, or the text of the error.
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

// StandIn starts a server that replaces a cloud.
func StandIn(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// TLSStandIn is StandIn with TLS. It also returns the CA of its certificate.
func TLSStandIn(t *testing.T, handler http.Handler) (url string, roots *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.URL, roots
}

// Expect requests a login and compares it with the expected one.
func Expect(t *testing.T, logins upstream.Logins, caller, username, password string) upstream.Login {
	t.Helper()
	login := testkit.Value(logins.Login(t.Context(), caller))(t)
	if got := login.Password.Reveal(); login.Username != username || got != password {
		t.Errorf("the login of %s is %s with %s, want %s with %s", caller, login.Username, got, username, password)
	}
	return login
}

// Until checks that a login expires in about the given time.
func Until(t *testing.T, login upstream.Login, want time.Duration) {
	t.Helper()
	if left := time.Until(login.Expiry); left > want+time.Minute || left < want-time.Minute {
		t.Errorf("the login ends in %s, want %s", left, want)
	}
}

var jwt = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// Faults requests logins from stand-ins that send invalid responses. newLogins returns logins of
// the kind that use the handler. Each request must fail soon, and its error must not contain a
// secret.
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
			asked := make(chan struct{})
			logins := newLogins(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				_, password, _ := r.BasicAuth()
				assertion := jwt.FindString(string(body) + password)
				mu.Lock()
				sent = append(sent, assertion)
				isFirst := len(sent) == 1
				mu.Unlock()
				if c.answer == nil {
					if isFirst {
						close(asked)
					}
					<-t.Context().Done()
					return
				}
				c.answer(w, r, assertion)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if c.answer == nil {
				ctx = endsWhen{ctx, asked}
			}
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

// endsWhen is a context that ends when the stand-in gets a request.
type endsWhen struct {
	context.Context
	asked <-chan struct{}
}

func (c endsWhen) Done() <-chan struct{} { return c.asked }

func (c endsWhen) Err() error {
	select {
	case <-c.asked:
		return context.DeadlineExceeded
	default:
		return c.Context.Err()
	}
}

// WithoutAssertion fails unless a credential of callers gives no login, and asks no cloud, if no key signs assertions.
func WithoutAssertion(t *testing.T, kind logins.Kind) {
	t.Helper()
	opened := testkit.Value(kind.Open(logins.Service{Upstream: "u", URL: "https://registry.example.com", Assertions: refusing{}}))(t)
	if _, err := opened.Login(t.Context(), Caller); err == nil || !strings.Contains(err.Error(), "a login for u: no key signs") {
		t.Errorf("error %v", err)
	}
}

type refusing struct{}

func (refusing) Sign(string, string) (registryauth.Secret, error) {
	return registryauth.Secret{}, errors.New("no key signs")
}

// FaultsOf returns the faults of the fields of a credential, one a line.
func FaultsOf(kind logins.Kind) string {
	var v validator
	kind.Validate(&v)
	return strings.Join(v, "\n")
}

type validator []string

func (v *validator) Fault(field, format string, args ...any) {
	*v = append(*v, field+" "+fmt.Sprintf(format, args...))
}

func (v *validator) BaseURL(field, value, _ string) { v.Fault(field, "is the URL %q", value) }
