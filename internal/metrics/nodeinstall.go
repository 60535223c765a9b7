package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pullpass/pullpass/internal/controller/rollout"
)

var (
	nodeLabel = label{name: "node", from: fromCode, means: "the node that it runs on"}

	nodeInstallState = &metric{
		name: "pullpass_node_install_state", kind: gauge, read: true,
		help:   "1 for the state that the node is in, 0 for the others. Not there before it was looked at.",
		labels: []label{nodeLabel, {name: "state", values: ClosedSet(rollout.States()...), means: "docs/nodes.md"}},
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

// nodeInstall shows them at each scrape. It implements prometheus.Collector.
type nodeInstall struct {
	descs  map[*metric]*prometheus.Desc
	node   string
	status func() rollout.Status
}

// NodeInstall returns the metrics of "pullpass node-install run" on a node, and of its
// process. As with PullSecrets, those of a proxy are not among them.
func NodeInstall(node string, status func() rollout.Status) http.Handler {
	c := &nodeInstall{map[*metric]*prometheus.Desc{}, node, status}
	for _, d := range nodeInstallMetrics {
		c.descs[d] = prometheus.NewDesc(d.name, d.help, d.labelNames(), nil)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return handler(r)
}

func (c *nodeInstall) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

func (c *nodeInstall) Collect(out chan<- prometheus.Metric) {
	s, r := c.status(), reading{c.descs, out}
	r.show(nodeInstallRestarts, float64(s.Restarts), c.node)
	if s.State == "" {
		return
	}
	for _, state := range rollout.States() {
		r.show(nodeInstallState, number(state == s.State), c.node, string(state))
	}
	r.show(nodeInstallSince, timestamp(s.Since), c.node)
}
