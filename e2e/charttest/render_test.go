package charttest

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// set is a set of values: testdata/values/NAME.yaml, or that of docs/start/try.md.
type set struct {
	name, release, namespace string
}

const startSet = "start"

func sets(t testing.TB) []set {
	t.Helper()
	files := testenv.Value(filepath.Glob("testdata/values/*.yaml"))(t)
	var all []set
	for _, file := range files {
		s := set{strings.TrimSuffix(filepath.Base(file), ".yaml"), "pullpass", "pullpass"}
		if s.name == "clusters" { // one without pullpass in its name
			s.release, s.namespace = "eu", "registry"
		}
		if s.name == pullSecretsSet {
			s.namespace = "tokens"
		}
		all = append(all, s)
	}
	all = append(all, set{startSet, "pullpass", "pullpass"})
	if len(all) < 8 {
		t.Fatalf("%d sets of values", len(all))
	}
	return all
}

func (s set) values() string {
	if s.name == startSet {
		return "../../deploy/start/values.yaml"
	}
	return "testdata/values/" + s.name + ".yaml"
}

// template is what Helm makes of the set.
func (s set) template(t testing.TB) string {
	t.Helper()
	output := testenv.Value(helm(t, "template", s.release, chart(t), "--namespace="+s.namespace, "--values="+s.values()))(t)
	return output
}

func chart(t testing.TB) string {
	t.Helper()
	return filepath.Join(programs.Checkout(t), "deploy", "helm", "pullpass")
}

// helm runs Helm. The error holds what it wrote to standard error.
func helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Helm(t), args...)
	cmd.Env = programs.HelmEnvironment(t)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), errors.New("helm " + args[0] + ": " + err.Error() + ": " + stderr.String() + stdout.String())
	}
	return stdout.String(), nil
}

// objects are the documents of a manifest.
type objects []cluster.Object

func parse(t testing.TB, manifest string) (all objects) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(manifest)); ; {
		var object map[string]any // nested ones get its type
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return all
		}
		testenv.Must(t, err)
		if object != nil {
			all = append(all, object)
		}
	}
}

// kind are those of a kind.
func (all objects) kind(kind string) (found objects) {
	for _, object := range all {
		if object.Text("kind") == kind {
			found = append(found, object)
		}
	}
	return found
}

// named is the object of a kind and name; nil if there is none.
func (all objects) named(kind, name string) cluster.Object {
	for _, object := range all.kind(kind) {
		if object.Name() == name {
			return object
		}
	}
	return nil
}

// list is the list at the path of field names.
func list(object cluster.Object, path ...string) (items []cluster.Object) {
	for _, field := range path[:len(path)-1] {
		object, _ = object[field].(map[string]any)
	}
	all, _ := object[path[len(path)-1]].([]any)
	for _, item := range all {
		items = append(items, item.(map[string]any))
	}
	return items
}

// texts are the texts in a list.
func texts(value any) (all []string) {
	items, _ := value.([]any)
	for _, item := range items {
		all = append(all, item.(string))
	}
	return all
}
