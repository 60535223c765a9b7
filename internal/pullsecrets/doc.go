// Package pullsecrets finds the workloads in a cluster that still pull images with
// imagePullSecrets, and the ServiceAccount tokens that are still stored in Secrets (KEP-2799).
//
//	Read        asks an API server once, page by page
//	Inventory   the result: ServiceAccounts, workloads, pull Secrets, legacy tokens
//
// It decides which facts about a Secret may be kept: its registries, among those that the caller
// named, and whether one of its passwords is a ServiceAccount token. No text from a Secret leaves
// this package, not even a host name. Package migration decides what to do about each Secret.
//
// It needs rights that the proxy must not have. Only a command that runs with an administrator's
// kubeconfig uses it.
package pullsecrets
