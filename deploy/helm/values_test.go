// Package helm_test holds the chart's values, their schema, their table in the README, and the configuration together. What
// the chart makes of them is tested with Helm itself, in e2e/charttest.
package helm_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var update = flag.Bool("update", false, "write the table of README.md, the platforms in values.schema.json, and the copies in pullpass/files")

// value is one that can be set: a leaf of values.yaml.
type value struct{ path, comment, standard string }

// The table in the README is that of values.yaml.
func TestReadme(t *testing.T) {
	t.Parallel()
	const file, marker = "pullpass/README.md", "go test ./deploy/helm -update -->\n\n"
	content := testkit.Read(t, file)
	text, _, found := strings.Cut(content, marker)
	if !found {
		t.Fatalf("%s has no line that ends with %q", file, marker)
	}
	var table strings.Builder
	table.WriteString("| value | default | |\n| --- | --- | --- |\n")
	for _, v := range values(t) {
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", v.path, v.standard, v.comment)
	}
	want := text + marker + table.String()
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(want), 0o644))
	} else if content != want {
		t.Errorf("%s is not what values.yaml says: go test ./deploy/helm -update", file)
	}
}

// They are in the chart too, since Helm reads no files outside of it.
func TestFiles(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"monitoring/alerts.yaml", "monitoring/dashboard.json", "kubernetes/pull-secrets-controller.yaml"} {
		want := testkit.Value(os.ReadFile("../" + source))(t)
		file := "pullpass/files/" + path.Base(source)
		if *update {
			testkit.Must(t, os.WriteFile(file, want, 0o644))
		}
		got := testkit.Read(t, file)
		if got != string(want) {
			t.Errorf("%s is not deploy/%s: go test ./deploy/helm -update", file, source)
		}
	}
}

// Every value says what it is for and has a place in the schema, and the schema has no others.
func TestSchema(t *testing.T) {
	t.Parallel()
	allowed := schema(t)
	var unset []string
	for path := range allowed.leaves() {
		unset = append(unset, path)
	}
	for _, v := range values(t) {
		if v.comment == "" {
			t.Errorf("values.yaml: %s has no comment", v.path)
		}
		if !allowed.has(strings.Split(v.path, ".")) {
			t.Errorf("values.schema.json: %s is not there, so it cannot be set", v.path)
		}
		// The schema leaves objects without properties open.
		unset = slices.DeleteFunc(unset, func(path string) bool {
			return path == v.path || strings.HasPrefix(v.path+".", path+".") || strings.HasPrefix(path, v.path+".")
		})
	}
	// Beside what every chart has, these are the fields of the configuration that have no default in values.yaml.
	slices.Sort(unset)
	open := regexp.MustCompile(`^(global|config\.\w+|policy\.(apiVersion|kind))$`)
	for _, path := range unset {
		if !open.MatchString(path) {
			t.Errorf("values.schema.json: %s is not in values.yaml, so readers would not know of it", path)
		}
	}
}

// The schema knows each field at the top of the configuration.
func TestSchemaKnowsTheConfiguration(t *testing.T) {
	t.Parallel()
	document := testkit.Value(os.ReadFile("../../docs/reference/configuration.yaml"))(t)
	var config map[string]any
	testkit.Must(t, yaml.Unmarshal(document, &config))
	known := schema(t).Properties["config"].Properties
	if got, want := slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(config)); !slices.Equal(got, want) {
		t.Errorf("values.schema.json: config has %q, and docs/reference/configuration.yaml %q", got, want)
	}
}

// The schema knows the platforms whose nodes can be changed.
func TestSchemaKnowsThePlatforms(t *testing.T) {
	t.Parallel()
	const file = "pullpass/values.schema.json"
	content := testkit.Value(os.ReadFile(file))(t)
	enum := `"profile": {"enum": ["", "` + strings.Join(nodeinstall.Profiles(), `", "`) + `"]}`
	want := regexp.MustCompile(`"profile": \{"enum": [^}]*\}`).ReplaceAllLiteralString(string(content), enum)
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(want), 0o644))
	} else if want != string(content) || !strings.Contains(want, enum) {
		t.Errorf("%s does not list the platforms: go test ./deploy/helm -update", file)
	}
}

// property is a part of a JSON Schema, as far as it is read here.
type property struct{ Properties map[string]property }

func schema(t *testing.T) property {
	t.Helper()
	content := testkit.Value(os.ReadFile("pullpass/values.schema.json"))(t)
	var p property
	testkit.Must(t, json.Unmarshal(content, &p))
	return p
}

func (p property) has(path []string) bool {
	if len(p.Properties) == 0 || len(path) == 0 {
		return true
	}
	next, ok := p.Properties[path[0]]
	return ok && next.has(path[1:])
}

// leaves yields the paths of the properties that have none of their own.
func (p property) leaves() func(func(string) bool) {
	return func(yield func(string) bool) {
		for name, below := range p.Properties {
			if len(below.Properties) == 0 {
				yield(name)
				continue
			}
			for path := range below.leaves() {
				yield(name + "." + path)
			}
		}
	}
}

func values(t *testing.T) []value {
	t.Helper()
	content := testkit.Value(os.ReadFile("pullpass/values.yaml"))(t)
	var document yaml.Node
	testkit.Must(t, yaml.Unmarshal(content, &document))
	return leaves(t, "", document.Content[0])
}

// leaves returns what is at the ends of a mapping; one with a comment of its own is an end.
func leaves(t *testing.T, prefix string, mapping *yaml.Node) (all []value) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		if node.Kind == yaml.MappingNode && node.Style != yaml.FlowStyle && key.HeadComment == "" {
			all = append(all, leaves(t, path+".", node)...)
			continue
		}
		var content any
		testkit.Must(t, node.Decode(&content))
		standard := testkit.Value(json.Marshal(content))(t)
		all = append(all, value{path, strings.TrimPrefix(key.HeadComment, "# "), string(standard)})
	}
	return all
}
