package reach

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestIdle(t *testing.T) {
	t.Parallel()
	const (
		file      = `rules: [{name: own, subjects: [{clusters: [prod], namespaces: ["team-*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}, {name: ceiling, subjects: [{namespaces: ["team-*"]}], requests: true, allow: [{repositories: ["shared/**"], actions: [pull]}]}]` + "\n" + `deny: [{name: bad, subjects: [{namespaces: [old]}]}, {name: less, subjects: [{clusters: [prod], namespaces: [gone], serviceAccounts: [x]}]}, {name: more, subjects: [{clusters: [prod], namespaces: [gone]}]}]`
		remove    = ": remove it, or narrow the other"
		inVain    = ", which no rule with requests: true allows to its ServiceAccounts within what objects may give: remove it, or let an administrator of the policy allow it"
		beyond    = "grants nothing: nothing that it allows is within what objects may give (clusters[].kubernetes.objects.within)"
		ownIsMore = "cluster prod: rule o/r: grants nothing that the rule own (p: rules[0]) does not" + remove
	)
	rule := func(whom, allow string) string {
		return `rules: [{name: r, subjects: [{` + whom + `}], allow: [{repositories: [` + allow + `], actions: [pull]}]}]`
	}
	for name, test := range map[string]struct{ cluster, within, object, request, want string }{
		"a rule says what the file says":        {"prod", "**", rule("namespaces: [team-a]", "team-a/web"), "", ownIsMore},
		"the file means another cluster":        {"dev", "**", rule("namespaces: [team-a]", "team-a/web"), "", ""},
		"a rule says more":                      {"prod", "**", rule("namespaces: [team-a]", "team-a/web, x"), "", ""},
		"of what it says more, nothing counts":  {"prod", "x/*", rule("namespaces: [team-a]", "y/**"), "", "cluster prod: rule o/r: " + beyond},
		"its own namespace is not within":       {"prod", "x/{namespace}/*", rule("namespaces: [team-a]", "x/b/*"), "", "cluster prod: rule o/r: " + beyond},
		"some namespace is within":              {"prod", "x/{namespace}/*", rule(`namespaces: ["*"]`, "x/b/*"), "", ""},
		"who is refused by the file":            {"prod", "**", rule("namespaces: [old]", "x"), "", "cluster prod: rule o/r: grants nothing: the deny rule bad (p: deny[0]) refuses every caller that the rule is for: remove the rule, or narrow the denial"},
		"who is refused by the object":          {"prod", "**", rule("namespaces: [b]", "x") + "\ndeny: [{name: d, subjects: [{namespaces: [\"*\"]}]}]", "", "cluster prod: rule o/r: grants nothing: the deny rule o/d (AccessPolicy o: deny[0]) refuses every caller that the rule is for: remove the rule, or narrow the denial"},
		"refused twice":                         {"prod", "**", "deny: [{name: d, subjects: [{namespaces: [old], serviceAccounts: [x]}]}]", "", "cluster prod: deny rule o/d: refuses no caller that the deny rule bad (p: deny[0]) does not refuse" + remove},
		"refused twice, in this cluster":        {"prod", "**", "deny: [{name: d, subjects: [{namespaces: [gone]}]}]", "", "cluster prod: deny rule o/d: refuses no caller that the deny rule more (p: deny[2]) does not refuse" + remove},
		"refused in another cluster":            {"dev", "**", "deny: [{name: d, subjects: [{namespaces: [gone]}]}]", "", ""},
		"a denial that refuses more":            {"prod", "**", "deny: [{name: d, subjects: [{namespaces: [\"o*\"]}]}]", "", ""},
		"the same ceiling":                      {"prod", "**", strings.Replace(rule("namespaces: [team-a]", "shared/x"), "allow", "requests: true, allow", 1), "", "cluster prod: rule o/r: grants nothing that the rule ceiling (p: rules[1]) does not" + remove},
		"a file's rule that an object replaces": {"prod", "**", rule("namespaces: [\"*\"]", `"**"`), "", ""},
		"asked for and allowed":                 {"prod", "shared/**", "", "shared/x", ""},
		"asked for beyond what objects give":    {"prod", "other/**", "", "shared/x", "cluster prod: RepositoryAccess team-a/q: asks for shared/x" + inVain},
		"asked for beyond the ceiling":          {"prod", "**", "", "x", "cluster prod: RepositoryAccess team-a/q: asks for x" + inVain},
		"a ceiling that is an object's":         {"prod", "**", strings.Replace(rule("namespaces: [team-a]", "x"), "allow", "requests: true, allow", 1), "x", ""},
		"a ceiling for another namespace":       {"prod", "**", strings.Replace(rule("namespaces: [team-b]", "x"), "allow", "requests: true, allow", 1), "x", "cluster prod: RepositoryAccess team-a/q: asks for x" + inVain},
		"a rule that selects by nothing":        {"prod", "**", rule("namespaces: [team-a]", "x"), "x", "cluster prod: RepositoryAccess team-a/q: asks for x" + inVain},
		"a ceiling for another ServiceAccount":  {"prod", "**", strings.Replace(rule("serviceAccounts: [b]", "x"), "allow", "requests: true, allow", 1), "x", "cluster prod: RepositoryAccess team-a/q: asks for x" + inVain},
		"a ceiling for other actions":           {"prod", "**", strings.Replace(strings.Replace(rule("namespaces: [team-a]", "x"), "allow", "requests: true, allow", 1), "[pull]", "[push]", 1), "x", "cluster prod: RepositoryAccess team-a/q: asks for x" + inVain},
		"a faulty object gets no such warning":  {"prod", "**", "rules: [{name: r}]", "{namespace}", ""},
	} {
		p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\n" + file)}))(t)
		var spec any
		if err := yaml.Unmarshal([]byte(test.object), &spec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		objects := Objects{HasRequests: true, Policies: policy.NewPolicies([]pattern.Pattern{pattern.Pattern(test.within)})}
		if test.object != "" {
			objects.Policies = policy.NewPolicies([]pattern.Pattern{pattern.Pattern(test.within)}, policy.ParseObject("o", spec))
		}
		if test.request != "" {
			objects.Requests = []*policy.Request{policy.ParseRequest("team-a", "q", map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{test.request}, "actions": []any{"pull"}})}
		}
		if got := strings.Join(Idle(p, test.cluster, objects), "; "); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
		if objects.HasRequests = false; strings.Contains(test.object, "requests") {
			if got, want := strings.Join(Idle(p, test.cluster, objects), "; "), "cluster prod: rule o/r: grants nothing: no RepositoryAccess objects count in the cluster (clusters[].kubernetes.objects.requests)"; got != want {
				t.Errorf("%s, and no requests count:\n%s\nwant\n%s", name, got, want)
			}
		}
	}
	elsewhere := policyOf(t, `{name: ceiling, subjects: [{clusters: [dev]}], requests: true, allow: [{repositories: ["**"], actions: [pull]}]}`)
	asking := Objects{HasRequests: true, Policies: policy.NewPolicies([]pattern.Pattern{"**"}), Requests: []*policy.Request{
		policy.ParseRequest("team-a", "q", map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{"x"}, "actions": []any{"pull"}}),
	}}
	if got := Idle(elsewhere, "prod", asking); len(got) != 1 || len(Idle(elsewhere, "dev", asking)) != 0 {
		t.Errorf("a ceiling for another cluster: %q", got)
	}
	if got := Idle(&policy.Policy{}, "prod", Objects{}); got != nil {
		t.Errorf("no objects count: %q", got)
	}
}

// Removing everything that Idle names of objects changes no grants.
func TestIdleObjectsGrantNothing(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(13, 14))}
	rules, requests := 0, 0
	for range 2 * *randomPolicies {
		p, within := parse(t, w.document()), w.within(t)
		specs := slices.DeleteFunc(w.specs(), func(spec map[string]any) bool { return policy.ParseObject("o", spec).Err() != nil })
		before := Objects{Policies: policy.NewPolicies(within, parseObjects(specs)...), HasRequests: w.IntN(4) > 0}
		asked := map[string]any{}
		for n := range w.IntN(4) {
			spec := lists(w.allowance())
			spec["serviceAccounts"] = []any{w.one("a", "b", "ab")}
			namespace, name := w.one("a", "ab", "b"), fmt.Sprint("q", n)
			before.Requests = append(before.Requests, policy.ParseRequest(namespace, name, spec))
			asked[namespace+"/"+name] = spec
		}
		found := Idle(p, "prod", before)
		if found == nil {
			continue
		}
		isNamed := func(kind, name string) bool {
			return slices.ContainsFunc(found, func(text string) bool { return strings.HasPrefix(text, "cluster prod: "+kind+" "+name+": ") })
		}
		less := make([]map[string]any, len(specs))
		for i, spec := range specs {
			less[i] = map[string]any{}
			for key, kind := range map[string]string{"rules": "rule", "deny": "deny rule"} {
				var kept []any
				list, _ := spec[key].([]any)
				for _, r := range list {
					if fields, ok := r.(map[string]any); ok && isNamed(kind, fmt.Sprintf("o%d/%v", i, fields["name"])) {
						rules++
						continue
					}
					kept = append(kept, r)
				}
				if kept != nil {
					less[i][key] = kept
				}
			}
		}
		after := Objects{Policies: policy.NewPolicies(within, parseObjects(less)...), HasRequests: before.HasRequests}
		for _, r := range before.Requests {
			repositories, _ := asked[r.Namespace()+"/"+r.Name()].(map[string]any)["repositories"].([]any)
			kept := slices.DeleteFunc(slices.Clone(repositories), func(repository any) bool {
				return slices.ContainsFunc(found, func(text string) bool {
					return strings.HasPrefix(text, fmt.Sprintf("cluster prod: RepositoryAccess %s/%s: asks for %s, ", r.Namespace(), r.Name(), repository))
				})
			})
			requests += len(repositories) - len(kept)
			spec := asked[r.Namespace()+"/"+r.Name()].(map[string]any)
			after.Requests = append(after.Requests, policy.ParseRequest(r.Namespace(), r.Name(), map[string]any{"serviceAccounts": spec["serviceAccounts"], "repositories": kept, "actions": spec["actions"]}))
		}
		for range 40 {
			subject, service := w.asker(nil), w.one("s1", "s2")
			id := subject.Identity
			if id == nil || id.External != nil {
				continue
			}
			id.Cluster = "prod"
			lessSubject := subject
			subject.Objects, lessSubject.Objects = said(before, id.Kubernetes), said(after, id.Kubernetes)
			scopes := []registryauth.Scope{scope(w.repository(), w.one(append([]string{"*", "other"}, Actions...)...))}
			with, without := p.Decide(subject, service, scopes), p.Decide(lessSubject, service, scopes)
			if !reflect.DeepEqual(with.Granted(), without.Granted()) || (with.DeniedBy == "") != (without.DeniedBy == "") {
				t.Fatalf("%q: but %+v gets %v %s, and without %v %s\n%v", found, id, with.Granted(), with.DeniedBy, without.Granted(), without.DeniedBy, specs)
			}
		}
	}
	if rules < *randomPolicies/20 || requests < *randomPolicies/20 {
		t.Errorf("only %d rules and %d requests were named", rules, requests)
	}
}
