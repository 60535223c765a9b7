// Package pullsecrets finds out who in a cluster still pulls images with
// imagePullSecrets, and which ServiceAccount tokens are still kept in Secrets
// (KEP-2799).
//
//	Read        asks an API server once, page by page
//	Inventory   what was found: ServiceAccounts, workloads, pull Secrets, legacy tokens
//
// It owns what may be remembered of a Secret: for which of the registries that
// the caller named it is, and whether a password in it is a ServiceAccount
// token. Nothing that is written in a Secret leaves this package, not even a
// host name. It does not own what to do about it (package migration).
//
// It needs rights that the proxy must not have. Only a command that runs with an
// administrator's kubeconfig uses it.
package pullsecrets
