package metrics

import (
	"net/http"

	"github.com/pullpass/pullpass/internal/node/rollout"
)

var (
	nodeLabel = label{name: "node", from: fromCode, means: "the node that it runs on"}

	nodeInstallState = &metric{
		name: "pullpass_node_install_state", kind: gauge, read: true,
		help:   "1 for the state that the node is in, 0 for the others. Not there before it was looked at.",
		labels: []label{nodeLabel, {name: "state", values: ClosedSet(rollout.States()...), means: "docs/how-to/nodes.md"}},
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
	nodeInstallRepairs = &metric{
		name: "pullpass_node_install_repairs_total", kind: counter, read: true,
		help:   "Files that another program changed, and that were put back at once.",
		labels: []label{nodeLabel},
		act:    "Find the program: the log and the events NodeInstallRepaired name the files. docs/how-to/kubelet.md has what to do about Spegel.",
	}
	nodeInstallMetrics = []*metric{nodeInstallState, nodeInstallSince, nodeInstallRestarts, nodeInstallRepairs}
)

// NodeInstall returns the metrics of "pullpass node-install run" on a node, and of its
// process.
func NodeInstall(node string, status func() rollout.Status) http.Handler {
	return newProgram(nodeInstallMetrics, func(r reading) {
		s := status()
		r.show(nodeInstallRestarts, float64(s.Restarts), node)
		r.show(nodeInstallRepairs, float64(s.Repairs), node)
		if s.State == "" {
			return
		}
		for _, state := range rollout.States() {
			r.show(nodeInstallState, number(state == s.State), node, string(state))
		}
		r.show(nodeInstallSince, timestamp(s.Since), node)
	})
}
