// Package kube knows what Kubernetes says now of the objects that a token
// names, and what objects of the policy say. It implements the interfaces that package
// exchange declares.
//
//	Cluster        one cluster's API server: watched, and asked before anybody is refused
//	Directory      the clusters by name
//	PolicyObjects  which AccessPolicies and RepositoryAccesses of a cluster count
//	Manifests      ServiceAccounts from files, for a proxy that cannot reach the API
//
// It owns how objects are found: by cluster and UID, because names are reused.
// It does not own tokens (package oidc), what an annotation or a label means
// (package policy), nor what a node may do (package exchange). It never reads what
// a node or a plugin sends.
package kube
