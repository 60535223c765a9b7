package azure

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	tenant   = "11111111-2222-3333-4444-555555555555"
	clientID = "66666666-7777-8888-9999-aaaaaaaaaaaa"
)

// entra stands in for login.microsoftonline.com: a tenant's discovery and its token
// endpoint (client credentials with a certificate credential or a federated one).
type entra struct {
	t       *testing.T
	subject func(raw string) string
	url     string

	mu     sync.Mutex
	issued []string // subjects
}

func startEntra(t *testing.T, subject func(raw string) string) (*entra, *azcore.ClientOptions) {
	t.Helper()
	e := &entra{t: t, subject: subject}
	server := httptest.NewTLSServer(e)
	t.Cleanup(server.Close)
	e.url = server.URL
	return e, entraOptions(server)
}

func entraOptions(server *httptest.Server) *azcore.ClientOptions {
	return &azcore.ClientOptions{
		Cloud:     cloud.Configuration{ActiveDirectoryAuthorityHost: server.URL},
		Transport: server.Client(),
		Retry:     policy.RetryOptions{MaxRetries: -1},
	}
}

func (e *entra) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/" + tenant + "/v2.0/.well-known/openid-configuration":
		fmt.Fprintf(w, `{"issuer": "%[1]s/%[2]s/v2.0", "authorization_endpoint": "%[1]s/%[2]s/oauth2/v2.0/authorize", "token_endpoint": "%[1]s/%[2]s/oauth2/v2.0/token"}`, e.url, tenant)
	case "/" + tenant + "/oauth2/v2.0/token":
		if err := r.ParseForm(); err != nil {
			e.t.Error(err)
		}
		form := r.PostForm
		if form.Get("grant_type") != "client_credentials" || form.Get("client_id") != clientID || !strings.HasPrefix(form.Get("scope"), "https://containerregistry.azure.net/.default") ||
			form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
			e.t.Errorf("%s %s: %v", r.Method, r.URL, form)
		}
		subject := e.subject(form.Get("client_assertion"))
		if !strings.HasPrefix(subject, "prod-eu/") {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "AADSTS700213: No matching federated identity record found for presented assertion subject '%s'. Trace ID: 1", "error_codes": [700213]}`, subject)
			return
		}
		e.issued = append(e.issued, subject)
		fmt.Fprintf(w, `{"token_type": "Bearer", "expires_in": 3599, "access_token": "entra-%s"}`, subject)
	default:
		e.t.Errorf("%s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusNotFound)
	}
}

// registry stands in for /oauth2/exchange of a registry: it issues a refresh token for three hours.
func registry(t *testing.T, wantTenant string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		form, sent := r.PostForm, r.PostForm.Get("access_token")
		if r.Method != http.MethodPost || r.URL.Path != "/oauth2/exchange" || form.Get("grant_type") != "access_token" || form.Get("service") != r.Host || form.Get("tenant") != wantTenant || form.Has("tenant") != (wantTenant != "") {
			t.Errorf("%s %s: %v", r.Method, r.URL, form)
		}
		fmt.Fprintf(w, `{"refresh_token": %q}`, refreshToken(sent))
	})
}

func refreshToken(of string) string {
	// The same within an hour, because the tests compare it.
	claims := fmt.Sprintf(`{"jti": %q, "exp": %d}`, of, time.Now().Truncate(time.Hour).Add(4*time.Hour).Unix())
	return "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s"
}

func TestACallerIsTrusted(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	e, options := startEntra(t, func(raw string) string { return issuer.Subject(t, "api://AzureADTokenExchange", raw) })
	address, roots := loginstest.TLSStandIn(t, registry(t, tenant))
	logins, err := (&Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}).open(logins.Service{Upstream: "acr", URL: address, Roots: roots, Assertions: issuer}, options)
	testkit.Must(t, err)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			login := loginstest.Expect(t, logins, loginstest.Caller, "00000000-0000-0000-0000-000000000000", refreshToken("entra-"+loginstest.Caller))
			if left := time.Until(login.Expiry); left < 3*time.Hour || left > 4*time.Hour {
				t.Errorf("the login ends in %s", left)
			}
		})
	}
	all.Wait()
	const worker = "prod-eu/payments/worker"
	loginstest.Expect(t, logins, worker, "00000000-0000-0000-0000-000000000000", refreshToken("entra-"+worker))
	if _, err := logins.Login(t.Context(), "stage/payments/api"); err == nil ||
		!strings.Contains(err.Error(), "Entra answers 401 Unauthorized: AADSTS700213: No matching federated identity record found for presented assertion subject 'stage/payments/api'.") {
		t.Errorf("error %v, want what Entra says", err)
	}
	if _, err := logins.Login(t.Context(), ""); !errors.Is(err, upstream.ErrNoCaller) {
		t.Errorf("error %v of an anonymous caller", err)
	}
	if len(e.issued) != 2 {
		t.Errorf("tokens were issued for %q", e.issued)
	}
}

// The gateway's own identity is found as in a pod of AKS: by the settings of its webhook.
func TestTheGatewayHasAWorkloadIdentity(t *testing.T) {
	issuer := loginstest.NewIssuer(t)
	_, options := startEntra(t, func(raw string) string { return issuer.Subject(t, "api://AzureADTokenExchange", raw) })
	token := testkit.Value(issuer.Sign("prod-eu/pullpass/gateway", Audience))(t)
	dir := t.TempDir()
	testkit.Write(t, dir, "token", token.Reveal())
	t.Setenv("AZURE_TENANT_ID", tenant)
	t.Setenv("AZURE_CLIENT_ID", clientID)
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", filepath.Join(dir, "token"))
	address, roots := loginstest.TLSStandIn(t, registry(t, ""))
	logins := testkit.Value((&Credential{}).open(logins.Service{Upstream: "acr", URL: address, Roots: roots}, options))(t)
	for _, caller := range []string{loginstest.Caller, ""} {
		loginstest.Expect(t, logins, caller, username, refreshToken("entra-prod-eu/pullpass/gateway"))
	}
}

// Outside of AKS, it is the identity of the machine, from the metadata service.
func TestTheGatewayHasAManagedIdentity(t *testing.T) {
	withoutEnvironment(t)
	id, refused := "", false
	metadata := transporter(func(r *http.Request) (*http.Response, error) {
		q := r.URL.Query()
		if r.URL.Host != "169.254.169.254" || r.URL.Path != "/metadata/identity/oauth2/token" || r.Header.Get("Metadata") != "true" ||
			q.Get("resource") != "https://containerregistry.azure.net" || q.Get("client_id") != id || q.Has("client_id") != (id != "") {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w := httptest.NewRecorder()
		if refused {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error": "invalid_request", "error_description": "Identity not found"}`)
		} else {
			_, _ = io.WriteString(w, `{"access_token": "entra-own", "expires_in": "3599", "resource": "https://containerregistry.azure.net", "token_type": "Bearer"}`)
		}
		response := w.Result()
		response.Request = r
		return response, nil
	})
	address, roots := loginstest.TLSStandIn(t, registry(t, ""))
	newLogins := func() upstream.Logins {
		logins, err := (&Credential{ClientID: id}).open(logins.Service{Upstream: "acr", URL: address, Roots: roots}, &azcore.ClientOptions{Transport: metadata, Retry: policy.RetryOptions{MaxRetries: -1}})
		testkit.Must(t, err)
		return logins
	}
	for _, id = range []string{"", clientID} {
		loginstest.Expect(t, newLogins(), loginstest.Caller, username, refreshToken("entra-own"))
	}
	id, refused = strings.ReplaceAll(clientID, "a", "b"), true // the SDK caches tokens for the whole process
	if _, err := newLogins().Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), "Identity not found") {
		t.Errorf("error %v, want what the metadata service says", err)
	}
}

func withoutEnvironment(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "IDENTITY_HEADER"} {
		t.Setenv(name, "")
	}
}

// An error names the identities of the gateway only if they are used.
func TestEntraCannotBeReached(t *testing.T) {
	withoutEnvironment(t)
	options := azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}, Transport: transporter(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route") })}
	const own = "managed identity: "
	for _, c := range []*Credential{{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}, {ClientID: strings.ReplaceAll(clientID, "a", "c")}} {
		found, err := c.open(logins.Service{Upstream: "acr", URL: "https://acr.example.com", Assertions: loginstest.NewIssuer(t)}, &options)
		testkit.Must(t, err)
		_, err = found.Login(t.Context(), loginstest.Caller)
		if err == nil || !strings.Contains(err.Error(), "no route") || strings.Contains(err.Error(), own) == c.OfCaller() || strings.Contains(err.Error(), "(workload identity: ") == c.OfCaller() {
			t.Errorf("of callers %t: error %v", c.OfCaller(), err)
		}
	}
	// As in Service Fabric, where the SDK wants a client of its own.
	for _, name := range []string{"IDENTITY_ENDPOINT", "IDENTITY_HEADER", "IDENTITY_SERVER_THUMBPRINT"} {
		t.Setenv(name, "https://127.0.0.1:1")
	}
	if _, err := (&Credential{}).open(logins.Service{Upstream: "acr", URL: "https://acr.example.com"}, &options); err == nil || !strings.HasPrefix(err.Error(), "upstream acr: ") {
		t.Errorf("error %v of an identity that cannot be made", err)
	}
}

func TestTheRegistrySaysWhy(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	_, options := startEntra(t, func(raw string) string { return issuer.Subject(t, Audience, raw) })
	address, roots := loginstest.TLSStandIn(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors": [{"code": "UNAUTHORIZED", "message": "the identity has no role here"}]}`)
	}))
	found, err := (&Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}).open(logins.Service{Upstream: "acr", URL: address, Roots: roots, Assertions: issuer}, options)
	testkit.Must(t, err)
	if _, err := found.Login(t.Context(), loginstest.Caller); err == nil || !strings.Contains(err.Error(), "the identity has no role here") {
		t.Errorf("error %v, want what the registry says", err)
	}
}

type transporter func(*http.Request) (*http.Response, error)

func (f transporter) Do(r *http.Request) (*http.Response, error) { return f(r) }

func TestFaultsOfEntra(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	loginstest.Faults(t, func(t *testing.T, standIn http.Handler) upstream.Logins {
		e := &entra{t: t}
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				e.ServeHTTP(w, r)
				return
			}
			standIn.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		e.url = server.URL
		options := entraOptions(server)
		roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		options.Transport = logins.NewClient(roots)
		logins, err := (&Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}).open(logins.Service{Upstream: "acr", URL: "https://acr.example.com", Assertions: issuer}, options)
		testkit.Must(t, err)
		return logins
	})
}

func TestFaultsOfTheRegistry(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	// The request to the registry contains Entra's token, which must not be repeated.
	token := "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud": "https://containerregistry.azure.net"}`)) + ".c2lnbmF0dXJl"
	loginstest.Faults(t, func(t *testing.T, standIn http.Handler) upstream.Logins {
		e := &entra{t: t}
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				e.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"token_type": "Bearer", "expires_in": 3599, "access_token": %q}`, token)
		}))
		t.Cleanup(server.Close)
		e.url = server.URL
		logins, err := (&Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}).open(logins.Service{Upstream: "acr", URL: loginstest.StandIn(t, standIn), Assertions: issuer}, entraOptions(server))
		testkit.Must(t, err)
		return logins
	})
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	for want, service := range map[string]logins.Service{
		"URL cannot be read": {},
		"takes assertions":   {URL: "https://acr.example.com"},
	} {
		if _, err := (&Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID}).Open(service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestNoLoginWithoutAnAssertion(t *testing.T) {
	t.Parallel()
	loginstest.WithoutAssertion(t, &Credential{Identity: logins.Caller, TenantID: tenant, ClientID: clientID})
}

func TestFields(t *testing.T) {
	t.Parallel()
	for credential, want := range map[Credential]string{
		{Identity: logins.Caller, ClientID: clientID, TenantID: tenant}:                                 "",
		{Identity: logins.Gateway}:                                                                      "",
		{Identity: logins.Gateway, ClientID: clientID}:                                                  "",
		{Identity: logins.Caller, ClientID: clientID, TenantID: "11111111-2222-3333-4444"}:              "tenantID is not an ID",
		{Identity: logins.Caller, ClientID: clientID, TenantID: "11111111-2222-3333-4444-55555555555"}:  "tenantID is not an ID",
		{Identity: logins.Caller, ClientID: clientID, TenantID: "11111111-2222-3333-4444-55555555555g"}: "tenantID is not an ID",
		{Identity: logins.Caller, TenantID: tenant}:                                                     "clientID is missing",
		{Identity: logins.Gateway, ClientID: "x"}:                                                       "clientID is not an ID",
	} {
		if got := loginstest.FaultsOf(&credential); (got == "") != (want == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q, want %q", credential, got, want)
		}
	}
}
