package programs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// CustomResources are the files with the definitions (CRDs) that others publish and that our objects need, as the module e2e/crds
// names them.
func CustomResources(t testing.TB) []string {
	t.Helper()
	directories := published(t)
	certManager := filepath.Join(directories["github.com/cert-manager/cert-manager"], "deploy", "crds")
	prometheus := filepath.Join(directories["github.com/prometheus-operator/prometheus-operator"], "example", "prometheus-operator-crd")
	gatewayAPI := filepath.Join(directories["sigs.k8s.io/gateway-api"], "config", "crd", "standard")
	return []string{
		filepath.Join(directories["github.com/argoproj/argo-cd/v3"], "manifests", "crds", "application-crd.yaml"),
		filepath.Join(directories["github.com/fluxcd/source-controller"], "config", "crd", "bases", "source.toolkit.fluxcd.io_ocirepositories.yaml"),
		filepath.Join(directories["github.com/cert-manager/trust-manager"], "deploy", "crds", "trust.cert-manager.io_bundles.yaml"),
		filepath.Join(directories["github.com/external-secrets/external-secrets"], "config", "crds", "bases", "external-secrets.io_externalsecrets.yaml"),
		filepath.Join(gatewayAPI, "gateway.networking.k8s.io_tlsroutes.yaml"),
		filepath.Join(certManager, "cert-manager.io_certificates.yaml"),
		filepath.Join(certManager, "cert-manager.io_issuers.yaml"),
		filepath.Join(prometheus, "monitoring.coreos.com_servicemonitors.yaml"),
		filepath.Join(prometheus, "monitoring.coreos.com_podmonitors.yaml"),
		filepath.Join(prometheus, "monitoring.coreos.com_prometheusrules.yaml"),
	}
}

// NodeTemplates are the same of the creators of nodes: Cluster API and Karpenter.
func NodeTemplates(t testing.TB) []string {
	t.Helper()
	directories := published(t)
	return []string{
		filepath.Join(directories["sigs.k8s.io/cluster-api"], "bootstrap/kubeadm/config/crd/bases/bootstrap.cluster.x-k8s.io_kubeadmconfigtemplates.yaml"),
		filepath.Join(directories["github.com/aws/karpenter-provider-aws"], "pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml"),
	}
}

// published are the directories of the modules of e2e/crds, by their paths.
func published(t testing.TB) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json")
	cmd.Dir = filepath.Join(e2eDir(t), "crds")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download in %s: %v: %s%s", cmd.Dir, err, output, &stderr)
	}
	directories := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var module struct{ Path, Dir string }
		err := decoder.Decode(&module)
		if errors.Is(err, io.EOF) {
			break
		}
		testenv.Must(t, err)
		directories[module.Path] = module.Dir
	}
	return directories
}

// PullpassImage is an archive with the project's image under the given name, as "make image" makes it, for this machine alone.
func PullpassImage(t testing.TB, name string) string {
	t.Helper()
	image, binary := project(t, Checkout(t), "image", "./deploy/image"), Pullpass(t)
	CredentialProvider(t) // it is looked for beside the binary
	directory := filepath.Dir(image)
	roots, err := exec.CommandContext(t.Context(), project(t, Checkout(t), "roots", "./deploy/image/roots")).Output()
	if err != nil {
		t.Fatalf("deploy/image/roots: %v", err)
	}
	rootsFile, archive := filepath.Join(directory, "ca-certificates.crt"), filepath.Join(directory, "pullpass-image.tar")
	testenv.WriteFile(t, rootsFile, roots)
	cmd := exec.CommandContext(t.Context(), image, "-name="+name, "-version=devel", "-revision=none", "-roots="+rootsFile, "-out="+archive, binary)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("deploy/image: %v: %s", err, output)
	}
	return archive
}
