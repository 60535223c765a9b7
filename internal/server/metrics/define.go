package metrics

import (
	"github.com/pullpass/pullpass/internal/exchange"
)

// metric says all about one metric: to Prometheus, and to the readers of
// docs/reference/metrics.md, which is made of this (make docs).
type metric struct {
	name    string
	kind    kind
	help    string // what it says
	labels  []label
	act     string    // what to do when it is bad; empty: it is for graphs
	buckets []float64 // of a histogram, as upper bounds
	read    bool      // from sources, at each scrape; else it is counted as things happen
}

// kind is the type of a metric.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// label is a label of a metric, with all that can be its value: a closed set, or
// names from the configuration.
type label struct {
	name   string
	values []string
	from   source
	other  string // stands for every other value
	means  string // for the document
}

// source says where the values of a label come from that are not a closed set.
type source string

const (
	fromCode      source = "code" // as many as there are things of ours, whatever is asked of us
	fromClusters  source = "clusters"
	fromServices  source = "services"
	fromFiles     source = "files" // groups that are re-read
	fromUpstreams source = "upstreams"
)

// Values that several labels have.
const (
	resultSuccess = "success"
	resultFailure = "failure"
	resultPassed  = "passed"
	resultFailed  = "failed"

	unknownService = "unknown" // every service that is not configured
	otherValue     = "other"   // what a label cannot have: a fault of ours, if it is ever seen
)

var (
	clusterLabel = label{name: "cluster", from: fromClusters, means: "`clusters[].name`"}
	// issuerLabel keeps the name of clusterLabel: queries and alerts know it.
	issuerLabel  = label{name: "cluster", from: fromClusters, means: "`clusters[].name` or `identities[].name`"}
	serviceLabel = label{name: "service", from: fromServices, means: "`registries[].service`"}
	// Of requests, neither is always known.
	requestedCluster = label{name: "cluster", from: fromClusters, means: "`clusters[].name`; empty: not known"}
	requestedIssuer  = label{name: "cluster", from: fromClusters, means: "`clusters[].name` or `identities[].name`; empty: not known"}
	requestedService = label{name: "service", from: fromServices, other: unknownService, means: "`registries[].service`; `unknown`: any other"}
	outcomeLabel     = label{name: "result", values: []string{resultSuccess, resultFailure}, other: otherValue}
)

// group is metrics that belong together.
type group struct {
	title   string
	metrics []*metric
}

// allMetrics returns all there are of our own.
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
