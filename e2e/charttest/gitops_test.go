package charttest

import (
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// examples are the objects of a file in deploy/gitops.
func examples(t testing.TB, name string) objects {
	t.Helper()
	return parse(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy", "gitops", name)))
}

// The examples for Flux and Argo CD install the same release, and the chart accepts their values.
func TestGitOps(t *testing.T) {
	flux, argo := examples(t, "flux.yaml"), examples(t, "argocd.yaml")
	repository, release, application := flux.named("OCIRepository", "pullpass"), flux.named("HelmRelease", "pullpass"), argo.named("Application", "pullpass")
	if repository.Text("spec", "url") != application.Text("spec", "source", "repoURL") || repository.Text("spec", "ref", "tag") != application.Text("spec", "source", "targetRevision") {
		t.Errorf("Flux installs %v, and Argo CD %v", repository["spec"], application["spec"])
	}
	if release.Text("spec", "chartRef", "name") != repository.Name() || release.Namespace() != repository.Namespace() {
		t.Errorf("the HelmRelease takes %v", release["spec"])
	}
	spec := release["spec"].(map[string]any)
	helmSource := application["spec"].(map[string]any)["source"].(map[string]any)["helm"].(map[string]any)
	for name, values := range map[string]any{"Flux": spec["values"], "Argo CD": helmSource["valuesObject"]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "values.yaml")
			testenv.WriteFile(t, file, string(testenv.Value(yaml.Marshal(values))(t)))
			// A release names the image.
			output := testenv.Value(helm(t, "template", "pullpass", chart(t), "--namespace=pullpass", "--values="+file, "--set=image.repository=images.example.com/pullpass"))(t)
			cmd := command(t, parse(t, output).named("Job", "pullpass-check"), parse(t, output), nil)
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
}

// testGitOps applies the examples as kubectl does. No Go module has the definition of a HelmRelease.
func (s *site) testGitOps(t *testing.T) {
	for _, object := range append(examples(t, "flux.yaml"), examples(t, "argocd.yaml")...) {
		kind := object.Text("kind")
		if kind == "HelmRelease" {
			continue
		}
		if _, err := s.Try(t.Context(), "GET", "/api/v1/namespaces/"+object.Namespace(), nil); err != nil {
			s.CreateNamespace(t, object.Namespace(), nil)
		}
		output := s.input(t, string(testenv.Value(yaml.Marshal(object))(t)), "kubectl", "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
		if !strings.Contains(output, " serverside-applied (server dry run)\n") {
			t.Errorf("%s: %s", kind, output)
		}
	}
	s.saw("accepted by the API server: deploy/gitops", "")
}
