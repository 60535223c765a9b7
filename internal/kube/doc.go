// Package kube knows the Kubernetes objects behind a token's claims, for
// internal/exchange: the annotations of ServiceAccounts, by UID.
//
// Manifests reads them from files, as kubectl prints them, for a proxy that
// cannot reach a cluster's API. It decides nothing, and it knows only the
// annotations whose keys the policy names.
package kube
