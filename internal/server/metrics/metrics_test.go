package metrics

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/cluster/podevents"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func testMetrics(from Sources) *Metrics {
	from.Clusters = []string{"prod-eu", "prod-us"}
	from.Services = []string{"registry.example.com", "other.example.com", "broken.example.com"}
	m := New("v1.2.3")
	m.Use(from)
	return m
}

// expectMetrics compares all series of the named metrics, without their help.
func expectMetrics(t *testing.T, m *Metrics, want string, names ...string) {
	t.Helper()
	if got := strings.Join(series(t, m, names...), "\n"); got != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", got, strings.TrimSpace(want))
	}
}

func series(t *testing.T, m *Metrics, names ...string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(scrape(t, m)) {
		if name, _, _ := strings.Cut(strings.Replace(line, "{", " ", 1), " "); slices.Contains(names, name) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

func TestMetricsCountExchanges(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{})
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
pullpass_exchanges_total{cluster="",grant_type="",reason="request_malformed",result="invalid",service="unknown"} 1
pullpass_exchanges_total{cluster="prod-eu",grant_type="password",reason="",result="granted",service="registry.example.com"} 2
pullpass_exchanges_total{cluster="prod-us",grant_type="basic",reason="token_expired",result="refused",service="registry.example.com"} 1
`, "pullpass_exchanges_total")
	text := scrape(t, m)
	for _, want := range []string{
		`pullpass_exchange_duration_seconds_bucket{result="granted",le="0.001"} 0`,
		`pullpass_exchange_duration_seconds_bucket{result="granted",le="0.0025"} 2`,
		`pullpass_exchange_duration_seconds_bucket{result="refused",le="10"} 0`,
		`pullpass_exchange_duration_seconds_count{result="refused"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s in\n%s", want, text)
		}
	}
}

// An alert that one event raises sees it only if its series was there before: increase() needs two values.
func TestSeriesOfAlertsBeginAtZero(t *testing.T) {
	t.Parallel()
	status := func() upstream.Status { return upstream.Status{} }
	m := testMetrics(Sources{Identities: []string{"github"}, Upstreams: map[string]func() upstream.Status{"ghcr.io": status}})
	var want []string
	for _, issuer := range []string{"github", "prod-eu", "prod-us"} {
		for _, mode := range []string{"audit", "enforce"} {
			want = append(want, fmt.Sprintf(`pullpass_replays_total{cluster=%q,mode=%q,result="other_caller"} 0`, issuer, mode))
		}
	}
	for _, cluster := range []string{"", "prod-eu", "prod-us"} {
		want = append(want, fmt.Sprintf(`pullpass_legacy_tokens_total{cluster=%q} 0`, cluster))
	}
	want = append(want, `pullpass_trial_differences_total{change="lost"} 0`)
	for _, kind := range gateway.Kinds() {
		want = append(want, fmt.Sprintf(`pullpass_gateway_requests_total{kind=%q,reason="upstream_redirect",result="unavailable",upstream="ghcr.io"} 0`, kind))
	}
	slices.Sort(want)
	got := series(t, m, "pullpass_replays_total", "pullpass_legacy_tokens_total", "pullpass_trial_differences_total", "pullpass_gateway_requests_total")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// containerd repeats a refused POST as a GET: one attempt must not look like
// two refusals. That the repetition succeeds is news.
func TestMetricsCountARepeatedRefusalOnce(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{})
	m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Cluster: "prod-eu", GrantType: "password"})
	m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Cluster: "prod-eu", GrantType: "basic", Retry: true})
	m.Record(&exchange.Event{Result: exchange.ResultGranted, Status: 200, Cluster: "prod-eu", GrantType: "basic"})
	expectMetrics(t, m, `
pullpass_exchanges_total{cluster="prod-eu",grant_type="basic",reason="",result="granted",service="unknown"} 1
pullpass_exchanges_total{cluster="prod-eu",grant_type="password",reason="token_legacy",result="refused",service="unknown"} 1
pullpass_legacy_tokens_total{cluster=""} 0
pullpass_legacy_tokens_total{cluster="prod-eu"} 1
pullpass_legacy_tokens_total{cluster="prod-us"} 0
`, "pullpass_exchanges_total", "pullpass_legacy_tokens_total")
}

func TestMetricsCountCallerProofs(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{})
	prove := func(cluster string, proof *nodeproof.Proof, retry bool) {
		m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 403, Cluster: cluster, Proof: proof, Retry: retry})
	}
	prove("prod-eu", &nodeproof.Proof{Mode: nodeproof.Audit, Passed: true, Method: nodeproof.Address}, false)
	missing := &nodeproof.Proof{Mode: nodeproof.Enforce, Reason: nodeproof.CertificateMissing}
	prove("prod-us", missing, false)
	prove("prod-us", missing, true) // the same attempt
	prove("prod-us", nil, false)
	expectMetrics(t, m, `
pullpass_caller_proofs_total{cluster="prod-eu",mode="audit",reason="",result="passed"} 1
pullpass_caller_proofs_total{cluster="prod-us",mode="enforce",reason="certificate_missing",result="failed"} 1
`, "pullpass_caller_proofs_total")
}

func TestMetricsCountTheTrial(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{})
	for _, granted := range [][]string{{"repository:a:pull"}, {"repository:a:pull", "repository:b:pull"}, {}, {"repository:b:pull"}} {
		m.Record(&exchange.Event{Result: exchange.ResultGranted, Status: 200, Granted: []string{"repository:a:pull"}, Trial: &exchange.Trial{Result: exchange.ResultGranted, Granted: granted}})
	}
	m.Record(&exchange.Event{Result: exchange.ResultGranted, Status: 200})
	expectMetrics(t, m, `
pullpass_trial_differences_total{change="gained"} 2
pullpass_trial_differences_total{change="lost"} 2
`, "pullpass_trial_differences_total")
}

// Any client that can reach the endpoint could fill the memory of Prometheus if a
// label held text of requests. The event also has words from a closed set:
// a word that is not in this set counts as other.
func TestMetricsDoNotGrowWithWhatCallersSend(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{})
	record := func(s string, i int) {
		m.Record(&exchange.Event{
			ID: s, Result: exchange.Result(s), Status: 401, Reason: s, Message: s,
			Cluster: s, Namespace: s, ServiceAccount: &exchange.Object{Name: s, UID: s}, Pod: &exchange.Object{Name: s}, Node: &exchange.Object{Name: s},
			CredentialID: s, Claimed: &exchange.Claimed{Issuer: s, Subject: s}, Service: s, GrantType: s,
			Requested: []string{s}, Granted: []string{s}, Rule: s, IssuedID: s, Caller: s, Client: s, ClientID: s, Account: s,
			Proof:   &nodeproof.Proof{Mode: nodeproof.Mode(s), Reason: nodeproof.Reason(s), Message: s},
			Replay:  &exchange.Replay{Mode: exchange.ReplayMode(s), Reason: exchange.ReplayReason(s), Owner: s, Caller: s, Message: s},
			Latency: float64(i),
		})
		m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 401, Reason: "token_legacy", Cluster: s, Service: s, GrantType: s})
		m.Record(&exchange.Event{Result: exchange.ResultRefused, Status: 429, Reason: "limited_" + s, Cluster: s, Service: s, GrantType: s})
		m.RedisCall(state.Operation(s), time.Duration(i), nil)
	}
	record("chosen", 0)
	count := func() int { return strings.Count(scrape(t, m), "\npullpass_") }
	first := count()
	for i := range 1000 {
		record(fmt.Sprintf("chosen-%d", i), i)
	}
	if n := count(); n != first {
		t.Errorf("%d series after 1000 callers, and %d after the first", n, first)
	}
	if text := scrape(t, m); strings.Contains(text, "chosen") {
		t.Errorf("what callers sent is in the metrics:\n%s", text)
	}
}

func TestMetricsShowTheIssuersKeys(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{Issuers: func() []oidc.IssuerStatus {
		return []oidc.IssuerStatus{
			{Name: "prod-eu", Keys: 2, FetchedAt: time.Unix(1000, 500_000_000), Fetches: 7, Failures: 3, LastFailure: "secret cause"},
			{Name: "prod-us", Fetches: 1, Failures: 1},
		}
	}})
	expectMetrics(t, m, `
pullpass_issuer_key_fetches_total{cluster="prod-eu",result="failure"} 3
pullpass_issuer_key_fetches_total{cluster="prod-eu",result="success"} 4
pullpass_issuer_key_fetches_total{cluster="prod-us",result="failure"} 1
pullpass_issuer_key_fetches_total{cluster="prod-us",result="success"} 0
pullpass_issuer_keys_fetched_timestamp_seconds{cluster="prod-eu"} 1000.5
pullpass_issuer_keys_fetched_timestamp_seconds{cluster="prod-us"} 0
pullpass_issuer_keys{cluster="prod-eu"} 2
pullpass_issuer_keys{cluster="prod-us"} 0
`, "pullpass_issuer_key_fetches_total", "pullpass_issuer_keys", "pullpass_issuer_keys_fetched_timestamp_seconds")
}

func TestMetricsShowConnections(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{
		Kubernetes: map[string]func() kube.ClusterStatus{
			"prod-eu": func() kube.ClusterStatus {
				return kube.ClusterStatus{
					Resources: []kube.ResourceStatus{
						{Resource: "pods", Synced: true, Objects: 7, HeardAt: time.Unix(1000, 0)}, {Resource: "nodes", LastFailure: "secret cause"},
					},
					Gets:    kube.GetCounts{Found: 1, Gone: 2, Failed: 3},
					Reviews: kube.ReviewCounts{Accepted: 4, Refused: 5, Failed: 6},
				}
			},
			"prod-us": func() kube.ClusterStatus { return kube.ClusterStatus{} },
		},
		ObjectStatus: map[string]func() objectstatus.Status{
			"prod-eu": func() objectstatus.Status {
				return objectstatus.Status{Leads: true, Writes: 11, Failures: 3, Refused: 4}
			},
		},
		PodEvents: func() map[string]podevents.Counts {
			return map[string]podevents.Counts{"prod-eu": {Sent: 6, Failed: 5}, "prod-us": {}}
		},
	})
	expectMetrics(t, m, `
pullpass_kubernetes_confirmations_total{cluster="prod-eu",result="failed"} 3
pullpass_kubernetes_confirmations_total{cluster="prod-eu",result="found"} 1
pullpass_kubernetes_confirmations_total{cluster="prod-eu",result="gone"} 2
pullpass_kubernetes_confirmations_total{cluster="prod-us",result="failed"} 0
pullpass_kubernetes_confirmations_total{cluster="prod-us",result="found"} 0
pullpass_kubernetes_confirmations_total{cluster="prod-us",result="gone"} 0
pullpass_kubernetes_heard_timestamp_seconds{cluster="prod-eu",resource="nodes"} 0
pullpass_kubernetes_heard_timestamp_seconds{cluster="prod-eu",resource="pods"} 1000
pullpass_kubernetes_objects{cluster="prod-eu",resource="nodes"} 0
pullpass_kubernetes_objects{cluster="prod-eu",resource="pods"} 7
pullpass_kubernetes_synced{cluster="prod-eu",resource="nodes"} 0
pullpass_kubernetes_synced{cluster="prod-eu",resource="pods"} 1
pullpass_object_status_failures_total{cluster="prod-eu"} 7
pullpass_object_status_leader{cluster="prod-eu"} 1
pullpass_object_status_writes_total{cluster="prod-eu"} 11
pullpass_pod_event_failures_total{cluster="prod-eu"} 5
pullpass_pod_event_failures_total{cluster="prod-us"} 0
pullpass_pod_events_total{cluster="prod-eu"} 6
pullpass_pod_events_total{cluster="prod-us"} 0
pullpass_token_reviews_total{cluster="prod-eu",result="accepted"} 4
pullpass_token_reviews_total{cluster="prod-eu",result="failed"} 6
pullpass_token_reviews_total{cluster="prod-eu",result="refused"} 5
pullpass_token_reviews_total{cluster="prod-us",result="accepted"} 0
pullpass_token_reviews_total{cluster="prod-us",result="failed"} 0
pullpass_token_reviews_total{cluster="prod-us",result="refused"} 0
`, "pullpass_token_reviews_total", "pullpass_kubernetes_confirmations_total", "pullpass_kubernetes_objects", "pullpass_kubernetes_synced", "pullpass_kubernetes_heard_timestamp_seconds",
		"pullpass_pod_events_total", "pullpass_pod_event_failures_total",
		"pullpass_object_status_leader", "pullpass_object_status_writes_total", "pullpass_object_status_failures_total")
}

type fixedKeys struct {
	signing.Keys
	since, notAfter time.Time
	keys            []signing.KeyInfo
	cas             []signing.CAInfo
	err             error
}

func (k fixedKeys) Status() signing.Status { return signing.Status{Keys: k.keys, CAs: k.cas} }

func (k fixedKeys) Signing() (*signing.SigningKey, error) {
	if k.err != nil {
		return nil, k.err
	}
	return &signing.SigningKey{Since: k.since, NotAfter: k.notAfter}, nil
}

func TestMetricsShowTheEndOfKeys(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{
		SigningKeys: map[string]signing.Keys{
			"registry.example.com": fixedKeys{since: time.Unix(500, 0), notAfter: time.Unix(2000, 0), cas: []signing.CAInfo{
				{State: signing.StateRetired, NotAfter: time.Unix(6000, 0)},
				{State: signing.StateSigning, NotAfter: time.Unix(9000, 0)},
				{State: signing.StateSigning, NotAfter: time.Unix(8000, 0), Intermediate: true},
				{State: signing.StateNext, NotAfter: time.Unix(7000, 0)},
			}},
			"other.example.com":  fixedKeys{},
			"broken.example.com": fixedKeys{err: signing.ErrNoSigningKey},
		},
		TLS: &TLSEnds{Certificate: time.Unix(3000, 0), ClientCAs: map[string]time.Time{"prod-eu": time.Unix(4000, 0)}},
	})
	expectMetrics(t, m, `
pullpass_client_ca_expiry_timestamp_seconds{cluster="prod-eu"} 4000
pullpass_signing_ca_expiry_timestamp_seconds{service="registry.example.com"} 8000
pullpass_signing_key_expiry_timestamp_seconds{service="broken.example.com"} 0
pullpass_signing_key_expiry_timestamp_seconds{service="registry.example.com"} 2000
pullpass_signing_key_since_timestamp_seconds{service="registry.example.com"} 500
pullpass_tls_certificate_expiry_timestamp_seconds 3000
`, "pullpass_signing_ca_expiry_timestamp_seconds", "pullpass_signing_key_expiry_timestamp_seconds", "pullpass_signing_key_since_timestamp_seconds",
		"pullpass_tls_certificate_expiry_timestamp_seconds", "pullpass_client_ca_expiry_timestamp_seconds")
}

func TestMetricsShowTheKeysOfAssertions(t *testing.T) {
	t.Parallel()
	const since, next = "pullpass_assertion_key_since_timestamp_seconds", "pullpass_assertion_key_next_timestamp_seconds"
	for _, test := range []struct {
		keys signing.Keys
		want string
	}{
		{nil, ""},
		{fixedKeys{}, ""}, // from a file
		{fixedKeys{err: signing.ErrNoSigningKey}, since + " 0\n"},
		{fixedKeys{since: time.Unix(500, 0), keys: []signing.KeyInfo{
			{State: signing.StateRetired, SignsUntil: time.Unix(500, 0)}, {State: signing.StateSigning}}}, since + " 500\n"},
		{fixedKeys{since: time.Unix(500, 0), keys: []signing.KeyInfo{
			{State: signing.StateSigning, SignsUntil: time.Unix(900, 0)}, {State: signing.StateNext}}}, next + " 900\n" + since + " 500\n"},
	} {
		expectMetrics(t, testMetrics(Sources{Assertions: test.keys}), "\n"+test.want, since, next)
	}
}

func TestMetricsShowSharedState(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{
		Redis: func() state.RedisStatus {
			return state.RedisStatus{Healthy: true, Failures: 3, LastFailure: "secret cause"}
		},
		Revocations: func() state.RevocationsStatus { return state.RevocationsStatus{Entries: 4, Read: time.Unix(1000, 0)} },
	})
	m.RedisCall(state.Operations()[0], 2*time.Millisecond, nil)
	m.RedisCall(state.Operations()[0], time.Second, errors.New("secret cause"))
	expectMetrics(t, m, `
pullpass_redis_call_duration_seconds_count{operation="add_decisions",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="add_decisions",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="add_uses",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="add_uses",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="own",result="failure"} 1
pullpass_redis_call_duration_seconds_count{operation="own",result="success"} 1
pullpass_redis_call_duration_seconds_count{operation="own_and_take",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="own_and_take",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="read_decisions",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="read_decisions",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="read_revocations",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="read_revocations",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="read_uses",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="read_uses",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="take",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="take",result="success"} 0
pullpass_redis_call_duration_seconds_count{operation="write_revocations",result="failure"} 0
pullpass_redis_call_duration_seconds_count{operation="write_revocations",result="success"} 0
pullpass_redis_failures_total 3
pullpass_redis_healthy 1
pullpass_revocations 4
pullpass_revocations_read_timestamp_seconds 1000
`, "pullpass_redis_call_duration_seconds_count", "pullpass_redis_failures_total", "pullpass_redis_healthy", "pullpass_revocations",
		"pullpass_revocations_read_timestamp_seconds")
}

// A policy that is replaced leaves no series behind, or one would come with
// every change.
func TestMetricsShowThePolicyInUse(t *testing.T) {
	t.Parallel()
	parse := func(repositories string) *policy.Policy {
		policy := testkit.Value(policy.Parse(policy.File{Name: "policy.yaml", Data: []byte(proxytest.PolicyFor(repositories))}))(t)
		return policy
	}
	p := parse("a/**")
	m := testMetrics(Sources{Policy: func() *policy.Policy { return p }, Load: func() load.Counts { return load.Counts{InFlight: 3, Waiting: 2} }})
	for _, next := range []*policy.Policy{p, parse("b/**")} {
		p = next
		expectMetrics(t, m, `
pullpass_policy_info{revision="`+next.Revision()[:12]+`"} 1
pullpass_requests_in_flight 3
pullpass_requests_waiting 2
`, "pullpass_policy_info", "pullpass_requests_in_flight", "pullpass_requests_waiting")
	}
}

func TestMetricsCountReloadsAndLostEvents(t *testing.T) {
	t.Parallel()
	m := testMetrics(Sources{Audit: func() audit.Status { return audit.Status{Failures: 5, Waiting: 6} }, Files: []string{"config", "policy", "tls"}})
	m.Reloaded("gone", nil)
	m.Reloaded("policy", nil)
	m.Reloaded("policy", errors.New("bad"))
	m.Reloaded("tls", errors.New("bad"))
	expectMetrics(t, m, `
pullpass_audit_failures_total 5
pullpass_audit_waiting_events 6
pullpass_build_info{version="v1.2.3"} 1
pullpass_reloads_total{name="config",result="failure"} 0
pullpass_reloads_total{name="policy",result="failure"} 1
pullpass_reloads_total{name="policy",result="success"} 1
pullpass_reloads_total{name="tls",result="failure"} 1
`, "pullpass_audit_failures_total", "pullpass_audit_waiting_events", "pullpass_build_info", "pullpass_reloads_total")
	last := series(t, m, "pullpass_reload_last_success_timestamp_seconds")
	if len(last) != 1 {
		t.Fatalf("last good readings: %q, want one", last)
	}
	seconds, err := strconv.ParseFloat(strings.TrimPrefix(last[0], `pullpass_reload_last_success_timestamp_seconds{name="policy"} `), 64)
	if age := float64(time.Now().Unix()) - seconds; err != nil || age < -60 || age > 60 {
		t.Errorf("the last good reading was %f seconds ago: %s, %v", age, last[0], err)
	}
}

// What is taken out of the configuration is not shown any more; all other
// counters go on.
func TestMetricsForgetWhatIsGone(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b"}
	m := testMetrics(Sources{})
	m.Use(Sources{Clusters: names, Services: names, Files: names})
	record := func() {
		for _, cluster := range names {
			for _, service := range names {
				m.Record(&exchange.Event{Result: exchange.ResultGranted, Cluster: cluster, Service: service, GrantType: "basic"})
			}
			m.Reloaded(cluster, nil)
		}
	}
	record()
	m.Use(Sources{Clusters: []string{"a", "c"}, Services: []string{"b"}, Files: []string{"a"}})
	const shown = "pullpass_exchanges_total"
	expectMetrics(t, m, `
pullpass_exchanges_total{cluster="a",grant_type="basic",reason="",result="granted",service="b"} 1
`, shown)
	record()
	expectMetrics(t, m, `
pullpass_exchanges_total{cluster="",grant_type="basic",reason="",result="granted",service="b"} 1
pullpass_exchanges_total{cluster="",grant_type="basic",reason="",result="granted",service="unknown"} 1
pullpass_exchanges_total{cluster="a",grant_type="basic",reason="",result="granted",service="b"} 2
pullpass_exchanges_total{cluster="a",grant_type="basic",reason="",result="granted",service="unknown"} 1
pullpass_legacy_tokens_total{cluster=""} 0
pullpass_legacy_tokens_total{cluster="a"} 0
pullpass_legacy_tokens_total{cluster="c"} 0
pullpass_reloads_total{name="a",result="failure"} 0
pullpass_reloads_total{name="a",result="success"} 2
`, shown, "pullpass_legacy_tokens_total", "pullpass_reloads_total")
}

// Each proxy has a registry of its own: nothing is collected but what is ours.
func TestMetricsAreOursAlone(t *testing.T) {
	t.Parallel()
	for range 2 { // a default registry would refuse the second
		text := scrape(t, testMetrics(Sources{}))
		for _, want := range []string{"go_goroutines", "process_cpu_seconds_total"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	request := httptest.NewRequest("GET", "/metrics", nil)
	response := httptest.NewRecorder()
	m.Handler().ServeHTTP(response, request)
	if response.Code != 200 {
		t.Fatalf("%d %s", response.Code, response.Body)
	}
	expectClosed(t, m)
	return response.Body.String()
}
