// Package fleet is the cluster that the load tests imagine: which pods are on which node, and whose they are. The tokens
// that are sent (issuer) and the simulation (model) take it from here, so that both speak of the same storm.
package fleet

import "fmt"

// A cluster as large as Kubernetes supports has 5,000 nodes and 150,000 pods: 30 on each node.
const (
	Nodes       = 5000
	PodsPerNode = 30
	// DaemonSets have a pod on every node, so each of their ServiceAccounts pulls on all nodes at once.
	DaemonSets = 5
	// Workloads share the other pods evenly: 62 or 63 each in a cluster of this size.
	Workloads = 2000
)

// Pod is a pod and the names that its token carries.
type Pod struct {
	Namespace, ServiceAccount, Name, Node string
}

// PodOf returns the pod with a number. The pods of a node follow each other: node n has n*PodsPerNode and those after it.
func PodOf(number int) Pod {
	account := ServiceAccountOf(number)
	p := Pod{
		Namespace:      fmt.Sprintf("team-%d", account/10),
		ServiceAccount: fmt.Sprintf("app-%d", account),
		Node:           fmt.Sprintf("node-%05d", number/PodsPerNode),
	}
	if account >= Workloads {
		p.Namespace, p.ServiceAccount = "team-platform", fmt.Sprintf("daemon-%d", account-Workloads)
	}
	p.Name = fmt.Sprintf("%s-%07d", p.ServiceAccount, number)
	return p
}

// ServiceAccountOf numbers the ServiceAccount of a pod: those of workloads come first, from 0, then those of DaemonSets.
func ServiceAccountOf(number int) int {
	node, slot := number/PodsPerNode, number%PodsPerNode
	if slot < DaemonSets {
		return Workloads + slot
	}
	return (node*(PodsPerNode-DaemonSets) + slot - DaemonSets) % Workloads
}
