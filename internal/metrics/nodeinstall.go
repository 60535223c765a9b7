package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var (
	nodeLabel = label{name: "node", from: fromCode, means: "the node that it runs on"}

	nodeInstallState = &metric{
		name: "pullpass_node_install_state", kind: gauge, read: true,
		help:   "1 for the state that the node is in, 0 for the others. Not there before it was looked at.",
		labels: []label{nodeLabel, {name: "state", values: []string{"waiting", "installing", "verifying", "ready", "failed", "rejected", "removing"}, means: "docs/nodes.md"}},
		act:    "failed, rejected: `pullpass node-install status` has the reason. No other node is changed to the same until it is gone.",
	}
	nodeInstallSince = &metric{
		name: "pullpass_node_install_since_timestamp_seconds", kind: gauge, read: true,
		help:   "Since when the node is in its state.",
		labels: []label{nodeLabel},
	}
	nodeInstallRestarts = &metric{
		name: "pullpass_node_install_restarts_total", kind: counter, read: true,
		help:   "Changes with which the kubelet was restarted.",
		labels: []label{nodeLabel},
		act:    "More than one for each change that you make: something undoes what is installed. The log says what was repaired.",
	}
	nodeInstallMetrics = []*metric{nodeInstallState, nodeInstallSince, nodeInstallRestarts}
)

// NodeInstall is what "pullpass node-install run" says of its node.
type NodeInstall struct {
	Node     string
	State    string    // empty: not known yet
	Since    time.Time // of the state
	Restarts uint64
}

// NodeInstallHandler serves the metrics of an installer. It has none of those of a proxy.
func NodeInstallHandler(read func() NodeInstall) http.Handler {
	c := nodeInstallCollector{read: read, descs: map[*metric]*prometheus.Desc{}}
	for _, d := range nodeInstallMetrics {
		c.descs[d] = prometheus.NewDesc(d.name, d.help, d.labelNames(), nil)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout})
}

// nodeInstallCollector reads at each scrape.
type nodeInstallCollector struct {
	read  func() NodeInstall
	descs map[*metric]*prometheus.Desc
}

func (c nodeInstallCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

func (c nodeInstallCollector) Collect(out chan<- prometheus.Metric) {
	n, r := c.read(), reading{c.descs, out}
	r.show(nodeInstallRestarts, float64(n.Restarts), n.Node)
	if n.State == "" {
		return
	}
	for _, state := range nodeInstallState.labels[1].values {
		value := 0.0
		if state == n.State {
			value = 1
		}
		r.show(nodeInstallState, value, n.Node, state)
	}
	r.show(nodeInstallSince, timestamp(n.Since), n.Node)
}
