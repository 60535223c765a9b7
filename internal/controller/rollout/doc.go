// Package rollout has the nodes of a cluster installed, one after the other.
//
// An Agent runs on each node and works on that node alone. A change that needs a
// restart of the kubelet waits for the turn of its node, a Lease. The turn ends when the
// node is Ready again and a pod has pulled an image there; if it is not, no other node
// is changed to the same. What an Agent knows of its node, and others have to know, is a
// Record on the Node.
//
//	Agent   a pass over the node, over and over
//	turn    whose turn it is, and whether the roll-out is stopped
//	node    the Node: its Record, its taint, its pods that try a pull
//	List    all nodes, for people
//
// What is done on a node is package nodeinstall's. What an Agent may do in the API is
// bounded by the chart's roles and admission policy.
package rollout
