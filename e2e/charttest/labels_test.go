package charttest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// All objects and pod templates have commonLabels, and no selector has them: Kubernetes allows no change of most selectors.
func TestCommonLabels(t *testing.T) {
	const label = "example.com/common"
	for _, s := range sets(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			output := testenv.Value(helm(t, "template", s.release, chart(t), "--namespace="+s.namespace, "--values="+s.values(), "--set=commonLabels.example\\.com/common=all"))(t)
			pods := 0
			for _, object := range parse(t, output) {
				if object.Text("metadata", "labels", label) != "all" {
					t.Errorf("%s %s has no label", object.Text("kind"), object.Name())
				}
				spec, _ := object["spec"].(map[string]any)
				if template, ok := spec["template"].(map[string]any); ok && template["spec"] != nil {
					pods++
					if cluster.Object(template).Text("metadata", "labels", label) != "all" {
						t.Errorf("pods of %s %s have no label", object.Text("kind"), object.Name())
					}
				}
				for _, selector := range selectors(object) {
					if _, ok := selector[label]; ok {
						t.Errorf("%s %s selects by the label: %v", object.Text("kind"), object.Name(), selector)
					}
				}
			}
			if pods < 2 { // the Deployment and the check
				t.Errorf("%d pod templates", pods)
			}
		})
	}
}

// selectors are the label selectors in a value, at any depth.
func selectors(value any) (found []map[string]any) {
	switch value := value.(type) {
	case cluster.Object:
		return selectors(map[string]any(value))
	case map[string]any:
		for key, below := range value {
			if selector, ok := below.(map[string]any); ok && (key == "selector" || key == "matchLabels" || key == "podSelector") {
				found = append(found, selector)
			}
			found = append(found, selectors(below)...)
		}
	case []any:
		for _, below := range value {
			found = append(found, selectors(below)...)
		}
	}
	return found
}
