package programs

import (
	"path/filepath"
	"testing"
)

// The programs here take minutes to build, and "make readers" alone runs them. Each is a module of its own below e2e/readers.

// K8schain reads an image with the keychain of that name, as controllers do.
func K8schain(t testing.TB) string {
	t.Helper()
	return project(t, filepath.Join(e2eDir(t), "readers/k8schain"), "k8schain", ".")
}

// Syft lists what is in an image.
func Syft(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/syft", pkg: "github.com/anchore/syft/cmd/syft"}.build(t)
}

// KyvernoCLI applies policies of Kyverno.
func KyvernoCLI(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/kyverno", pkg: "github.com/kyverno/kyverno/cmd/cli/kubectl-kyverno"}.build(t)
}

// PolicyTester applies policies of Sigstore's policy-controller.
func PolicyTester(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/policy-controller", pkg: "github.com/sigstore/policy-controller/cmd/tester"}.build(t)
}

// Trivy searches images for vulnerabilities.
func Trivy(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/trivy", pkg: "github.com/aquasecurity/trivy/cmd/trivy", experiment: "jsonv2"}.build(t)
}
