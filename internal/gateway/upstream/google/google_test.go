package google

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	provider = "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools/clusters/providers/pullpass"
	puller   = "puller@acme.iam.gserviceaccount.com"
)

// cloud stands in for the token exchange (RFC 8693) of sts.googleapis.com and for
// generateAccessToken of iamcredentials.googleapis.com, as their references show them.
type cloud struct {
	t      *testing.T
	issuer *loginstest.Issuer

	mu           sync.Mutex
	exchanged    []string // subjects
	impersonated int
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/v1/token" {
		c.impersonate(w, r, body)
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Authorization") != "" ||
		form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange" || form.Get("audience") != provider ||
		form.Get("subject_token_type") != "urn:ietf:params:oauth:token-type:jwt" || form.Get("requested_token_type") != "urn:ietf:params:oauth:token-type:access_token" ||
		form.Get("scope") != "https://www.googleapis.com/auth/cloud-platform" {
		c.t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, form)
	}
	subject := c.issuer.Subject(c.t, provider, form.Get("subject_token"))
	if !strings.HasPrefix(subject, "prod-eu/payments/") {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "unauthorized_client", "error_description": "The given credential is rejected by the attribute condition."}`)
		return
	}
	c.exchanged = append(c.exchanged, subject)
	fmt.Fprintf(w, `{"access_token": "federated-%s", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": 3600}`, subject)
}

func (c *cloud) impersonate(w http.ResponseWriter, r *http.Request, body []byte) {
	var asked struct{ Scope []string }
	if err := json.Unmarshal(body, &asked); err != nil || len(asked.Scope) != 1 ||
		r.URL.Path != "/v1/projects/-/serviceAccounts/"+puller+":generateAccessToken" || r.Header.Get("Authorization") != "Bearer federated-"+loginstest.Caller {
		c.t.Errorf("%s %s %v: %s", r.Method, r.URL, r.Header, body)
	}
	c.impersonated++
	fmt.Fprintf(w, `{"accessToken": "impersonated", "expireTime": %q}`, time.Now().Add(30*time.Minute).UTC().Format(time.RFC3339))
}

func TestACallerIsAPrincipalOfItsOwn(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	c := &cloud{t: t, issuer: issuer}
	logins := testkit.Value((&Credential{Identity: logins.Caller, Audience: provider}).open(logins.Service{Upstream: "gar", Assertions: issuer}, loginstest.StandIn(t, c)))(t)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			loginstest.Until(t, loginstest.Expect(t, logins, loginstest.Caller, "oauth2accesstoken", "federated-"+loginstest.Caller), time.Hour)
		})
	}
	all.Wait()
	loginstest.Expect(t, logins, "prod-eu/payments/worker", "oauth2accesstoken", "federated-prod-eu/payments/worker")
	if _, err := logins.Login(t.Context(), "prod-eu/other/api"); err == nil || !strings.Contains(err.Error(), "rejected by the attribute condition") {
		t.Errorf("error %v, want what Google says", err)
	}
	if _, err := logins.Login(t.Context(), ""); !errors.Is(err, upstream.ErrNoCaller) {
		t.Errorf("error %v of an anonymous caller", err)
	}
	if len(c.exchanged) != 2 || c.impersonated != 0 {
		t.Errorf("%q were exchanged, and %d impersonated", c.exchanged, c.impersonated)
	}
}

func TestCallersImpersonate(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	c := &cloud{t: t, issuer: issuer}
	logins, err := (&Credential{Identity: logins.Caller, Audience: provider, ServiceAccount: puller}).open(logins.Service{Upstream: "gar", Assertions: issuer}, loginstest.StandIn(t, c))
	testkit.Must(t, err)
	for range 3 {
		loginstest.Until(t, loginstest.Expect(t, logins, loginstest.Caller, "oauth2accesstoken", "impersonated"), 30*time.Minute)
	}
	if len(c.exchanged) != 1 || c.impersonated != 1 {
		t.Errorf("%q were exchanged, and %d impersonated", c.exchanged, c.impersonated)
	}
}

// A node of GKE has a metadata server. That of a new node does not answer at first, and the SDK does not look for it again.
func TestTheGatewayHasAnIdentityOfItsOwn(t *testing.T) {
	answer := ""
	standIn := loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/token" || r.URL.Query().Get("scopes") != scope {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = io.WriteString(w, answer)
	}))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	open := func() upstream.Logins { return testkit.Value((&Credential{}).Open(logins.Service{Upstream: "gar"}))(t) }
	if _, err := open().Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "could not find default credentials") {
		t.Errorf("error %v without a metadata server", err)
	}

	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(standIn, "http://"))
	for _, answer = range []string{"none", "{}", `{"expires_in": 3599}`, `{"access_token": "own"}`, `{"access_token": "own", "expires_in": -1}`} {
		if _, err := open().Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "has no token") {
			t.Errorf("error %v of %s", err, answer)
		}
	}
	answer = `{"access_token": "own", "expires_in": 3599, "token_type": "Bearer"}`
	logins := open()
	for _, caller := range []string{loginstest.Caller, "prod-eu/payments/worker", ""} {
		loginstest.Until(t, loginstest.Expect(t, logins, caller, "oauth2accesstoken", "own"), time.Hour)
	}

	// A file that cannot be used does not lead to the account of the machine.
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "missing"))
	if _, err := open().Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "missing: no such file") {
		t.Errorf("error %v", err)
	}
}

// Elsewhere than at Google, a file has the key of a service account.
func TestTheGatewayHasAKey(t *testing.T) {
	standIn := loginstest.StandIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			t.Errorf("%s %s: %v", r.Method, r.URL, r.Form)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token": "by-key", "expires_in": 3599, "token_type": "Bearer"}`)
	}))
	key := testkit.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	file := testkit.Value(json.Marshal(map[string]string{
		"type": "service_account", "client_email": puller, "token_uri": standIn + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	}))(t)
	name := filepath.Join(t.TempDir(), "key.json")
	testkit.Must(t, os.WriteFile(name, file, 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", name)
	logins := testkit.Value((&Credential{}).Open(logins.Service{Upstream: "gar"}))(t)
	loginstest.Until(t, loginstest.Expect(t, logins, "", "oauth2accesstoken", "by-key"), time.Hour)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	issuer := loginstest.NewIssuer(t)
	for _, account := range []string{"", puller} {
		loginstest.Faults(t, func(t *testing.T, standIn http.Handler) upstream.Logins {
			logins, err := (&Credential{Identity: logins.Caller, Audience: provider, ServiceAccount: account}).open(logins.Service{Upstream: "gar", Assertions: issuer}, loginstest.StandIn(t, standIn))
			testkit.Must(t, err)
			return logins
		})
	}
}

func TestAnExchangeTakesAssertions(t *testing.T) {
	t.Parallel()
	if _, err := (&Credential{Identity: logins.Caller, Audience: provider}).Open(logins.Service{}); err == nil || !strings.Contains(err.Error(), "takes assertions") {
		t.Errorf("error %v", err)
	}
}

func TestNoLoginWithoutAnAssertion(t *testing.T) {
	t.Parallel()
	loginstest.WithoutAssertion(t, &Credential{Identity: logins.Caller, Audience: provider})
}

func TestFields(t *testing.T) {
	t.Parallel()
	for credential, want := range map[Credential]string{
		{Identity: logins.Caller, Audience: provider}:                         "",
		{Identity: logins.Caller, Audience: provider, ServiceAccount: puller}: "",
		{Identity: logins.Gateway}:                                            "",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools/clusters/providers/pullpass/more"}: "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.example.com/projects/1234/locations/global/workloadIdentityPools/clusters/providers/pullpass"}:         "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/acme/locations/global/workloadIdentityPools/clusters/providers/pullpass"}:      "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/places/global/workloadIdentityPools/clusters/providers/pullpass"}:         "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/pools/clusters/providers/pullpass"}:                      "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools/clusters/names/pullpass"}:          "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools/clusters/providers/"}:              "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools//providers/pullpass"}:              "audience is not the provider",
		{Identity: logins.Caller, Audience: "//iam.googleapis.com/projects/1234/locations/global/workloadIdentityPools/clusters/providers/pullpass x"}:    "audience is not the provider",
		{Identity: logins.Caller, Audience: provider, ServiceAccount: "puller"}:                                                                           "serviceAccount is not a service account",
		{Identity: logins.Caller, Audience: provider, ServiceAccount: "-@acme.iam.gserviceaccount.com"}:                                                   "serviceAccount is not a service account",
		{Identity: logins.Caller, Audience: provider, ServiceAccount: "puller@-"}:                                                                         "serviceAccount is not a service account",
		{Identity: logins.Gateway, ServiceAccount: puller}:                                                                                                "serviceAccount has no use",
	} {
		if got := loginstest.FaultsOf(&credential); (got == "") != (want == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %q, want %q", credential, got, want)
		}
	}
}

// Only tests have another endpoint: an empty address is Google's.
func TestTheExchangeIsGoogles(t *testing.T) {
	t.Parallel()
	a := &asker{Credential: &Credential{Audience: provider, ServiceAccount: puller}}
	options := a.exchange(registryauth.NewSecret("a"))
	if options.TokenURL != "" || options.ServiceAccountImpersonationURL != "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"+puller+":generateAccessToken" {
		t.Errorf("%q, %q", options.TokenURL, options.ServiceAccountImpersonationURL)
	}
}
