package upgradetest

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const definition = "CustomResourceDefinition"

// needed are the kinds that pods need, and which Helm therefore has to change before it changes pods.
var needed = []string{"Secret", "ConfigMap", definition, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}

// TestChart upgrades from the chart of the release before to this one with all values of the former, and goes back, at a real API server. The
// objects come in an order in which pods find all that they need.
func TestChart(t *testing.T) {
	former := programs.FormerRelease(t)
	files := testenv.Value(filepath.Glob(filepath.Join(former.Tree, "e2e/charttest/testdata/values/*.yaml")))(t)
	if len(files) < 8 {
		t.Fatalf("%d sets of values", len(files))
	}
	h := startHelm(t)
	kinds := map[string]bool{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			running, before := "", len(kinds)
			for _, object := range h.render(t, programs.Checkout(t), file) {
				kind := object.Text("kind")
				kinds[kind] = true
				switch {
				case kind == "Deployment" || kind == "DaemonSet":
					running = kind
				case running != "" && slices.Contains(needed, kind):
					t.Errorf("%s %s comes after a %s", kind, object.Name(), running)
				}
			}
			if len(kinds) == before {
				return
			}
			name := strings.TrimSuffix(filepath.Base(file), ".yaml")
			values := []string{"--values=" + file, "--set=nodes.install.namespace=nodes-" + name}
			h.run(t, "install", name, former.Tree, append(values, "--create-namespace")...)
			h.run(t, "upgrade", name, programs.Checkout(t), values...)
			h.run(t, "upgrade", name, former.Tree, append(values, "--set=crds.install=false")...)
			// The downgrade keeps them, and the next release of the test could not own them.
			h.cluster.Kubectl(t, "", "delete", "--ignore-not-found", "--filename="+chartOf(programs.Checkout(t))+"/files/crds.yaml")
		})
	}
	for _, kind := range []string{"ConfigMap", definition, "ClusterRole", "Role", "Deployment", "DaemonSet"} {
		if !kinds[kind] {
			t.Errorf("no set of values has a %s", kind)
		}
	}
}

// helm installs into a cluster without controllers: objects are all that it makes.
type helm struct {
	cluster     *cluster.Cluster
	environment []string
}

func startHelm(t *testing.T) *helm {
	t.Helper()
	h := &helm{cluster: cluster.Start(t, certs.NewRSAKey(t))}
	h.environment = append(programs.HelmEnvironment(t), "KUBECONFIG="+h.cluster.AdminKubeconfig(t))
	for _, file := range programs.CustomResources(t) { // of the operators that values name
		h.cluster.Kubectl(t, "", "create", "--filename="+file)
	}
	return h
}

// run applies the chart of a tree, as a release in a namespace of its name.
func (h *helm) run(t *testing.T, command, name, tree string, args ...string) {
	t.Helper()
	program := exec.CommandContext(t.Context(), programs.Helm(t), append([]string{command, name, chartOf(tree), "--namespace=" + name, "--no-hooks"}, args...)...)
	program.Env = h.environment
	if output, err := program.CombinedOutput(); err != nil {
		t.Errorf("helm %s: %v: %s", command, err, output)
	}
}

func chartOf(tree string) string { return filepath.Join(tree, "deploy/helm/pullpass") }

// render returns what a chart makes of values, in the order in which Helm applies it, without hooks.
func (h *helm) render(t *testing.T, tree, values string) (all []cluster.Object) {
	t.Helper()
	template := exec.CommandContext(t.Context(), programs.Helm(t), "template", "pullpass", chartOf(tree), "--namespace=pullpass", "--values="+values)
	template.Env = h.environment
	var stderr bytes.Buffer
	template.Stderr = &stderr
	output, err := template.Output()
	if err != nil {
		t.Fatalf("helm template with the chart of %s: %v: %s", tree, err, &stderr)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(output)); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if o := cluster.Object(object); o.Text("metadata", "annotations", "helm.sh/hook") == "" {
			all = append(all, o)
		}
	}
}
