package metrics

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/state"
)

const (
	maxScrapes    = 4 // at a time
	scrapeTimeout = 10 * time.Second
)

// Metrics has the series of /metrics. It lives as long as the process; Use gives it the
// sources of a new configuration. All methods are safe for concurrent use.
//
// No label has a value that a caller chose: no repository, pod, token id or address, and
// only configured services and clusters.
type Metrics struct {
	Registry   *prometheus.Registry
	counters   map[*metric]*prometheus.CounterVec
	gauges     map[*metric]*prometheus.GaugeVec
	histograms map[*metric]*prometheus.HistogramVec
	read       map[*metric]*prometheus.Desc
	current    atomic.Pointer[knownSources]
}

// knownSources are sources with the possible names in labels.
type knownSources struct {
	Sources
	known map[source]map[string]bool
}

func New(version string) *Metrics {
	m := &Metrics{
		Registry:   prometheus.NewRegistry(),
		counters:   map[*metric]*prometheus.CounterVec{},
		gauges:     map[*metric]*prometheus.GaugeVec{},
		histograms: map[*metric]*prometheus.HistogramVec{},
		read:       map[*metric]*prometheus.Desc{},
	}
	for _, c := range allMetrics() {
		for _, d := range c.metrics {
			m.define(d)
		}
	}
	m.Registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Use(Sources{})
	m.gauges[buildInfo].WithLabelValues(version).Set(1)
	return m
}

func (m *Metrics) define(d *metric) {
	switch {
	case d.read:
		m.read[d] = prometheus.NewDesc(d.name, d.help, d.labelNames(), nil)
	case d.kind == counter:
		m.counters[d] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.labelNames())
		m.Registry.MustRegister(m.counters[d])
	case d.kind == gauge:
		m.gauges[d] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.name, Help: d.help}, d.labelNames())
		m.Registry.MustRegister(m.gauges[d])
	case d.kind == histogram:
		m.histograms[d] = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: d.name, Help: d.help,
			Buckets: d.buckets, // for readers without native histograms
			// Each bucket ends at most a tenth above the one before. When there are too
			// many, they begin anew after an hour, or get wider before that.
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  160,
			NativeHistogramMinResetDuration: time.Hour,
		}, d.labelNames())
		m.Registry.MustRegister(m.histograms[d])
	}
}

// Use replaces the sources of metrics and the known names. Counts stay, except those of
// names that are no longer known.
func (m *Metrics) Use(s Sources) {
	set := func(names []string) map[string]bool {
		known := map[string]bool{}
		for _, name := range names {
			known[name] = true
		}
		return known
	}
	before := m.current.Swap(&knownSources{s, map[source]map[string]bool{
		fromClusters: set(slices.Concat(s.Clusters, s.Identities)), fromServices: set(s.Services), fromFiles: set(s.Files), fromUpstreams: set(s.upstreamNames()),
	}})
	if before != nil {
		m.forget(before.known)
	}
	// Series begin at 0. The value says that nothing happened, and rate() misses the first event
	// of a series that begins with it.
	for _, cluster := range slices.Concat(s.Clusters, []string{""}) {
		m.counters[legacyTokens].WithLabelValues(cluster)
	}
	for _, issuer := range slices.Concat(s.Clusters, s.Identities) {
		for _, mode := range []exchange.ReplayMode{exchange.ReplayAudit, exchange.ReplayEnforce} {
			m.counters[replays].WithLabelValues(issuer, string(mode), string(exchange.ReplayOtherCaller))
		}
	}
	m.counters[trialDifferences].WithLabelValues("lost")
	for _, upstream := range s.upstreamNames() {
		for _, kind := range gateway.Kinds() {
			m.counters[gatewayRequests].WithLabelValues(upstream, kind, string(exchange.ResultUnavailable), string(refusal.UpstreamRedirect))
		}
	}
	for _, limit := range limitLabel.values {
		m.counters[limited].WithLabelValues(limit)
	}
	for _, name := range s.Files {
		m.counters[reloads].WithLabelValues(name, resultFailure)
	}
	if s.Redis != nil {
		for _, operation := range state.Operations() {
			for _, result := range outcomeLabel.values {
				m.histograms[redisDuration].WithLabelValues(string(operation), result)
			}
		}
	}
}

// forget drops the counts of names that are no longer known.
func (m *Metrics) forget(before map[source]map[string]bool) {
	known := m.current.Load().known
	for _, c := range allMetrics() {
		for _, d := range c.metrics {
			for _, l := range d.labels {
				for name := range before[l.from] {
					if !known[l.from][name] {
						m.deleteSeries(d, prometheus.Labels{l.name: name})
					}
				}
			}
		}
	}
}

func (m *Metrics) deleteSeries(d *metric, labels prometheus.Labels) {
	switch {
	case d.read: // from the current sources
	case d.kind == counter:
		m.counters[d].DeletePartialMatch(labels)
	case d.kind == gauge:
		m.gauges[d].DeletePartialMatch(labels)
	case d.kind == histogram:
		m.histograms[d].DeletePartialMatch(labels)
	}
}

func (m *Metrics) count(d *metric, values ...string) {
	m.counters[d].WithLabelValues(m.bounded(d, values)...).Inc()
}

func (m *Metrics) add(d *metric, n int64, values ...string) {
	if n > 0 {
		m.counters[d].WithLabelValues(m.bounded(d, values)...).Add(float64(n))
	}
}

func (m *Metrics) observe(d *metric, took time.Duration, values ...string) {
	m.histograms[d].WithLabelValues(m.bounded(d, values)...).Observe(took.Seconds())
}

// bounded replaces, in place, values that are not possible for their label. Otherwise any
// client of the endpoint could fill the memory of Prometheus.
func (m *Metrics) bounded(d *metric, values []string) []string {
	known := m.current.Load().known
	for i := range d.labels {
		switch l := &d.labels[i]; {
		case l.from == fromCode:
		case l.values != nil && slices.Contains(l.values, values[i]):
		case known[l.from][values[i]]:
		default:
			values[i] = l.other
		}
	}
	return values
}

// Reloaded counts one read of a group of files.
func (m *Metrics) Reloaded(name string, err error) {
	if !m.current.Load().known[fromFiles][name] {
		return // removed from the configuration meanwhile
	}
	if err != nil {
		m.count(reloads, name, resultFailure)
		return
	}
	m.count(reloads, name, resultSuccess)
	m.gauges[lastReload].WithLabelValues(name).SetToCurrentTime()
}

// RedisCall counts one call to Redis.
func (m *Metrics) RedisCall(operation state.Operation, took time.Duration, err error) {
	result := resultSuccess
	if err != nil {
		result = resultFailure
	}
	m.observe(redisDuration, took, string(operation), result)
}

// Handler serves the metrics. It is for the admin listener only.
func (m *Metrics) Handler() http.Handler { return handler(m.Registry) }

func handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
		EnableOpenMetrics:   true,
	})
}
