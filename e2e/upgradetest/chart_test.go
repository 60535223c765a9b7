package upgradetest

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// needed are the kinds that pods need, and which Helm therefore has to change before it changes pods.
var needed = []string{"Secret", "ConfigMap", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}

// rendered is what a chart makes of values, in the order in which Helm applies it, without hooks.
type rendered []cluster.Object

func render(t *testing.T, tree, values string) (all rendered) {
	t.Helper()
	helm := exec.CommandContext(t.Context(), programs.Helm(t), "template", "pullpass", filepath.Join(tree, "deploy/helm/pullpass"), "--namespace=pullpass", "--values="+values)
	helm.Env = programs.HelmEnvironment(t)
	var stderr bytes.Buffer
	helm.Stderr = &stderr
	output, err := helm.Output()
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

// named is the object of the same kind and name; nil: there is none.
func (r rendered) named(object cluster.Object) cluster.Object {
	i := slices.IndexFunc(r, func(o cluster.Object) bool {
		return o.Text("kind") == object.Text("kind") && o.Name() == object.Name() && o.Namespace() == object.Namespace()
	})
	if i < 0 {
		return nil
	}
	return r[i]
}

// TestChart gives all values of the release before to the chart of this one. Its objects can replace those of before, in an order in which pods
// find all that they need.
func TestChart(t *testing.T) {
	former := programs.FormerRelease(t)
	files := testenv.Value(filepath.Glob(filepath.Join(former.Tree, "e2e/charttest/testdata/values/*.yaml")))(t)
	if len(files) < 8 {
		t.Fatalf("%d sets of values", len(files))
	}
	kinds := map[string]int{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			was, is := render(t, former.Tree, file), render(t, programs.Checkout(t), file)
			running := ""
			for _, object := range is {
				kind := object.Text("kind")
				kinds[kind]++
				switch {
				case kind == "Deployment" || kind == "DaemonSet":
					running = kind
				case running != "" && slices.Contains(needed, kind):
					t.Errorf("%s %s comes after a %s", kind, object.Name(), running)
				}
				// Else helm upgrade with crds.install: false, which a downgrade needs, would delete them and all their objects.
				if kind == "CustomResourceDefinition" && object.Text("metadata", "annotations", "helm.sh/resource-policy") != "keep" {
					t.Errorf("%s is not kept", object.Name())
				}
				old := was.named(object)
				if old == nil {
					continue
				}
				for _, fixed := range immutable[kind] {
					if then, now := field(old, fixed), field(object, fixed); !reflect.DeepEqual(then, now) {
						t.Errorf("%s %s: the API server refuses another %v: %v, it was %v", kind, object.Name(), fixed, now, then)
					}
				}
			}
		})
	}
	for _, kind := range []string{"ConfigMap", "CustomResourceDefinition", "ClusterRole", "Role", "Deployment", "DaemonSet"} {
		if kinds[kind] == 0 {
			t.Errorf("no set of values has a %s", kind)
		}
	}
}

// immutable are the fields that an API server never changes, by kind.
var immutable = map[string][][]string{
	"Deployment":         {{"spec", "selector"}},
	"DaemonSet":          {{"spec", "selector"}},
	"ClusterRoleBinding": {{"roleRef"}},
	"RoleBinding":        {{"roleRef"}},
}

func field(object cluster.Object, path []string) any {
	var value any = map[string]any(object)
	for _, name := range path {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	return value
}
