package kube

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
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

// documentsFile has one object a document, including objects of other kinds.
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

func annotations(t *testing.T, m *Manifests, id oidc.Identity) (map[string]string, error) {
	t.Helper()
	facts, err := m.Lookup(t.Context(), id, nil)
	return facts.Annotations, err
}

func identity(cluster, namespace, name, uid string) oidc.Identity {
	return oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name, UID: uid}}}
}

// Names are reused, and two clusters can have equal ones: only cluster, UID and name together
// identify annotations.
func TestAnnotationsByClusterAndUID(t *testing.T) {
	t.Parallel()
	m := testkit.Value(NewManifests(ManifestsConfig{
		Files: map[string][]string{
			"one": {testkit.TempFile(t, "list.yaml", list)},
			"two": {testkit.TempFile(t, "documents.yaml", documentsFile)},
		},
		AnnotationKeys: []string{key},
	}))(t)
	for _, test := range []struct {
		name string
		id   oidc.Identity
		want string
	}{
		{"the account", identity("one", "team-a", "web", "uid-web"), "team-a/web:pull,push"},
		{"same in another cluster", identity("two", "team-a", "web", "uid-web"), "of the other cluster"},
		{"recreated: another UID", identity("one", "team-a", "web", "uid-new"), ""},
		{"UID of another account", identity("one", "team-a", "web", "uid-default"), ""},
		{"another name", identity("one", "team-a", "api", "uid-web"), ""},
		{"another namespace", identity("one", "team-b", "web", "uid-web"), ""},
		{"unknown cluster", identity("three", "team-a", "web", "uid-web"), ""},
		{"no UID", identity("one", "team-a", "web", ""), ""},
	} {
		annotations, err := annotations(t, m, test.id)
		if err != nil || annotations[key] != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, annotations[key], err, test.want)
		}
		if len(annotations) > 1 {
			t.Errorf("%s: annotations are kept that no rule reads: %v", test.name, annotations)
		}
	}
	if all := m.ServiceAccounts("two"); len(all) == 0 || slices.ContainsFunc(all, func(a ServiceAccount) bool {
		return a.NamespaceLabels != nil || a.Name == "web" && a.Annotations[key] != "of the other cluster"
	}) {
		t.Errorf("of the other cluster: %+v", all)
	}
	if got := m.UID("one", "team-a", "default"); got != "uid-default" {
		t.Errorf("UID is %q", got)
	}
	if got := m.UID("two", "team-a", "default"); got != "" {
		t.Errorf("UID of another cluster: %q", got)
	}
}

// A file that differs from kubectl's output is rejected with a remedy, and all faults are reported
// at once. A ServiceAccount that is left out would lose its pulls.
func TestFaults(t *testing.T) {
	t.Parallel()
	const account = "apiVersion: v1\nkind: ServiceAccount\n"
	for _, test := range []struct {
		name, content string
		want          []string // after the name of the file
	}{
		{"no uid", account + "metadata: {name: web, namespace: a}", []string{
			"document 1: metadata.uid: is missing: names are reused, so only the uid tells which ServiceAccount is meant; kubectl get -o yaml prints it",
		}},
		{"several faults", account + "metadata: {uid: 7, annotations: {" + key + ": true}}\n---\n[]\n---\nkind: Pod\n---\napiVersion: v1\n", []string{
			"document 1: metadata.namespace: is missing or not text: write it as kubectl get -o yaml prints it",
			"document 1: metadata.name: is missing or not text: write it as kubectl get -o yaml prints it",
			"document 1: metadata.uid: is missing: names are reused, so only the uid tells which ServiceAccount is meant; kubectl get -o yaml prints it",
			"document 1: metadata.annotations: " + key + " is not text: write its value in quotes",
			"document 2: is not a Kubernetes object: write one as kubectl get -o yaml prints it",
			"document 3: has no kind or no apiVersion: write an object as kubectl get -o yaml prints it",
			"document 4: has no kind or no apiVersion: write an object as kubectl get -o yaml prints it",
		}},
		{"annotations", account + "metadata: {name: web, namespace: a, uid: u, annotations: [1]}", []string{
			"document 1: metadata.annotations: is not a mapping: write it as kubectl get -o yaml prints it",
		}},
		{"metadata", account + "---\n" + account + "metadata: web", []string{
			"document 1: metadata: is missing or not a mapping: write it as kubectl get -o yaml prints it",
			"document 2: metadata: is missing or not a mapping: write it as kubectl get -o yaml prints it",
		}},
		{"items", "apiVersion: v1\nkind: List\nitems: {}\n---\napiVersion: v1\nkind: List\nitems: [{metadata: {}}, 1]", []string{
			"document 1: items: is not a list: write it as kubectl get -o yaml prints it",
			"document 2: items[0]: has no kind or no apiVersion: write an object as kubectl get -o yaml prints it",
			"document 2: items[1]: is not a Kubernetes object: write one as kubectl get -o yaml prints it",
		}},
		{"in a list", strings.Replace(list, "    uid: uid-web\n", "", 1), []string{
			"document 1: items[0].metadata.uid: is missing: names are reused, so only the uid tells which ServiceAccount is meant; kubectl get -o yaml prints it",
		}},
		{"the same UID", list + "---\n" + account + "metadata: {name: other, namespace: a, uid: uid-web}", []string{
			`document 2: metadata: the ServiceAccount "other" of namespace "a", or its uid, is in the files of cluster one already: keep the newer one`,
		}},
		{"the same name", list + "---\n" + account + "metadata: {name: web, namespace: team-a, uid: uid-new}", []string{
			`document 2: metadata: the ServiceAccount "web" of namespace "team-a", or its uid, is in the files of cluster one already: keep the newer one`,
		}},
		// A second value of a key, where one would silently win.
		{"duplicate key", account + "metadata: {name: web, namespace: a, uid: u, uid: v}", []string{
			`document 1: is not valid YAML: line 3: key "uid" already set in map`,
		}},
		// encoding/json would read UID into uid.
		{"field names have one case", account + "metadata: {name: web, namespace: a, UID: u}", []string{
			"document 1: metadata.uid: is missing: names are reused, so only the uid tells which ServiceAccount is meant; kubectl get -o yaml prints it",
		}},
		{"not YAML", "a: [", []string{"document 1: is not valid YAML: yaml: line 1: did not find expected node content"}},
		// A kubectl that failed leaves an empty file behind.
		{"empty", "", []string{"is empty: write the output of kubectl get serviceaccounts -A -o yaml into it"}},
		{"empty documents", "# nothing\n---\n---\n", []string{"is empty: write the output of kubectl get serviceaccounts -A -o yaml into it"}},
		{"not UTF-8", "\xff\xfea\x00", []string{"is not UTF-8: save it as UTF-8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := testkit.TempFile(t, "f.yaml", test.content)
			_, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {file}}, AnnotationKeys: []string{key}})
			if err == nil {
				t.Fatal("accepted")
			}
			want := file + ": " + strings.Join(test.want, "\n"+file+": ")
			if err.Error() != want {
				t.Errorf("got\n%v\nwant\n%s", err, want)
			}
		})
	}
}

func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	large := testkit.TempFile(t, "large.yaml", "")
	testkit.Must(t, os.Truncate(large, maxManifestBytes+1))
	_, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {missing, large}}})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), large+": has more than 67108864 bytes: split it into several files") {
		t.Errorf("error %v", err)
	}
	_, err = NewManifests(ManifestsConfig{Files: map[string][]string{"one": nil}})
	if err == nil || err.Error() != "cluster one: no manifest file is given: name one, or remove the cluster's manifestFiles" {
		t.Errorf("a cluster without files: %v", err)
	}
}

// Aliases could expand to gigabytes. The documents of a file share one limit. The test measures
// memory, so it does not run in parallel.
func TestAliasesAreNotWrittenOut(t *testing.T) {
	text := func(aliases int) string {
		return "kind: Pod\napiVersion: v1\na: &a " + strings.Repeat("x", 100_000) + "\nb: [" + strings.Repeat("*a,", aliases) + "]\n"
	}
	manifests := func(content string) func() error {
		return func() error {
			_, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {testkit.TempFile(t, "f.yaml", content)}}})
			return err
		}
	}
	for _, test := range []struct {
		name string
		read func() error
		want string
	}{
		{"one document", manifests(text(100_000)), "document 1: is not valid YAML: line 4: with its aliases written out, the document has more than 67108864 bytes; use fewer"},
		{"two documents", manifests(text(400) + "---\n" + text(400)), "document 2: is not valid YAML: line 5: with its aliases written out, the document has more than "},
		{"within the limit", manifests(text(500)), ""},
		{"kubeconfig", func() error { _, err := Kubeconfig(testkit.TempFile(t, "config", text(100_000))); return err }, "is not a kubeconfig: line 4: with its aliases written out, the document has more than 1048576 bytes; use fewer: write it as kubectl"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := test.read()
		runtime.ReadMemStats(&after)
		if test.want == "" && err != nil || test.want != "" && !has(err, test.want) {
			t.Errorf("%s: error %v", test.name, err)
		}
		if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 400 {
			t.Errorf("%s: %d MiB were taken", test.name, allocated)
		}
	}
}

// A message for each of very many faults would itself be a flood.
func TestFaultCount(t *testing.T) {
	t.Parallel()
	file := testkit.TempFile(t, "f.yaml", strings.Repeat("--- 1\n", 1000))
	_, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {file}}})
	if err == nil || strings.Count(err.Error(), "\n") != maxFaults || !strings.HasSuffix(err.Error(), "\nand 900 more faults") {
		t.Errorf("error %v", err)
	}
}

// All forms of kubectl's output are read, and other objects are skipped.
func TestForms(t *testing.T) {
	t.Parallel()
	const metadata = `"metadata": {"name": "web", "namespace": "team-a", "uid": "uid-web", "annotations": {"` + key + `": "a"}}`
	const yamlAccount = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-web, annotations: {" + key + ": a}}"
	for name, content := range map[string]string{
		"yaml":            yamlAccount,
		"json":            "{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"ServiceAccount\",\n    " + metadata + "\n}\n",
		"json list":       `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ServiceAccount", ` + metadata + `}]}`,
		"raw list":        `{"apiVersion": "v1", "kind": "ServiceAccountList", "metadata": {}, "items": [{` + metadata + `}]}`,
		"among others":    "apiVersion: v1\nkind: List\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n---\napiVersion: v1\nkind: Pod\n---\n" + yamlAccount,
		"another group":   "apiVersion: example.com/v1\nkind: ServiceAccount\n---\n" + yamlAccount,
		"after an end":    "kind: Pod\napiVersion: v1\n...\n---\n" + yamlAccount,
		"no marker":       "kind: Pod\napiVersion: v1\n...\n" + yamlAccount,
		"Windows":         strings.ReplaceAll("kind: Pod\napiVersion: v1\n---\n"+yamlAccount+"\n", "\n", "\r\n"),
		"old Macintosh":   strings.ReplaceAll("kind: Pod\napiVersion: v1\n---\n"+yamlAccount+"\n", "\n", "\r"),
		"Unicode breaks":  "kind: Pod\napiVersion: v1\u2028---\u0085" + yamlAccount,
		"on the marker":   "--- {kind: Pod, apiVersion: v1}\n---\t# next\n" + yamlAccount,
		"marker in value": strings.Replace(yamlAccount, "metadata: {", "metadata: {\n ---x: 1,", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := NewManifests(ManifestsConfig{Files: map[string][]string{"one": {testkit.TempFile(t, "f.yaml", content)}}, AnnotationKeys: []string{key}})
			testkit.Must(t, err)
			got, err := annotations(t, m, identity("one", "team-a", "web", "uid-web"))
			if err != nil || len(got) != 1 || got[key] != "a" {
				t.Errorf("annotations %v, %v", got, err)
			}
		})
	}
}

// Without any file, no ServiceAccount has annotations, and that is not a fault.
func TestNoFiles(t *testing.T) {
	t.Parallel()
	m := testkit.Value(NewManifests(ManifestsConfig{AnnotationKeys: []string{key}}))(t)
	if got, err := annotations(t, m, identity("one", "team-a", "web", "uid-web")); got != nil || err != nil {
		t.Errorf("annotations %v, %v", got, err)
	}
}

// A new policy that reads the same annotations must not wait for corrected files: it may contain a
// denial that is needed now.
func TestSameKeysDoNotReadTheFiles(t *testing.T) {
	t.Parallel()
	file := testkit.TempFile(t, "list.yaml", list)
	m := testkit.Value(NewManifests(ManifestsConfig{Files: map[string][]string{"one": {file}}, AnnotationKeys: []string{"b", key}}))(t)
	testkit.Must(t, os.Remove(file))
	if err := m.SetAnnotationKeys([]string{key, "b"}); err != nil {
		t.Error(err)
	}
	for range 2 { // the second attempt must not treat the failure as a success
		if err := m.SetAnnotationKeys([]string{"c"}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	}
	if a, _ := annotations(t, m, identity("one", "team-a", "web", "uid-web")); a[key] != "team-a/web:pull,push" {
		t.Errorf("annotations %v", a)
	}
	if !m.KeepsAnnotations([]string{key, "b"}) || m.KeepsAnnotations([]string{key, "c"}) {
		t.Error("not the annotations that are kept")
	}
}

// A file that is being written must not remove the annotations.
func TestReloadKeepsTheLastGood(t *testing.T) {
	t.Parallel()
	file := testkit.TempFile(t, "list.yaml", list)
	m := testkit.Value(NewManifests(ManifestsConfig{Files: map[string][]string{"one": {file}}, AnnotationKeys: []string{key}}))(t)
	id := identity("one", "team-a", "web", "uid-web")
	has := func(want string) {
		t.Helper()
		if a, _ := annotations(t, m, id); a[key] != want {
			t.Errorf("annotation %q, want %q", a[key], want)
		}
	}
	for _, broken := range []string{"a: [", strings.Replace(list, "    uid: uid-web\n", "", 1)} {
		testkit.Must(t, os.WriteFile(file, []byte(broken), 0o600))
		if m.Reload() == nil {
			t.Error("a broken file was accepted")
		}
		has("team-a/web:pull,push")
	}
	testkit.Must(t, os.WriteFile(file, []byte(strings.Replace(list, "team-a/web:pull,push", "team-a/api", 1)), 0o600))
	testkit.Must(t, m.Reload())
	has("team-a/api")
	testkit.Must(t, m.SetAnnotationKeys([]string{"unrelated.example.com/x"}))
	has("")
	if a, _ := annotations(t, m, id); a["unrelated.example.com/x"] != "1" {
		t.Errorf("annotations %v after the keys changed", a)
	}
}

// The format of kubectl for one object, a list, and several objects.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(list))
	f.Add([]byte(documentsFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newReader([]string{key})
		r.cluster = "one"
		r.file("file", data)
		if r.err() == nil && len(slices.Collect(strictyaml.Documents(data))) == 0 {
			t.Error("an empty file was accepted")
		}
		for k, a := range r.accounts.byUID {
			if k.uid == "" || a.name == "" || a.namespace == "" || r.accounts.uids[nameKey{"one", a.namespace, a.name}] != k.uid {
				t.Fatalf("an account without identity: %+v %+v", k, a)
			}
		}
	})
}
