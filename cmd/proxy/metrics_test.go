package main

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

type fixedStates []oidc.IssuerStatus

func (s fixedStates) Status() []oidc.IssuerStatus { return s }

func testMetrics(states ...oidc.IssuerStatus) *metrics {
	cfg := &Config{
		Clusters:   []Cluster{{Name: "prod-eu"}, {Name: "prod-us"}},
		Registries: []Registry{{Service: "registry.example.com"}},
	}
	return newMetrics("v1.2.3", cfg, fixedStates(states))
}

func expectMetrics(t *testing.T, m *metrics, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestMetricsCountExchanges(t *testing.T) {
	t.Parallel()
	m := testMetrics()
	granted := &exchange.Event{
		Result: exchange.ResultGranted, Status: 200, Cluster: "prod-eu", Service: "registry.example.com", GrantType: "password", Latency: 0.002,
	}
	m.Record(granted)
	m.Record(granted)
	m.Record(&exchange.Event{
		Result: exchange.ResultRefused, Status: 401, Reason: "token_expired", Cluster: "prod-us", Service: "registry.example.com", GrantType: "basic", Latency: 20,
	})
	m.Record(&exchange.Event{Result: exchange.ResultInvalid, Status: 400, Reason: "request_malformed"})
	expectMetrics(t, m, `
# HELP pullpass_exchanges_total Token requests by outcome; the GET with which a client repeats a refused POST is not counted again.
# TYPE pullpass_exchanges_total counter
pullpass_exchanges_total{cluster="",grant_type="",reason="request_malformed",result="invalid",service="unknown"} 1
pullpass_exchanges_total{cluster="prod-eu",grant_type="password",reason="",result="granted",service="registry.example.com"} 2
pullpass_exchanges_total{cluster="prod-us",grant_type="basic",reason="token_expired",result="refused",service="registry.example.com"} 1
`, "pullpass_exchanges_total")
	text := scrape(t, m)
	for _, want := range []string{
		`pullpass_exchange_duration_seconds_bucket{result="granted",le="0.001"} 0`,
		`pullpass_exchange_duration_seconds_bucket{result="granted",le="0.0025"} 2`,
		`pullpass_exchange_duration_seconds_bucket{result="refused",le="10.0"} 0`,
		`pullpass_exchange_duration_seconds_count{result="refused"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s in\n%s", want, text)
		}
	}
}

// containerd repeats a refused POST as a GET: one attempt must not look like
// two refusals. That the repetition succeeds is news.
func TestMetricsCountARepeatedRefusalOnce(t *testing.T) {
	t.Parallel()
	m := testMetrics()
	m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Cluster: "prod-eu", GrantType: "password"})
	m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Cluster: "prod-eu", GrantType: "basic", Retry: true})
	m.Record(&exchange.Event{Result: exchange.ResultGranted, Status: 200, Cluster: "prod-eu", GrantType: "basic", Retry: true})
	expectMetrics(t, m, `
# HELP pullpass_exchanges_total Token requests by outcome; the GET with which a client repeats a refused POST is not counted again.
# TYPE pullpass_exchanges_total counter
pullpass_exchanges_total{cluster="prod-eu",grant_type="password",reason="token_legacy",result="refused",service="unknown"} 1
pullpass_exchanges_total{cluster="prod-eu",grant_type="basic",reason="",result="granted",service="unknown"} 1
# HELP pullpass_legacy_tokens_total Refused secret-based ServiceAccount tokens; the audit log names their Secrets.
# TYPE pullpass_legacy_tokens_total counter
pullpass_legacy_tokens_total{cluster="prod-eu"} 1
pullpass_legacy_tokens_total{cluster="prod-us"} 0
`, "pullpass_exchanges_total", "pullpass_legacy_tokens_total")
}

// Whoever can reach the endpoint could fill the memory of Prometheus, if a
// label held what requests say.
func TestMetricsDoNotGrowWithWhatCallersSend(t *testing.T) {
	t.Parallel()
	m := testMetrics()
	for i := range 1000 {
		s := fmt.Sprintf("chosen-%d", i)
		m.Record(&exchange.Event{
			ID: s, Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Message: s,
			Cluster: s, Namespace: s, ServiceAccount: &exchange.Object{Name: s, UID: s}, Pod: &exchange.Object{Name: s}, Node: &exchange.Object{Name: s},
			CredentialID: s, Claimed: &exchange.Claimed{Issuer: s, Subject: s}, Service: s, GrantType: s,
			Requested: []string{s}, Granted: []string{s}, Rule: s, IssuedID: s, Caller: s, Client: s, ClientID: s, Account: s,
			Latency: float64(i),
		})
	}
	for _, name := range []string{"pullpass_exchanges_total", "pullpass_exchange_duration_seconds"} {
		if n, err := testutil.GatherAndCount(m.registry, name); err != nil || n != 1 {
			t.Errorf("%s has %d series after 1000 callers, want 1 (%v)", name, n, err)
		}
	}
	if n, err := testutil.GatherAndCount(m.registry, "pullpass_legacy_tokens_total"); err != nil || n != 3 {
		t.Errorf("pullpass_legacy_tokens_total has %d series, want one for each cluster and one for the rest (%v)", n, err)
	}
	if text := scrape(t, m); strings.Contains(text, "chosen") {
		t.Errorf("what callers sent is in the metrics:\n%s", text)
	}
}

func TestMetricsShowTheIssuersKeys(t *testing.T) {
	t.Parallel()
	m := testMetrics(
		oidc.IssuerStatus{Cluster: "prod-eu", Keys: 2, FetchedAt: time.Unix(1000, 500_000_000), Fetches: 7, Failures: 3, LastFailure: "secret cause"},
		oidc.IssuerStatus{Cluster: "prod-us", Fetches: 1, Failures: 1},
	)
	expectMetrics(t, m, `
# HELP pullpass_issuer_key_fetches_total Attempts to fetch the keys.
# TYPE pullpass_issuer_key_fetches_total counter
pullpass_issuer_key_fetches_total{cluster="prod-eu",result="failure"} 3
pullpass_issuer_key_fetches_total{cluster="prod-eu",result="success"} 4
pullpass_issuer_key_fetches_total{cluster="prod-us",result="failure"} 1
pullpass_issuer_key_fetches_total{cluster="prod-us",result="success"} 0
# HELP pullpass_issuer_keys Keys of the cluster's issuer that are believed now.
# TYPE pullpass_issuer_keys gauge
pullpass_issuer_keys{cluster="prod-eu"} 2
pullpass_issuer_keys{cluster="prod-us"} 0
# HELP pullpass_issuer_keys_fetched_timestamp_seconds When the keys were last fetched; 0: never.
# TYPE pullpass_issuer_keys_fetched_timestamp_seconds gauge
pullpass_issuer_keys_fetched_timestamp_seconds{cluster="prod-eu"} 1000.5
pullpass_issuer_keys_fetched_timestamp_seconds{cluster="prod-us"} 0
`, "pullpass_issuer_key_fetches_total", "pullpass_issuer_keys", "pullpass_issuer_keys_fetched_timestamp_seconds")
}

type fixedKeys struct {
	registryauth.Keys
	notAfter time.Time
	err      error
}

func (k fixedKeys) Signing() (*registryauth.SigningKey, error) {
	if k.err != nil {
		return nil, k.err
	}
	return &registryauth.SigningKey{NotAfter: k.notAfter}, nil
}

func TestMetricsShowTheEndOfSigningKeys(t *testing.T) {
	t.Parallel()
	m := testMetrics()
	m.watchSigningKeys("certificate.example.com", fixedKeys{notAfter: time.Unix(2000, 0)})
	m.watchSigningKeys("jwks.example.com", fixedKeys{})
	m.watchSigningKeys("broken.example.com", fixedKeys{err: registryauth.ErrNoSigningKey})
	expectMetrics(t, m, `
# HELP pullpass_signing_key_expiry_timestamp_seconds When the certificate of the signing key ends; 0 while no key can sign.
# TYPE pullpass_signing_key_expiry_timestamp_seconds gauge
pullpass_signing_key_expiry_timestamp_seconds{service="broken.example.com"} 0
pullpass_signing_key_expiry_timestamp_seconds{service="certificate.example.com"} 2000
`, "pullpass_signing_key_expiry_timestamp_seconds")
}

func TestMetricsCountReloadsAndLostEvents(t *testing.T) {
	t.Parallel()
	m := testMetrics()
	m.watchAudit(func() uint64 { return 5 })
	m.reloaded("policy", nil)
	m.reloaded("policy", errors.New("bad"))
	m.reloaded("tls", errors.New("bad"))
	expectMetrics(t, m, `
# HELP pullpass_audit_failures_total Audit events that could not be written.
# TYPE pullpass_audit_failures_total counter
pullpass_audit_failures_total 5
# HELP pullpass_build_info Always 1.
# TYPE pullpass_build_info gauge
pullpass_build_info{version="v1.2.3"} 1
# HELP pullpass_reloads_total Readings of files, the first one included; after a failure the last good files stay in use.
# TYPE pullpass_reloads_total counter
pullpass_reloads_total{name="policy",result="failure"} 1
pullpass_reloads_total{name="policy",result="success"} 1
pullpass_reloads_total{name="tls",result="failure"} 1
`, "pullpass_audit_failures_total", "pullpass_build_info", "pullpass_reloads_total")
	if n, err := testutil.GatherAndCount(m.registry, "pullpass_reload_last_success_timestamp_seconds"); err != nil || n != 1 {
		t.Errorf("%d groups were read without a fault, want 1 (%v)", n, err)
	}
	last := testutil.ToFloat64(m.lastReload.WithLabelValues("policy"))
	if age := float64(time.Now().Unix()) - last; age < -60 || age > 60 {
		t.Errorf("the last good reading was %f seconds ago", age)
	}
}

// Each proxy has a registry of its own: nothing is collected but what is ours.
func TestMetricsAreOursAlone(t *testing.T) {
	t.Parallel()
	for range 2 { // a default registry would refuse the second
		text := scrape(t, testMetrics())
		for _, want := range []string{"go_goroutines", "process_cpu_seconds_total", "# EOF"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	}
}

func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	request := httptest.NewRequest("GET", "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	response := httptest.NewRecorder()
	m.handler().ServeHTTP(response, request)
	if response.Code != 200 {
		t.Fatalf("%d %s", response.Code, response.Body)
	}
	return response.Body.String()
}
