// Package rollout installs the nodes of a cluster one after the other.
//
// An Agent runs on each node and changes only that node. A change that restarts the kubelet waits
// for the turn of its node, which a Lease represents. So does new content for hosts.toml, the CA or
// the plugin, unless the last node became Ready with the revision. It leaves out the plugin. The turn ends when the node is Ready again
// and a pod has pulled an image there. If that fails, no other node gets the same change. A Record
// (package progress) on the Node publishes the state of the node to other Agents and to people.
//
//	Agent   passes over the node, again and again
//	turn    the node whose turn it is, and whether the roll-out is stopped
//	node    the Node: its Record, its taint, its pods that try a pull
//
// Package nodeinstall makes the changes on a node. The chart's roles and admission policy limit the
// API rights of an Agent.
package rollout
