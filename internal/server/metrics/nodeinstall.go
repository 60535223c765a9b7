package metrics

import (
	"net/http"

	"github.com/pullpass/pullpass/internal/node/progress"
)

var (
	nodeLabel = label{name: "node", from: fromCode, means: "name of its node"}

	nodeInstallState = &metric{
		name: "pullpass_node_install_state", kind: gauge, read: true,
		help:   "1 for the state of the node, 0 for the others. Absent before the first check.",
		labels: []label{nodeLabel, {name: "state", values: ClosedSet(progress.States()...), means: "see [nodes.md](../how-to/nodes.md)"}},
		act:    alert("PullpassNodeInstallFails"),
	}
	nodeInstallSince = &metric{
		name: "pullpass_node_install_since_timestamp_seconds", kind: gauge, read: true,
		help:   "Time at which the node entered its state.",
		labels: []label{nodeLabel},
	}
	nodeInstallRestarts = &metric{
		name: "pullpass_node_install_restarts_total", kind: counter, read: true,
		help:   "Changes that restarted the kubelet.",
		labels: []label{nodeLabel},
		act:    alert("PullpassNodeInstallUndone"),
	}
	nodeInstallRepairs = &metric{
		name: "pullpass_node_install_repairs_total", kind: counter, read: true,
		help:   "Files that another program changed, and that were restored at once.",
		labels: []label{nodeLabel},
		act:    alert("PullpassNodeInstallUndone"),
	}
	nodeInstallMetrics = []*metric{nodeInstallState, nodeInstallSince, nodeInstallRestarts, nodeInstallRepairs}
)

// NodeInstall returns the metrics of "pullpass node-install run" on a node, and of its
// process.
func NodeInstall(node string, status func() progress.Status) http.Handler {
	return newProgram(nodeInstallMetrics, func(r reading) {
		s := status()
		r.show(nodeInstallRestarts, float64(s.Restarts), node)
		r.show(nodeInstallRepairs, float64(s.Repairs), node)
		if s.State == "" {
			return
		}
		for _, state := range progress.States() {
			r.show(nodeInstallState, number(state == s.State), node, string(state))
		}
		r.show(nodeInstallSince, timestamp(s.Since), node)
	})
}
