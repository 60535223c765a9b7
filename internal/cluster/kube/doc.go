// Package kube knows the current state of the objects that a token names, and the content of the
// policy objects. It implements the interfaces that package exchange declares.
//
//	Cluster        one cluster's API server: watched, and asked before any refusal
//	Directory      the clusters by name
//	PolicyObjects  which AccessPolicies and RepositoryAccesses of a cluster count
//	Manifests      ServiceAccounts from files, for a proxy that cannot reach the API
//
// It finds objects by cluster and UID, because names are reused. Package oidc handles tokens,
// package policy the meaning of annotations and labels, and package exchange the rights of nodes.
// Package kube never reads input from nodes or plugins.
package kube
