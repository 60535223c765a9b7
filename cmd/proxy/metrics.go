package main

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/state"
)

// unknownService stands for every service that is not configured.
const unknownService = "unknown"

const (
	maxScrapes    = 4 // at a time
	scrapeTimeout = 10 * time.Second
)

// metrics are what /metrics shows. All methods are safe for concurrent use.
//
// No label holds what a caller chose: no repository, pod, token id or address,
// and of services and clusters only those that are configured.
type metrics struct {
	registry *prometheus.Registry
	clusters map[string]bool
	services map[string]bool

	exchanges    *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	legacyTokens *prometheus.CounterVec
	callerProofs *prometheus.CounterVec
	replays      *prometheus.CounterVec
	limited      *prometheus.CounterVec
	reloads      *prometheus.CounterVec
	lastReload   *prometheus.GaugeVec
}

var _ exchange.Recorder = (*metrics)(nil)

// issuerStates tells the state of each issuer's keys.
type issuerStates interface{ Status() []oidc.IssuerStatus }

func newMetrics(version string, cfg *Config, issuers issuerStates) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		clusters: map[string]bool{},
		services: map[string]bool{},
		exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_exchanges_total",
			Help: "Token requests by outcome; the GET with which a client repeats a refused POST is not counted again.",
		}, []string{"result", "reason", "cluster", "service", "grant_type"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:                            "pullpass_exchange_duration_seconds",
			Help:                            "Time to answer a token request.",
			Buckets:                         []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  160,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"result"}),
		legacyTokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_legacy_tokens_total",
			Help: "Refused secret-based ServiceAccount tokens; the audit log names their Secrets.",
		}, []string{"cluster"}),
		callerProofs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_caller_proofs_total",
			Help: "Callers by whether they are the node of their token; reason says why not.",
		}, []string{"cluster", "mode", "result", "reason"}),
		replays: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_replays_total",
			Help: "Tokens by whether their first caller presented them: passed, or why that was not so or not known.",
		}, []string{"cluster", "mode", "result"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_limited_total", Help: "Token requests that were refused because there were too many, by the limit.",
		}, []string{"limit"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pullpass_reloads_total",
			Help: "Readings of files, the first one included; after a failure the last good files stay in use.",
		}, []string{"name", "result"}),
		lastReload: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pullpass_reload_last_success_timestamp_seconds",
			Help: "When files were last read without a fault.",
		}, []string{"name"}),
	}
	for i := range cfg.Clusters {
		m.clusters[cfg.Clusters[i].Name] = true
		m.legacyTokens.WithLabelValues(cfg.Clusters[i].Name) // 0 is a statement too: nobody is left
	}
	for i := range cfg.Registries {
		m.services[cfg.Registries[i].Service] = true
	}
	buildInfo := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pullpass_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version},
	})
	buildInfo.Set(1)
	m.registry.MustRegister(
		m.exchanges, m.duration, m.legacyTokens, m.callerProofs, m.replays, m.limited, m.reloads, m.lastReload, buildInfo, newIssuerCollector(issuers),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Record counts one request.
func (m *metrics) Record(event *exchange.Event) {
	if event.Retry && event.Status >= http.StatusBadRequest {
		return // containerd repeats a refused POST as a GET: one attempt, refused once
	}
	cluster := ""
	if m.clusters[event.Cluster] {
		cluster = event.Cluster
	}
	service := unknownService
	if m.services[event.Service] {
		service = event.Service
	}
	result := string(event.Result)
	m.exchanges.WithLabelValues(result, event.Reason, cluster, service, knownGrantType(event.GrantType)).Inc()
	m.duration.WithLabelValues(result).Observe(event.Latency)
	if event.Reason == string(oidc.ReasonLegacy) {
		m.legacyTokens.WithLabelValues(cluster).Inc()
	}
	if p := event.Proof; p != nil {
		result := "failed"
		if p.Passed {
			result = "passed"
		}
		m.callerProofs.WithLabelValues(cluster, string(p.Mode), result, string(p.Reason)).Inc()
	}
	if r := event.Replay; r != nil {
		m.replays.WithLabelValues(cluster, string(r.Mode), cmp.Or(string(r.Reason), "passed")).Inc()
	}
	if limit, ok := strings.CutPrefix(event.Reason, "limited_"); ok {
		m.limited.WithLabelValues(limit).Inc()
	}
}

func knownGrantType(s string) string {
	switch registryauth.GrantType(s) {
	case registryauth.GrantAnonymous, registryauth.GrantBasic, registryauth.GrantBearer,
		registryauth.GrantPassword, registryauth.GrantRefreshToken, registryauth.GrantTokenExchange:
		return s
	}
	return "" // the request was refused before its form was known
}

// reloaded counts one reading of a group of files. name is one of ours.
func (m *metrics) reloaded(name string, err error) {
	if err != nil {
		m.reloads.WithLabelValues(name, "failure").Inc()
		return
	}
	m.reloads.WithLabelValues(name, "success").Inc()
	m.lastReload.WithLabelValues(name).SetToCurrentTime()
}

// watchSigningKeys shows when the key that signs for a service ends: 0 while no
// key can sign, nothing while it has no end.
func (m *metrics) watchSigningKeys(service string, keys registryauth.Keys) {
	m.registry.MustRegister(signingKeyCollector{
		expiry: prometheus.NewDesc("pullpass_signing_key_expiry_timestamp_seconds",
			"When the certificate of the signing key ends; 0 while no key can sign.", nil, prometheus.Labels{"service": service}),
		keys: keys,
	})
}

// watchKubernetes shows how the connection to a cluster's API server is.
func (m *metrics) watchKubernetes(cluster string, status func() kube.ClusterStatus) {
	labels := prometheus.Labels{"cluster": cluster}
	m.registry.MustRegister(kubernetesCollector{
		status: status,
		synced: prometheus.NewDesc("pullpass_kubernetes_synced",
			"1 when everything of the resource was listed once.", []string{"resource"}, labels),
		objects: prometheus.NewDesc("pullpass_kubernetes_objects",
			"Objects of the resource that are known now.", []string{"resource"}, labels),
		confirmations: prometheus.NewDesc("pullpass_kubernetes_confirmations_total",
			"Objects that were not known and asked for by name: found, gone, or failed if that could not be known.", []string{"result"}, labels),
	})
}

// watchRedis shows how Redis answers, and how far its revocations are known.
func (m *metrics) watchRedis(redis func() state.RedisStatus, revocations func() state.RevocationsStatus) {
	gauge := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("pullpass_redis_healthy", "1 if Redis answered the last call.", func() float64 {
		if redis().Healthy {
			return 1
		}
		return 0
	})
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pullpass_redis_failures_total", Help: "Calls that Redis did not answer.",
	}, func() float64 { return float64(redis().Failures) }))
	gauge("pullpass_revocations", "Revocations that count now.", func() float64 { return float64(revocations().Entries) })
	gauge("pullpass_revocations_read_timestamp_seconds", "When the list of revocations was last read; 0: never.",
		func() float64 { return timestamp(revocations().Read) })
}

// watchPodEvents shows how many events on pods were lost, by cluster.
func (m *metrics) watchPodEvents(failures func() map[string]uint64) {
	for cluster := range failures() {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pullpass_pod_event_failures_total", Help: "Events on pods that could not be written.",
			ConstLabels: prometheus.Labels{"cluster": cluster},
		}, func() float64 { return float64(failures()[cluster]) }))
	}
}

// watchAudit shows how many audit events were lost.
func (m *metrics) watchAudit(failures func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pullpass_audit_failures_total", Help: "Audit events that could not be written.",
	}, func() float64 { return float64(failures()) }))
}

// handler serves the metrics. It is for the admin listener only.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
		EnableOpenMetrics:   true,
	})
}

// issuerCollector reads the state of the issuers' keys at each scrape.
type issuerCollector struct {
	issuers                  issuerStates
	keys, fetchedAt, fetches *prometheus.Desc
}

func newIssuerCollector(issuers issuerStates) issuerCollector {
	return issuerCollector{
		issuers: issuers,
		keys: prometheus.NewDesc("pullpass_issuer_keys",
			"Keys of the cluster's issuer that are believed now.", []string{"cluster"}, nil),
		fetchedAt: prometheus.NewDesc("pullpass_issuer_keys_fetched_timestamp_seconds",
			"When the keys were last fetched; 0: never.", []string{"cluster"}, nil),
		fetches: prometheus.NewDesc("pullpass_issuer_key_fetches_total",
			"Attempts to fetch the keys.", []string{"cluster", "result"}, nil),
	}
}

func (c issuerCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.keys
	descs <- c.fetchedAt
	descs <- c.fetches
}

func (c issuerCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.issuers.Status() {
		out <- prometheus.MustNewConstMetric(c.keys, prometheus.GaugeValue, float64(s.Keys), s.Cluster)
		out <- prometheus.MustNewConstMetric(c.fetchedAt, prometheus.GaugeValue, timestamp(s.FetchedAt), s.Cluster)
		out <- prometheus.MustNewConstMetric(c.fetches, prometheus.CounterValue, float64(s.Fetches-s.Failures), s.Cluster, "success")
		out <- prometheus.MustNewConstMetric(c.fetches, prometheus.CounterValue, float64(s.Failures), s.Cluster, "failure")
	}
}

// kubernetesCollector reads the state of a connection at each scrape.
type kubernetesCollector struct {
	status                         func() kube.ClusterStatus
	synced, objects, confirmations *prometheus.Desc
}

func (c kubernetesCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.synced
	descs <- c.objects
	descs <- c.confirmations
}

func (c kubernetesCollector) Collect(out chan<- prometheus.Metric) {
	status := c.status()
	for _, r := range status.Resources {
		synced := 0.0
		if r.Synced {
			synced = 1
		}
		out <- prometheus.MustNewConstMetric(c.synced, prometheus.GaugeValue, synced, r.Resource)
		out <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(r.Objects), r.Resource)
	}
	for result, n := range map[string]uint64{"found": status.Gets.Found, "gone": status.Gets.Gone, "failed": status.Gets.Failed} {
		out <- prometheus.MustNewConstMetric(c.confirmations, prometheus.CounterValue, float64(n), result)
	}
}

type signingKeyCollector struct {
	expiry *prometheus.Desc
	keys   registryauth.Keys
}

func (c signingKeyCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.expiry }

func (c signingKeyCollector) Collect(out chan<- prometheus.Metric) {
	key, err := c.keys.Signing()
	switch {
	case err != nil:
		out <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, 0)
	case !key.NotAfter.IsZero():
		out <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, timestamp(key.NotAfter))
	}
}

// timestamp is t as Prometheus wants it, and 0 for no time.
func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
