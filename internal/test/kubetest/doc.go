// Package kubetest is Kubernetes for tests that need no real one: API servers that
// answer what a test tells them, and tokens of ServiceAccounts.
package kubetest
