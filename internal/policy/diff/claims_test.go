package diff

import (
	"fmt"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A caller can be in a group of a rule and in a group of a denial. It loses access by the denial.
func TestCallersWithSeveralGroups(t *testing.T) {
	t.Parallel()
	job := func(claim, value string) []object {
		return []object{{"identities": []string{"ci"}, "claims": object{claim: []string{value}}}}
	}
	allow := []object{{"repositories": []string{"a"}, "actions": []string{"pull"}}}
	for _, test := range []struct {
		denied []object
		want   string
	}{
		{job("groups", "b"), "map[groups:[a b]]"},
		{job("groups", "a"), "map[groups:a]"},
		{job("ref", "b"), "map[groups:a ref:b]"},
	} {
		before := written{Rules: []object{{"name": "r", "subjects": job("groups", "a"), "allow": allow}}}
		after := before
		after.Deny = []object{{"name": "d", "subjects": test.denied}}
		d := testkit.Value(Find(t.Context(), before.side(t), after.side(t)))(t)
		if len(d.Lost) == 0 {
			t.Errorf("%v: nothing is lost", test.denied)
			continue
		}
		claims := d.Lost[0].Example.Claims
		delete(claims, "sub")
		if got := fmt.Sprint(claims); got != test.want || len(d.Gained) > 0 {
			t.Errorf("%v: %s, want %s; gained %v", test.denied, got, test.want, d.Gained)
		}
	}
}

// The object's pattern is within the limit only in the namespace that is called like the ServiceAccount.
func TestNamespaceCalledLikeTheServiceAccount(t *testing.T) {
	t.Parallel()
	before := written{Within: []string{"{namespace}"}, Rules: []object{{
		"name": "other", "subjects": []object{{"namespaces": []string{"b"}}}, "allow": []object{{"repositories": []string{"b"}, "actions": []string{"pull"}}},
	}}}
	after := before
	after.Objects = []object{{"rules": []object{{
		"name": "r", "subjects": []object{{"serviceAccounts": []string{"a"}}},
		"allow": []object{{"repositories": []string{"{serviceAccount}"}, "actions": []string{"delete"}}},
	}}}}
	d := testkit.Value(Find(t.Context(), before.side(t), after.side(t)))(t)
	if len(d.Gained) == 0 {
		t.Fatal("nothing is gained")
	}
	if got := d.Gained[0].Example; got.As != "c1/a/a" || got.Scope != "repository:a:delete" {
		t.Errorf("%+v", got)
	}
}
