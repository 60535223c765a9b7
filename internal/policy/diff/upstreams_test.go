package diff

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The gateway lets tokens do what an upstream allows. A difference there is in an entry of each rule
// that grants it.
func TestUpstreams(t *testing.T) {
	t.Parallel()
	const rules = `"rules": [
		{"name": "own", "subjects": [{"namespaces": ["a"]}], "allow": [{"repositories": ["ghcr.io/{namespace}/**", "other.io/**"], "actions": ["pull", "push"]}]},
		{"name": "all", "anonymous": true, "allow": [{"repositories": ["**"], "actions": ["pull"]}]},
		{"name": "elsewhere", "services": ["s"], "subjects": [{"namespaces": ["a"]}], "allow": [{"repositories": ["ghcr.io/**"], "actions": ["*"]}]},
		{"name": "list", "subjects": [{"namespaces": ["a"]}], "allow": [{"registry": ["catalog"], "actions": ["*"]}]}]`
	with := func(upstreams map[string]action.Set) *Side {
		return conditionSide(t, rules, func(s *Side) {
			s.Services = []Service{{Name: "r", Upstreams: upstreams}, {Name: "s"}}
			s.Identities = s.Identities[:1]
		})
	}
	pull, push := action.Pull, action.Pull|action.Push
	for name, test := range map[string]struct {
		before, after map[string]action.Set
		gained, lost  []string
	}{
		"equal":            {map[string]action.Set{"ghcr.io": push}, map[string]action.Set{"ghcr.io": push}, nil, nil},
		"an action more":   {map[string]action.Set{"ghcr.io": pull}, map[string]action.Set{"ghcr.io": push}, []string{"*/a/* r ghcr.io/{namespace}/** push [upstream ghcr.io]"}, nil},
		"an action less":   {map[string]action.Set{"ghcr.io": push}, map[string]action.Set{"ghcr.io": pull}, nil, []string{"*/a/* r ghcr.io/{namespace}/** push [upstream ghcr.io]"}},
		"without a rule":   {map[string]action.Set{"ghcr.io": push}, map[string]action.Set{"ghcr.io": push | action.Delete}, nil, nil},
		"another upstream": {nil, map[string]action.Set{"quay.io": pull}, []string{"*/*/* r ** pull [upstream quay.io]", "identity/ci r ** pull [upstream quay.io]", "anonymous r ** pull [upstream quay.io]"}, nil},
	} {
		d := testkit.Value(Find(t.Context(), with(test.before), with(test.after)))(t)
		for _, part := range []struct {
			entries []Entry
			want    []string
		}{{d.Gained, test.gained}, {d.Lost, test.lost}} {
			var got []string
			for _, e := range part.entries {
				got = append(got, fmt.Sprint(e.Who, " ", e.Service, " ", e.Repositories, " ", action.Of(e.Actions), " ", e.Where))
				if e.Unjudged == "" {
					t.Errorf("%s: %+v does not say why", name, e)
				}
			}
			if !slices.Equal(got, part.want) {
				t.Errorf("%s: %q, want %q", name, got, part.want)
			}
		}
	}
	// Grants at a registry that one side does not have are in entries with examples.
	isNew := with(map[string]action.Set{"ghcr.io": push})
	without := with(nil)
	without.Services = without.Services[1:]
	for _, e := range testkit.Value(Find(t.Context(), without, isNew))(t).Gained {
		if e.Unjudged != "" {
			t.Errorf("at a new registry: %+v", e)
		}
	}
}
