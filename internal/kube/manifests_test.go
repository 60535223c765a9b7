package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
)

const key = "pullpass.dev/repositories"

// list is what kubectl get serviceaccounts -A -o yaml prints.
const list = `apiVersion: v1
items:
- apiVersion: v1
  kind: ServiceAccount
  metadata:
    annotations:
      pullpass.dev/repositories: team-a/web:pull,push
      unrelated.example.com/x: "1"
    creationTimestamp: "2026-03-04T05:06:07Z"
    name: web
    namespace: team-a
    resourceVersion: "207"
    uid: uid-web
- apiVersion: v1
  kind: ServiceAccount
  metadata:
    name: default
    namespace: team-a
    uid: uid-default
kind: List
metadata:
  resourceVersion: ""
`

// documentsFile has one object a document, and others among them.
const documentsFile = `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: team-a, uid: uid-web, annotations: {pullpass.dev/repositories: "of the other cluster"}}
--- # a comment
apiVersion: v1
kind: Secret
metadata: {name: x, namespace: team-a}
---
`

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func identity(cluster, namespace, name, uid string) oidc.Identity {
	return oidc.Identity{Cluster: cluster, Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name, UID: uid}}
}

// Names are reused, and two clusters have equal ones: only cluster, UID and
// name together find annotations.
func TestAnnotationsByClusterAndUID(t *testing.T) {
	t.Parallel()
	m, err := NewManifests(ManifestsConfig{
		Files: map[string][]string{
			"one": {writeFile(t, "list.yaml", list)},
			"two": {writeFile(t, "documents.yaml", documentsFile)},
		},
		AnnotationKeys: []string{key},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		id   oidc.Identity
		want string
	}{
		{"the account", identity("one", "team-a", "web", "uid-web"), "team-a/web:pull,push"},
		{"same in another cluster", identity("two", "team-a", "web", "uid-web"), "of the other cluster"},
		{"recreated: another UID", identity("one", "team-a", "web", "uid-new"), ""},
		{"UID of another account", identity("one", "team-a", "web", "uid-default"), ""},
		{"another namespace", identity("one", "team-b", "web", "uid-web"), ""},
		{"unknown cluster", identity("three", "team-a", "web", "uid-web"), ""},
		{"no UID", identity("one", "team-a", "web", ""), ""},
	} {
		annotations, err := m.Annotations(t.Context(), test.id)
		if err != nil || annotations[key] != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, annotations[key], err, test.want)
		}
		if len(annotations) > 1 {
			t.Errorf("%s: annotations are kept that no rule reads: %v", test.name, annotations)
		}
	}
	if got := m.UID("one", "team-a", "default"); got != "uid-default" {
		t.Errorf("UID is %q", got)
	}
	if got := m.UID("two", "team-a", "default"); got != "" {
		t.Errorf("UID of another cluster: %q", got)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, content, want string }{
		{"no uid", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: a}", "document 1: ServiceAccount a/web has no metadata.uid"},
		{"no namespace", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, uid: u}", "metadata.namespace of a ServiceAccount is missing"},
		{"other version", "apiVersion: v2\nkind: ServiceAccount\nmetadata: {name: web, namespace: a, uid: u}", `is "v2", not v1`},
		{"no kind", "metadata: {name: web}", "kind is missing"},
		{"twice", list + "---\n" + list, "document 2: items[0]: ServiceAccount team-a/web or its UID stands in the files"},
		{"not YAML", "a: [", "document 1: is not YAML"},
		{"wrong type", "kind: ServiceAccount\nmetadata: {annotations: [1]}", "document 1: is not YAML as kubectl prints it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {writeFile(t, "f.yaml", test.content)}}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not say %q", err, test.want)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if _, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {missing}}}); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a missing file: %v", err)
	}
	large := writeFile(t, "large.yaml", "")
	if err := os.Truncate(large, maxManifestBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {large}}}); err == nil || !strings.Contains(err.Error(), "split it") {
		t.Errorf("a file over the limit: %v", err)
	}
}

// A file in the middle of being written must not take the annotations away.
func TestReloadKeepsTheLastGood(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "list.yaml", list)
	m, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {file}}, AnnotationKeys: []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	id := identity("one", "team-a", "web", "uid-web")
	has := func(want string) {
		t.Helper()
		if a, _ := m.Annotations(t.Context(), id); a[key] != want {
			t.Errorf("annotation %q, want %q", a[key], want)
		}
	}
	for _, broken := range []string{"a: [", strings.Replace(list, "    uid: uid-web\n", "", 1)} {
		if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if m.Reload() == nil {
			t.Error("a broken file was accepted")
		}
		has("team-a/web:pull,push")
	}
	if err := os.WriteFile(file, []byte(strings.Replace(list, "team-a/web:pull,push", "team-a/api", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Reload(); err != nil {
		t.Fatal(err)
	}
	has("team-a/api")
	if err := m.SetAnnotationKeys([]string{"unrelated.example.com/x"}); err != nil {
		t.Fatal(err)
	}
	has("")
	if a, _ := m.Annotations(t.Context(), id); a["unrelated.example.com/x"] != "1" {
		t.Errorf("annotations %v after the keys changed", a)
	}
}

// The format of kubectl: what it prints for one object, a list, and several.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(list))
	f.Add([]byte(documentsFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reader{keys: []string{key}, accounts: accounts{byUID: map[uidKey]account{}, uids: map[nameKey]string{}}}
		r.readDocuments("one", "file", data)
		for k, a := range r.accounts.byUID {
			if k.uid == "" || a.name == "" || a.namespace == "" {
				t.Fatalf("an account without identity: %+v %+v", k, a)
			}
		}
	})
}
