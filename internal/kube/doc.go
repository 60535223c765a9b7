// Package kube knows what Kubernetes says of ServiceAccounts now. It implements
// the interfaces that package exchange declares.
//
//	Manifests   ServiceAccounts from files, for a proxy that cannot reach the API
//
// It owns how objects are found: by cluster and UID, because names are reused.
// It does not own tokens (package oidc), nor what an annotation means (package
// exchange). It never reads what a node or a plugin sends.
package kube
