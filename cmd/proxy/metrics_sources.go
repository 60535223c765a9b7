package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/signing"
	"github.com/pullpass/pullpass/internal/state"
)

// sources are what is read at each scrape. What is nil or empty is not there.
type sources struct {
	clusters []string // all that are configured
	services []string
	files    []string // groups that are re-read

	load        func() exchange.Load
	connections func() connectionCounts
	issuers     func() []oidc.IssuerStatus
	kubernetes  map[string]func() kube.ClusterStatus // by cluster
	podEvents   func() map[string]kube.PodEventCounts
	signingKeys map[string]signing.Keys // by service
	tls         *tlsEnds                // nil: plain HTTP
	policy      func() *policy.Policy
	redis       func() state.RedisStatus
	revocations func() state.RevocationsStatus
	audit       func() auditStatus
	telemetry   func() uint64
}

// sources are what metrics are read from.
func (s *service) sources(g *generation) sources {
	from := sources{
		load: g.handler.Load, connections: s.connections.counts, issuers: g.verifier.Status, podEvents: g.objects.podRecorders().counts, audit: s.audit.Status, telemetry: s.telemetry.failures(),
		policy:     g.exchanger.Policy,
		kubernetes: map[string]func() kube.ClusterStatus{}, signingKeys: map[string]signing.Keys{},
	}
	for i := range g.cfg.Clusters {
		from.clusters = append(from.clusters, g.cfg.Clusters[i].Name)
	}
	for _, group := range s.watched(g) {
		from.files = append(from.files, group.Name)
	}
	for service, keys := range g.keys {
		from.services = append(from.services, service)
		from.signingKeys[service] = keys
	}
	for _, c := range g.objects.connected {
		from.kubernetes[c.name] = c.Status
	}
	if g.tls != nil {
		from.tls = &g.tls.ends
	}
	if s.shared.redis != nil {
		from.redis, from.revocations = s.shared.redis.Status, s.shared.list.Status
	}
	return from
}

// connectionCounts are those of the public listener.
type connectionCounts struct {
	Open, Most int
	Refused    uint64 // since the start, also requests
}

// reading is one scrape.
type reading struct {
	descs map[*metric]*prometheus.Desc
	out   chan<- prometheus.Metric
}

func (r reading) show(d *metric, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if d.kind == counter {
		kind = prometheus.CounterValue
	}
	r.out <- prometheus.MustNewConstMetric(r.descs[d], kind, value, labels...)
}

var _ prometheus.Collector = (*metrics)(nil)

// Describe is part of prometheus.Collector, for what is read at each scrape.
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range m.read {
		descs <- desc
	}
}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	s, r := m.current.Load().sources, reading{m.read, out}
	if s.load != nil {
		load := s.load()
		r.show(requestsInFlight, float64(load.InFlight))
		r.show(requestsWaiting, float64(load.Waiting))
	}
	if s.connections != nil {
		counts := s.connections()
		r.show(openConnections, float64(counts.Open))
		r.show(connectionsLimit, float64(counts.Most))
		r.show(connectionsRefused, float64(counts.Refused))
	}
	if s.issuers != nil {
		for _, status := range s.issuers() {
			r.issuer(status)
		}
	}
	for cluster, status := range s.kubernetes {
		r.cluster(cluster, status())
	}
	if s.podEvents != nil {
		for cluster, counts := range s.podEvents() {
			r.show(podEvents, float64(counts.Sent), cluster)
			r.show(podEventFailures, float64(counts.Failed), cluster)
		}
	}
	for service, keys := range s.signingKeys {
		r.signingKey(service, keys)
	}
	if s.tls != nil {
		r.tls(*s.tls)
	}
	if s.policy != nil {
		r.show(policyInfo, 1, s.policy().Revision()[:revisionLength])
	}
	if s.redis != nil {
		r.redis(s.redis())
	}
	if s.revocations != nil {
		r.revocations(s.revocations())
	}
	if s.audit != nil {
		status := s.audit()
		r.show(auditFailures, float64(status.Failures))
		r.show(auditWaiting, float64(status.Waiting))
	}
	if s.telemetry != nil {
		r.show(telemetryFailures, float64(s.telemetry()))
	}
}

// timestamp is t as Prometheus wants it, and 0 for no time.
func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
