package programs

import (
	"path/filepath"
	"testing"
)

// CredentialHelper is the project's docker credential helper.
func CredentialHelper(t testing.TB) string {
	t.Helper()
	return project(t, Checkout(t), "docker-credential-pullpass", "./cmd/docker-credential-pullpass")
}

// PodClient is a registry client for a pod.
func PodClient(t testing.TB) string {
	t.Helper()
	return project(t, e2eDir(t), "client", "./podtest/client")
}

// CSIDriver is a driver that uses package credential. It is a module of its own, as drivers are.
func CSIDriver(t testing.TB) string {
	t.Helper()
	return project(t, filepath.Join(e2eDir(t), "csidriver"), "csidriver", ".")
}

// Rancher stands in for k3s and RKE2.
func Rancher(t testing.TB) string {
	t.Helper()
	return project(t, e2eDir(t), "rancher", "./machinetest/rancher")
}
