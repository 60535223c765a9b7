package reach

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func spec(t *testing.T, text string) any {
	t.Helper()
	var value any
	testkit.Must(t, yaml.Unmarshal([]byte(text), &value))
	return value
}

// placed returns the grants of rules, with their cluster and subjects.
func placed(who *Who) string {
	var all []string
	for _, r := range who.Rules {
		text := r.Name + "@" + r.Cluster + " by " + strings.Join(r.Patterns, " ") + " within " + strings.Join(r.Within, " ")
		for _, s := range r.Subjects {
			text += " [" + s.String() + "]"
		}
		for _, a := range r.Asked {
			text += " " + a.Object + " for " + strings.Join(a.ServiceAccounts, ",")
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}

// If a rule depends on objects, the answer has a grant for each cluster, with only the subjects
// that the objects can match there.
func TestWhoIsInCluster(t *testing.T) {
	t.Parallel()
	const asks = "requests: true, allow: [{repositories: [%s], actions: [pull]}]"
	for name, test := range map[string]struct{ rule, object, within, request, want string }{
		"a file's rule": {rule: `subjects: [{namespaces: ["team-*"]}], ` + asks, within: "{namespace}/**", request: "{serviceAccounts: [web, ci], repositories: [team-a/*], actions: [pull]}",
			want: "r@prod by ** within {namespace}/** [namespaces team-*; where {namespace} is team-a] team-a/q for web,ci"},
		"of some of whom an object asks for": {rule: `subjects: [{serviceAccounts: [web]}], ` + asks, within: "**", request: "{serviceAccounts: [web, ci], repositories: [team-a/*], actions: [pull]}", want: "r@prod by ** within ** [ServiceAccounts web] team-a/q for web"},
		"of others":                          {rule: `subjects: [{namespaces: [x]}], ` + asks, within: "**", request: "{serviceAccounts: [web], repositories: [team-a/*], actions: [pull]}", want: "r@prod by ** within ** [namespaces x]"},
		"another action":                     {rule: `subjects: [{clusters: ["*"]}], ` + asks, within: "**", request: "{serviceAccounts: [web], repositories: [team-a/*], actions: [push]}", want: "r@prod by ** within ** [clusters *]"},
		"no request":                         {rule: `subjects: [{clusters: ["*"]}], ` + asks, within: "**", want: "r@prod by ** within ** [clusters *]"},
		"of those whom the names mean": {rule: `subjects: [{namespaces: ["*"]}], ` + strings.Replace(asks, "%s", `"*/{serviceAccount}"`, 1), within: "**", request: "{serviceAccounts: [web, ci], repositories: [team-a/*], actions: [pull]}",
			want: "r@prod by */{serviceAccount} within ** [namespaces *; where {serviceAccount} is web] team-a/q for web"},
		"a limit for identities":                          {rule: `subjects: [{namespaces: ["*"]}], ` + asks, within: "{claims.project_path}/**", want: ""},
		"another cluster":                                 {rule: `subjects: [{clusters: [dev]}], ` + asks, within: "**", want: ""},
		"beyond":                                          {rule: `subjects: [{namespaces: ["*"]}], ` + asks, within: "x/**", want: ""},
		"the namespace in both patterns":                  {rule: `subjects: [{namespaces: ["*"]}], ` + strings.Replace(asks, "%s", `"*/{namespace}"`, 1), within: "{namespace}/**", want: ""},
		"the cluster's name":                              {rule: `subjects: [{namespaces: ["*"]}], ` + strings.Replace(asks, "%s", `"{namespace}-{cluster}/**", "team-{cluster}/**"`, 1), within: "**", want: ""},
		"an object's rule, of its cluster alone":          {object: `{rules: [{name: own, subjects: [{namespaces: [team-a]}], allow: [{repositories: ["{namespace}/**"], actions: ["*"]}]}]}`, within: "team-*/**", want: "o/own@prod by {namespace}/** within team-*/** [namespaces team-a; where {namespace} is team-a]"},
		"an object's rule that selects":                   {object: `{rules: [{name: own, requests: true, subjects: [{namespaces: [team-a]}], allow: [{repositories: ["**"], actions: ["*"]}]}]}`, within: "**", request: "{serviceAccounts: [web], repositories: [team-a/web], actions: ['*']}", want: "o/own@prod by ** within ** [namespaces team-a] team-a/q for web"},
		"an object with a fault gives nothing":            {object: `{rules: [{name: own, subjects: [{namespaces: [team-a]}], allow: [{repositories: ["**"], actions: ["*"]}]}, {}]}`, within: "**", want: ""},
		"a request with a fault asks for nothing":         {rule: `subjects: [{clusters: ["*"]}], ` + asks, within: "**", request: "{serviceAccounts: [web], repositories: [team-a/*, '?'], actions: [pull]}", want: "r@prod by ** within ** [clusters *]"},
		"a rule that nothing selects from grants nothing": {rule: `subjects: [{clusters: [prod]}], allow: [{repositories: ["**"], actions: [pull]}]`, within: "x", want: "r@ by ** within  [clusters prod]"},
	} {
		rule := strings.ReplaceAll(test.rule, "%s", `"**"`)
		rule = cmp.Or(rule, "anonymous: true, allow: [{repositories: [other], actions: [pull]}]")
		said := Objects{HasRequests: true}
		var objects []*policy.ObjectPolicy
		if test.object != "" {
			objects = append(objects, policy.ParseObject("o", spec(t, test.object)))
		}
		said.Policies = policy.NewPolicies([]pattern.Pattern{pattern.Pattern(test.within)}, objects...)
		if test.request != "" {
			said.Requests = []*policy.Request{policy.ParseRequest("team-a", "q", spec(t, test.request))}
		}
		p := policyOf(t, "{name: r, "+rule+"}")
		who, err := FindWho(t.Context(), p, "s", scope("team-a/web", "pull"), []Accounts{{Cluster: "prod", Objects: said}, {Cluster: "bare"}})
		testkit.Must(t, err)
		if got := placed(who); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
		said.HasRequests, said.Requests = false, nil
		who, err = FindWho(t.Context(), p, "s", scope("team-a/web", "pull"), []Accounts{{Cluster: "prod", Objects: said}})
		if err != nil || strings.Contains(test.rule+test.object, "requests: true") && who.Rules != nil && len(who.Rules) > 0 {
			t.Errorf("%s: where no RepositoryAccess counts: %s, %v", name, placed(who), err)
		}
	}
}

// Requests beyond the limit of a ServiceAccount do not count.
func TestWhoReadsNoMoreRequests(t *testing.T) {
	t.Parallel()
	var said Objects
	said.Policies, said.HasRequests = policy.NewPolicies([]pattern.Pattern{"**"}), true
	for i := range 5 {
		var items []any
		for n := range 127 {
			items = append(items, fmt.Sprintf("x%d/y%d", i, n))
		}
		accounts := []any{"web"}
		if i == 4 {
			accounts = append(accounts, "ci")
		}
		said.Requests = append(said.Requests, policy.ParseRequest("a", fmt.Sprint("q", i), map[string]any{"serviceAccounts": accounts, "repositories": append(items, "z"), "actions": []any{"pull"}}))
	}
	who, err := FindWho(t.Context(), policyOf(t, `{name: r, requests: true, subjects: [{namespaces: [a]}], allow: [{repositories: ["**"], actions: [pull]}]}`), "s", scope("z", "pull"), []Accounts{{Cluster: "prod", Objects: said}})
	testkit.Must(t, err)
	if got, want := placed(who), "r@prod by ** within ** [namespaces a] a/q0 for web a/q1 for web a/q2 for web a/q3 for web a/q4 for ci"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// Each namespace has a limit of its own.
func TestWhoReadsRequestsByNamespace(t *testing.T) {
	t.Parallel()
	said := Objects{Policies: policy.NewPolicies([]pattern.Pattern{"**"}), HasRequests: true}
	for _, namespace := range []string{"a", "b"} {
		for i := range 5 {
			var items []any
			for n := range 127 {
				items = append(items, fmt.Sprintf("x%d/y%d", i, n))
			}
			said.Requests = append(said.Requests, policy.ParseRequest(namespace, fmt.Sprint("q", i), map[string]any{"serviceAccounts": []any{"web"}, "repositories": append(items, "z"), "actions": []any{"pull"}}))
		}
	}
	who, err := FindWho(t.Context(), policyOf(t, `{name: r, requests: true, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: [pull]}]}`), "s", scope("z", "pull"), []Accounts{{Cluster: "prod", Objects: said}})
	testkit.Must(t, err)
	want := "r@prod by ** within ** [namespaces *] a/q0 for web a/q1 for web a/q2 for web a/q3 for web b/q0 for web b/q1 for web b/q2 for web b/q3 for web"
	if got := placed(who); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// Names are not listed if there are too many in the rule, in the limit, or in both together.
func TestWhoIsUnlistedInCluster(t *testing.T) {
	t.Parallel()
	long, of32 := strings.Repeat("abc", 20), strings.Repeat("a", 32)
	const many = "*{namespace}*"
	costly := strings.Repeat("*a", 100) + "*{namespace}c"
	few := `"{namespace}*", "*{namespace}", "{serviceAccount}*"`
	fewer := []pattern.Pattern{"{namespace}*", "*{namespace}", "{serviceAccount}*"}
	for _, test := range []struct {
		what, allow string
		within      []pattern.Pattern
		repository  string
		want        string // of the subject; empty: no rule
	}{
		{"in the rule", `"` + many + `"`, []pattern.Pattern{"**"}, long, "unlisted"},
		{"in the limit", `"**"`, []pattern.Pattern{many}, long, "unlisted"},
		{"in the first pattern", `"` + many + `", "{namespace}"`, []pattern.Pattern{"**"}, long, "unlisted"},
		{"beyond the limit", `"` + many + `"`, []pattern.Pattern{"x/**"}, long, ""},
		{"in both together", few, fewer, of32, "unlisted"},
		{"in few", `"{namespace}*"`, []pattern.Pattern{"{namespace}"}, of32, "listed"},
		{"where the search ends", `"` + costly + `"`, []pattern.Pattern{"**"}, strings.Repeat("a", 200) + "b", "unlisted"},
	} {
		said := Objects{Policies: policy.NewPolicies(test.within), HasRequests: true}
		p := policyOf(t, `{name: r, requests: true, subjects: [{namespaces: ["*"]}], allow: [{repositories: [`+test.allow+`], actions: [pull]}]}`)
		who, err := FindWho(t.Context(), p, "s", scope(test.repository, "pull"), []Accounts{{Cluster: "prod", Objects: said}})
		testkit.Must(t, err)
		got := ""
		for _, r := range who.Rules {
			got = map[bool]string{true: "unlisted", false: "listed"}[r.Subjects[0].Unlisted]
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	said := Objects{Policies: policy.NewPolicies([]pattern.Pattern{"**"}), HasRequests: true}
	who, err := FindWho(t.Context(), policyOf(t, `{name: r, requests: true, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["{namespace}/{cluster}"], actions: [pull]}]}`), "s", scope("a/prod", "pull"), []Accounts{{Cluster: "prod", Objects: said}})
	testkit.Must(t, err)
	if got, want := placed(who), "r@prod by {namespace}/{cluster} within ** [namespaces *; where {namespace} is a]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
