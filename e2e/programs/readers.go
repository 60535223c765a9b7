package programs

import (
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
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

// KyvernoController is Kyverno's admission controller, which verifies images before the API server creates their pods.
func KyvernoController(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/kyverno", pkg: "github.com/kyverno/kyverno/cmd/kyverno"}.build(t)
}

// KyvernoReports is Kyverno's reports controller, which verifies the images of pods that exist.
func KyvernoReports(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/kyverno", pkg: "github.com/kyverno/kyverno/cmd/reports-controller"}.build(t)
}

// KyvernoCRDs is the directory of its CustomResourceDefinitions.
func KyvernoCRDs(t testing.TB) string {
	t.Helper()
	return filepath.Join(sources(t, "readers/kyverno", "github.com/kyverno/kyverno"), "config/crds")
}

// PolicyTester applies policies of Sigstore's policy-controller.
func PolicyTester(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/policy-controller", pkg: "github.com/sigstore/policy-controller/cmd/tester"}.build(t)
}

// PolicyController is Sigstore's policy-controller, which verifies images before the API server creates their pods.
func PolicyController(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/policy-controller", pkg: "github.com/sigstore/policy-controller/cmd/webhook"}.build(t)
}

// PolicyControllerManifests are its files, without the Deployment, in their order.
func PolicyControllerManifests(t testing.TB) []string {
	t.Helper()
	directory := sources(t, "readers/policy-controller", "github.com/sigstore/policy-controller")
	files := testenv.Value(filepath.Glob(filepath.Join(directory, "config", "[0-9c]*.yaml")))(t)
	if len(files) == 0 {
		t.Fatalf("%s has no manifests", directory)
	}
	return files
}

// Trivy searches images for vulnerabilities.
func Trivy(t testing.TB) string {
	t.Helper()
	return tool{module: "readers/trivy", pkg: "github.com/aquasecurity/trivy/cmd/trivy", experiment: "jsonv2"}.build(t)
}
