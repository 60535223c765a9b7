package diff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Two policies are never called equal if AccessPolicy objects that are not known can make a difference.
func TestUnknownObjects(t *testing.T) {
	t.Parallel()
	const plain, denial = `"rules": [{"name": "r", "subjects": [{"namespaces": ["a"]}], "allow": [{"repositories": ["a"], "actions": ["pull"]}]}]`, `, "deny": [{"name": "bad", "subjects": [%s]}]`
	denies := func(subject string) string { return plain + strings.ReplaceAll(denial, "%s", subject) }
	objects := func(within string, change ...func(*Objects)) func(*Side) {
		return func(s *Side) {
			o := &Objects{Policies: policy.NewPolicies([]pattern.Pattern{pattern.Pattern(within)}), PoliciesAreRead: true}
			for _, f := range change {
				f(o)
			}
			s.Clusters[0].Objects = o
		}
	}
	unknown := objects("{namespace}/**")
	requests := func(o *Objects) { o.RequestsAreRead = true }
	known := func(o *Objects) { o.AreKnown = true }
	alone := func(o *Objects) { o.PoliciesAreRead, o.RequestsAreRead = false, true }
	also := func(f func(*Side)) func(*Side) { return func(s *Side) { unknown(s); f(s) } }
	upstream := func(actions action.Set) func(*Side) {
		return also(func(s *Side) { s.Services[0].Upstreams = map[string]action.Set{"quay.io": actions} })
	}
	none := func(*Side) {}
	for name, test := range map[string]struct {
		before, after     string
		ofBefore, ofAfter func(*Side)
		gained, lost      string // why; empty: nothing
	}{
		"equal":               {plain, plain, unknown, unknown, "", ""},
		"none counts":         {plain, plain, none, none, "", ""},
		"policies begin":      {plain, plain, none, unknown, "objects.policies differs", "objects.policies differs"},
		"beside requests":     {plain, plain, objects("{namespace}/**", alone), objects("{namespace}/**", requests), "objects.policies differs", "objects.policies differs"},
		"requests alone":      {plain, plain, objects("{namespace}/**", alone), none, "", ""},
		"known":               {plain, plain, none, objects("{namespace}/**", known), "", ""},
		"known on one side":   {plain, plain, objects("{namespace}/**", known), unknown, "only one side has objects", "only one side has objects"},
		"a wider limit":       {plain, plain, unknown, objects("**"), "objects.within differs", ""},
		"requests begin":      {plain, plain, unknown, objects("{namespace}/**", requests), "objects.requests differs", ""},
		"requests on both":    {plain, plain, objects("{namespace}/**", requests), objects("{namespace}/**", requests), "", ""},
		"a new name":          {plain, plain, unknown, also(func(s *Side) { s.Clusters[0].Name = "prod2" }), "prod2 are not known, and only one side has the cluster", "prod are not known, and only one side has the cluster"},
		"a registry":          {plain, plain, unknown, also(func(s *Side) { s.Services = append(s.Services, Service{Name: "s"}) }), "registries or upstreams differ", ""},
		"an upstream":         {plain, plain, upstream(action.Pull), upstream(action.Pull | action.Push), "registries or upstreams differ", ""},
		"a denial ends":       {denies(`{"namespaces": ["b"]}`), plain, unknown, unknown, "deny rule bad could refuse", ""},
		"a denial elsewhere":  {denies(`{"clusters": ["us"]}`), plain, unknown, unknown, "", ""},
		"a denial of CI jobs": {denies(`{"identities": ["ci"], "claims": {"sub": ["1"]}}`), plain, unknown, unknown, "", ""},
	} {
		d := testkit.Value(Find(t.Context(), conditionSide(t, test.before, test.ofBefore), conditionSide(t, test.after, test.ofAfter)))(t)
		for _, part := range []struct {
			entries []Entry
			want    string
		}{{d.Gained, test.gained}, {d.Lost, test.lost}} {
			var got string
			for _, e := range part.entries {
				if e.Rule == "AccessPolicy objects" {
					got += e.Unjudged
				}
			}
			if !strings.Contains(got, part.want) || (got == "") != (part.want == "") {
				t.Errorf("%s: %q, want %q", name, got, part.want)
			}
		}
	}
}

// Without a configuration, a denial that ends or begins is in an entry: rules of other files may grant what it refuses.
func TestDenialsOfFilesAlone(t *testing.T) {
	t.Parallel()
	const rules = `{"apiVersion": "pullpass.dev/v1beta1", "kind": "AccessPolicy", "rules": [{"name": "r", "subjects": [{"namespaces": ["a"]}], "allow": [{"repositories": ["a"], "actions": ["pull"]}]}]`
	open := func(deny string) *Side {
		return &Side{Policy: testkit.Value(policy.Parse(policy.File{Name: "p.yaml", Data: []byte(rules + deny + "}")}))(t), IsOpen: true}
	}
	for name, test := range map[string]struct{ deny, who string }{
		"pods": {`, "deny": [{"name": "bad", "subjects": [{"namespaces": ["b"]}]}]`, "[*/*/*]"},
		"jobs": {`, "deny": [{"name": "bad", "subjects": [{"identities": ["github", "gitlab"], "claims": {"ref": ["x"]}}]}]`, "[identity/github identity/gitlab]"},
	} {
		for _, ends := range []bool{true, false} {
			before, after := open(test.deny), open("")
			if !ends {
				before, after = after, before
			}
			d := testkit.Value(Find(t.Context(), before, after))(t)
			changed, unchanged := d.Gained, d.Lost
			if !ends {
				changed, unchanged = unchanged, changed
			}
			var who []string
			for _, e := range changed {
				if strings.Contains(e.Unjudged, "deny rule bad could refuse what they grant") {
					who = append(who, e.Who)
				}
			}
			if fmt.Sprint(who) != test.who || len(unchanged) > 0 {
				t.Errorf("%s, ends %t: %v, and %v", name, ends, changed, unchanged)
			}
		}
	}
}
