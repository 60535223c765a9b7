// Package cluster contains the packages that read from Kubernetes API servers and write to them.
//
//	kube          ServiceAccounts, Pods, Nodes, Namespaces and policy objects, by watches and requests
//	clients       clients of an API server, with the types in use
//	pages         lists in pages of bounded size in bytes
//	controller    a Lease that one replica holds, a sink for events
//	objectstatus  writes the status of AccessPolicy and RepositoryAccess objects
//	podevents     writes refusals as events on pods
//	keysecrets    makes and renews the certificates and keys in the Secrets of the chart
//
// It implements interfaces that package exchange declares. It makes no decisions: package policy
// does. Package node contains the tools for nodes. Only
// packages keysecrets and pullsecrets read and write Secrets.
package cluster
