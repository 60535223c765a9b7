package metrics

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/cluster/podevents"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/state"
)

// Sources are read at each scrape. A nil or empty source has no series.
type Sources struct {
	Clusters   []string // all configured clusters
	Identities []string // likewise; their names are values of the label cluster
	Services   []string
	Files      []string // groups of files that are reloaded

	Load        func() load.Counts
	Connections func() ConnectionCounts
	Gateway     func() gateway.Load               // nil: there is none
	Upstreams   map[string]func() upstream.Status // by name
	Issuers     func() []oidc.IssuerStatus
	Kubernetes  map[string]func() kube.ClusterStatus // by cluster
	PodEvents   func() map[string]podevents.Counts
	// ObjectStatus is of clusters where the status of policy objects is written.
	ObjectStatus map[string]func() objectstatus.Status
	SigningKeys  map[string]signing.Keys // by service
	Assertions   signing.Keys            // nil: there are none
	TLS          *TLSEnds                // nil: plain HTTP
	Policy       func() *policy.Policy
	Deprecated   int // number of configuration files that a later release will not read
	Redis        func() state.RedisStatus
	Revocations  func() state.RevocationsStatus
	Audit        func() audit.Status
	Telemetry    func() uint64
}

// ConnectionCounts are those of the public listener.
type ConnectionCounts struct {
	Open, Most int
	Refused    uint64 // since the start, also requests
}

func (s *Sources) upstreamNames() []string { return slices.Collect(maps.Keys(s.Upstreams)) }

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

var _ prometheus.Collector = (*Metrics)(nil)

// Describe is part of prometheus.Collector, for the metrics that are read at each scrape.
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range m.read {
		descs <- desc
	}
}

// Collect is part of prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	s, r := m.current.Load().Sources, reading{m.read, out}
	if s.Load != nil {
		load := s.Load()
		r.show(requestsInFlight, float64(load.InFlight))
		r.show(requestsWaiting, float64(load.Waiting))
	}
	if s.Connections != nil {
		counts := s.Connections()
		r.show(openConnections, float64(counts.Open))
		r.show(connectionsLimit, float64(counts.Most))
		r.show(connectionsRefused, float64(counts.Refused))
	}
	if s.Gateway != nil {
		r.gateway(s.Gateway())
	}
	for name, status := range s.Upstreams {
		r.upstream(name, status())
	}
	if s.Issuers != nil {
		for _, status := range s.Issuers() {
			r.issuer(status)
		}
	}
	for cluster, status := range s.Kubernetes {
		r.cluster(cluster, status())
	}
	if s.PodEvents != nil {
		for cluster, counts := range s.PodEvents() {
			r.show(podEvents, float64(counts.Sent), cluster)
			r.show(podEventFailures, float64(counts.Failed), cluster)
		}
	}
	for cluster, status := range s.ObjectStatus {
		r.objectStatus(cluster, status())
	}
	for service, keys := range s.SigningKeys {
		r.signingKey(service, keys)
	}
	if s.Assertions != nil {
		r.assertionKey(s.Assertions)
	}
	if s.TLS != nil {
		r.tls(*s.TLS)
	}
	if s.Policy != nil {
		policy := s.Policy()
		r.show(policyInfo, 1, policy.Revision()[:revisionLength])
		r.show(deprecatedFiles, float64(s.Deprecated+len(policy.Deprecated())))
	}
	if s.Redis != nil {
		r.redis(s.Redis())
	}
	if s.Revocations != nil {
		r.revocations(s.Revocations())
	}
	if s.Audit != nil {
		status := s.Audit()
		r.show(auditFailures, float64(status.Failures))
		r.show(auditWaiting, float64(status.Waiting))
	}
	if s.Telemetry != nil {
		r.show(telemetryFailures, float64(s.Telemetry()))
	}
}

// timestamp returns t as a Unix time in seconds, and 0 for the zero time.
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
