package kube

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A change of the status does not concern decisions. The kept status is always the current one.
func TestStatusIsNoChange(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", ""))
		objects := bothObjects
		objects.Status = true
		c := newTestCluster(t, s, ClusterConfig{Objects: objects})
		run(t, c)
		var told []ObjectRef
		c.OnPolicyChange(func(ref ObjectRef) { told = append(told, ref) })
		ref := ObjectRef{requestsResource, "team-a", "web"}
		find := func() PolicyObject {
			t.Helper()
			synctest.Wait()
			o, ok := c.PolicyObject(ref)
			if !ok {
				t.Fatal("it is not there")
			}
			return o
		}
		before, compiled := find(), c.Policies()
		if before.UID != "uid-r" || before.Generation != 1 || before.Request == nil || before.LastUsed("team-a/web") != "" || before.Asks.Repositories[0] != "team-a/web" {
			t.Errorf("%+v", before)
		}
		status := kubetest.Object{"status": kubetest.Object{"repositories": []any{map[string]any{"repository": "team-a/web", "granted": "All", "lastUsed": "2026-03-04"}}}}
		s.Merge("repositoryaccesses", "team-a", "web", status)
		s.Merge("accesspolicies", "", "p", kubetest.Object{"status": kubetest.Object{}})
		after := find()
		if after.LastUsed("team-a/web") != "2026-03-04" || after.Request != before.Request || c.Policies() != compiled || told != nil {
			t.Errorf("%+v, told %v", after, told)
		}
		if got := gets(t, c, webPod(), "team-a/web"); got != "[ceiling]" {
			t.Error(got)
		}
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/other"))
		if after = find(); after.Generation != 2 || after.Request == before.Request || len(told) != 1 || told[0] != ref {
			t.Errorf("%+v, told %v", after, told)
		}
		if got := gets(t, c, webPod(), "team-a/web"); got != "[]" {
			t.Error(got)
		}
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-again", "team-a/web")) // the same name, generation 1
		again := find()
		if got := gets(t, c, webPod(), "team-a/web"); again.UID != "uid-again" || got != "[ceiling]" || len(told) < 2 {
			t.Error(again, got, told)
		}
		c.OnPolicyChange(nil)
		n := len(told)
		s.Remove("repositoryaccesses", "team-a", "web")
		synctest.Wait()
		if refs, err := c.PolicyObjects(); err != nil || len(refs) != 1 || len(told) != n || c.RequestsIn("team-a") != nil {
			t.Errorf("%v, %v, told %v", refs, err, told)
		}
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		synctest.Wait()
		if found := c.RequestsIn("team-a"); len(found) != 1 || found[0].UID != "uid-r" {
			t.Errorf("%v", found)
		}
	})
}

// Nothing of a deleted object is kept for the recreated one, whatever its generation.
func TestSpecOfAnotherObject(t *testing.T) {
	t.Parallel()
	of := func(uid string, generation int64) object {
		return object{uid: uid, spec: &policySpec{generation: generation}}
	}
	for _, test := range []struct {
		next, before object
		want         bool
	}{
		{of("a", 1), of("a", 1), true},
		{of("b", 1), of("a", 1), false},
		{of("a", 2), of("a", 1), false},
		{of("a", 0), of("a", 0), false}, // the object has no generations
		{of("a", 1), object{}, false},
		{object{uid: "a"}, object{uid: "a"}, false},
	} {
		if _, isSame := test.next.withSpecOf(test.before); isSame != test.want {
			t.Errorf("%+v after %+v: %t", test.next, test.before, isSame)
		}
	}
}

func TestKnownAccount(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects, AnnotationKeys: []string{"k"}})
		if _, _, err := c.KnownAccount("team-a", "web"); !has(err, "not listed yet") {
			t.Error(err)
		}
		if _, err := c.PolicyObjects(); !has(err, "not listed yet") {
			t.Error(err)
		}
		run(t, c)
		if a, ok, err := c.KnownAccount("team-a", "web"); err != nil || !ok || a.NamespaceLabels == nil || a.Objects.Requests == nil || a.Objects.Policies == nil {
			t.Errorf("%+v, %t, %v", a, ok, err)
		}
		if _, ok, err := c.KnownAccount("team-a", "none"); ok || err != nil {
			t.Error(ok, err)
		}
		time.Sleep(time.Second)
		none := newTestCluster(t, s, ClusterConfig{})
		none.OnPolicyChange(func(ObjectRef) {})
		if refs, err := none.PolicyObjects(); refs != nil || err != nil || none.Policies() != nil || none.RequestsIn("team-a") != nil {
			t.Error(refs, err)
		}
	})
}

func TestNamespace(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "config")
	for text, want := range map[string]string{
		`{current-context: c, contexts: [{name: c, context: {namespace: pullpass}}, {name: d, context: {namespace: other}}]}`: "pullpass",
		`{current-context: c, contexts: [{name: c, context: {}}]}`:                                                            "",
		`{current-context: c}`: "",
	} {
		testkit.Must(t, os.WriteFile(name, []byte(text), 0o600))
		got, err := Namespace(name)
		if got != want || (err == nil) != (want != "") || err != nil && !has(err, `context "c" has no namespace`, "kubectl config set-context") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if _, err := Namespace(name + "-none"); err == nil {
		t.Error("a file that is not there has a namespace")
	}
}
