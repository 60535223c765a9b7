package metrics

import (
	"strings"

	"github.com/pullpass/pullpass/internal/exchange"
)

// metric describes one metric for Prometheus and for docs/reference/metrics.md, which
// "make docs" generates from it.
type metric struct {
	name    string
	kind    kind
	help    string // its meaning
	labels  []label
	act     string    // remedy for a bad value; empty: the metric is for graphs
	buckets []float64 // of a histogram, as upper bounds
	read    bool      // read from Sources at each scrape; else counted at each event
}

// alert refers to the remedies for the alerts about a metric.
func alert(names ...string) string {
	var links []string
	for _, name := range names {
		links = append(links, "["+name+"](../how-to/operations.md#"+strings.ToLower(name)+")")
	}
	return strings.Join(links, ", ")
}

// kind is the type of a metric.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// label is a label of a metric with all its possible values: a closed set, or names from
// the configuration.
type label struct {
	name   string
	values []string
	from   source
	other  string // stands for every other value
	means  string // for the document
}

// source is the origin of a label's values that are not a closed set.
type source string

const (
	fromCode      source = "code" // set by our code, independent of requests
	fromClusters  source = "clusters"
	fromServices  source = "services"
	fromFiles     source = "files" // groups of files that are reloaded
	fromUpstreams source = "upstreams"
)

// Values of several labels.
const (
	resultSuccess = "success"
	resultFailure = "failure"
	resultPassed  = "passed"
	resultFailed  = "failed"

	unknownService = "unknown" // every service that is not configured
	otherValue     = "other"   // not a possible value of the label: a bug of ours if it appears
)

var (
	clusterLabel = label{name: "cluster", from: fromClusters, means: "`clusters[].name`"}
	// issuerLabel keeps the name of clusterLabel: queries and alerts know it.
	issuerLabel  = label{name: "cluster", from: fromClusters, means: "`clusters[].name` or `identities[].name`"}
	serviceLabel = label{name: "service", from: fromServices, means: "`registries[].service`"}
	// The cluster or the service of a request can be unknown.
	requestedCluster = label{name: "cluster", from: fromClusters, means: "`clusters[].name`; empty: unknown"}
	requestedIssuer  = label{name: "cluster", from: fromClusters, means: "`clusters[].name` or `identities[].name`; empty: unknown"}
	requestedService = label{name: "service", from: fromServices, other: unknownService, means: "`registries[].service`; `unknown`: any other"}
	outcomeLabel     = label{name: "result", values: []string{resultSuccess, resultFailure}, other: otherValue}
)

// group is a section of the document.
type group struct {
	title   string
	metrics []*metric
}

// allMetrics returns our own metrics, without those of the Go runtime.
func allMetrics() []group {
	return []group{
		{"Token requests", exchangeMetrics},
		{"The gateway", gatewayMetrics},
		{"Issuers and API servers", upstreamMetrics},
		{"Keys and certificates", keyMetrics},
		{"Policy and other files", fileMetrics},
		{"Redis and revocations", stateMetrics},
		{"The process", processMetrics},
		{`"pullpass pull-secrets controller"`, pullSecretMetrics},
		{`"pullpass node-install run"`, nodeInstallMetrics},
	}
}

func (d *metric) labelNames() []string {
	names := make([]string, len(d.labels))
	for i := range d.labels {
		names[i] = d.labels[i].name
	}
	return names
}

// ClosedSet turns a closed set of constants into values of a label.
func ClosedSet[S ~string](set ...S) []string {
	values := make([]string, len(set))
	for i, s := range set {
		values[i] = string(s)
	}
	return values
}

var _ exchange.Recorder = (*Metrics)(nil)
