package reach

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// wanted is a rule or a request in an independent definition: as a list of the matched names.
type wanted struct {
	namespaces, accounts []string // any of these; nil: any
	repositories         []string
	actions              []string
	requests             bool
}

func (w wanted) isFor(namespace, account string) bool {
	return (w.namespaces == nil || slices.Contains(w.namespaces, namespace)) && (w.accounts == nil || slices.Contains(w.accounts, account))
}

func (w wanted) gives(namespace, repository, action string) bool {
	return slices.Contains(w.actions, action) && coversName(w.repositories, namespace, repository)
}

// coversName supports only the patterns of the test: x, x/**, **, and {namespace}.
func coversName(patterns []string, namespace, repository string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		p = strings.ReplaceAll(p, "{namespace}", namespace)
		prefix, isTree := strings.CutSuffix(p, "**")
		return p == repository || isTree && (strings.HasPrefix(repository, prefix) || repository+"/" == prefix)
	})
}

// No request gets more than its ceiling, less than rule and request both allow, or anything despite
// a denial. An explanation, who-can and reach agree with the decision. "make random" tests a
// million policies, which takes minutes.
func TestRandomObjects(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(16, 1))
	some := func(of ...string) []string {
		var list []string
		for _, s := range of {
			if r.IntN(2) == 0 {
				list = append(list, s)
			}
		}
		if list == nil {
			list = []string{of[r.IntN(len(of))]}
		}
		return list
	}
	anyList := func(list []string) any {
		values := make([]any, len(list))
		for i, s := range list {
			values[i] = s
		}
		return values
	}
	newWanted := func() wanted {
		return wanted{namespaces: some("a", "b"), accounts: some("web", "old"), repositories: some("a/**", "a/x", "**", "{namespace}/**", "s/y", "b/x"), actions: some("pull", "push"), requests: r.IntN(2) == 0}
	}
	asMap := func(name string, w wanted) map[string]any {
		return map[string]any{
			"name": name, "requests": w.requests, "subjects": []any{map[string]any{"namespaces": anyList(w.namespaces), "serviceAccounts": anyList(w.accounts)}},
			"allow": []any{map[string]any{"repositories": anyList(w.repositories), "actions": anyList(w.actions)}},
		}
	}
	granted, denied := 0, 0
	for n := range *randomPolicies {
		// The file.
		var text strings.Builder
		text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
		var fileRules, objectRules, asked, denials []wanted
		for i := range 1 + r.IntN(3) {
			w := newWanted()
			fileRules = append(fileRules, w)
			fmt.Fprintf(&text, "- {name: f%d, requests: %t, subjects: [{namespaces: [%s], serviceAccounts: [%s]}], allow: [{repositories: ['%s'], actions: [%s]}]}\n",
				i, w.requests, strings.Join(w.namespaces, ","), strings.Join(w.accounts, ","), strings.Join(w.repositories, "','"), strings.Join(w.actions, ","))
		}
		file := testkit.Value(policy.Parse(policy.File{Data: []byte(text.String())}))(t)
		// The objects, some of them with a fault.
		var objects []*policy.ObjectPolicy
		for i := range r.IntN(3) {
			w, isBroken := newWanted(), r.IntN(4) == 0
			spec := map[string]any{"rules": []any{asMap("r", w)}}
			if isBroken {
				spec["rules"] = append(spec["rules"].([]any), map[string]any{"name": "broken"})
			} else {
				objectRules = append(objectRules, w)
			}
			if r.IntN(4) == 0 {
				d := wanted{namespaces: some("a", "b"), accounts: some("web", "old")}
				subject := map[string]any{"namespaces": anyList(d.namespaces), "serviceAccounts": anyList(d.accounts)}
				if r.IntN(3) == 0 { // it refuses every subject in its reach, and its rules count for nothing
					subject["serviceAccounts"] = []any{"?"}
					d.accounts = nil
					if !isBroken {
						objectRules = objectRules[:len(objectRules)-1]
					}
				}
				denials = append(denials, d)
				spec["deny"] = []any{map[string]any{"name": "d", "subjects": []any{subject}}}
			}
			objects = append(objects, policy.ParseObject(fmt.Sprint("o", i), spec))
		}
		namespace, name := some("a", "b")[0], some("web", "old")[0]
		var requests []*policy.Request
		for i := range r.IntN(3) {
			w := wanted{accounts: some("web", "old"), repositories: some("a/**", "a/x", "**", "s/y"), actions: some("pull", "push")}
			spec := map[string]any{"serviceAccounts": anyList(w.accounts), "repositories": anyList(w.repositories), "actions": anyList(w.actions)}
			if r.IntN(4) == 0 {
				spec["repositories"] = append(spec["repositories"].([]any), "{namespace}")
			} else {
				asked = append(asked, w)
			}
			requests = append(requests, policy.ParseRequest(namespace, fmt.Sprint("q", i), spec))
		}
		within := some("a/**", "{namespace}/**", "s/y", "**")
		var limits []pattern.Pattern
		for _, p := range within {
			limits = append(limits, pattern.Pattern(p))
		}
		id := &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name, UID: "u"}}}
		subject := policy.Subject{Identity: id, Objects: policy.Objects{Policies: policy.NewPolicies(limits, objects...), Requests: policy.NewRequests(name, requests)}}

		what := FindWhat(file, "prod/"+namespace+"/"+name, subject, []string{""}).Services[0]
		clusters := []Accounts{{Cluster: "prod", Objects: Objects{Policies: subject.Objects.Policies, Requests: requests, HasRequests: true}}}
		told := r.IntN(10) // the scope of the who-can query

		isDenied := slices.ContainsFunc(denials, func(d wanted) bool { return d.isFor(namespace, name) })
		for i, repository := range []string{"a/x", "a/y", "b/x", "s/y", "a"} {
			both := registryauth.Scope{Type: "repository", Name: repository, Actions: []string{"pull", "push"}}
			d, trace := file.Explain(subject, "", []registryauth.Scope{both})
			if again := file.Decide(subject, "", []registryauth.Scope{both}); !reflect.DeepEqual(again, d) {
				t.Fatalf("policy %d: decided %+v, explained %+v", n, again, d)
			}
			var want []string
			for j, action := range both.Actions {
				asks := slices.ContainsFunc(asked, func(w wanted) bool { return w.isFor(namespace, name) && w.gives(namespace, repository, action) })
				limited := coversName(within, namespace, repository)
				gives := func(w wanted, isLimited bool) bool {
					return w.isFor(namespace, name) && w.gives(namespace, repository, action) && (!w.requests || asks) && (!isLimited && !w.requests || limited)
				}
				if !isDenied && (slices.ContainsFunc(fileRules, func(w wanted) bool { return gives(w, false) }) || slices.ContainsFunc(objectRules, func(w wanted) bool { return gives(w, true) })) {
					want = append(want, action)
				}
				isWanted := slices.Contains(want, action)
				if reached := what.DeniedBy == "" && what.reaches(repository, action); reached != isWanted {
					t.Fatalf("policy %d: %s/%s: %s on %s is said to be reached: %t\n%+v", n, namespace, name, action, repository, reached, what)
				}
				if told == 2*i+j {
					who, err := FindWho(t.Context(), file, "", scope(repository, action), clusters)
					if err != nil || reads(who, subject, scope(repository, action)) != isWanted {
						t.Fatalf("policy %d: %s/%s: who can %s %s, %t, is said to be %+v, %v", n, namespace, name, action, repository, isWanted, who, err)
					}
				}
			}
			got := d.Scopes[0].Granted
			if !slices.Equal(got, want) || (d.DeniedBy != "") != isDenied {
				t.Fatalf("policy %d: %s/%s on %s: granted %q, denied by %q, want %q, %t\nfile %+v\nobjects %+v\nasked %+v\nwithin %q", n, namespace, name, repository, got, d.DeniedBy, want, isDenied, fileRules, objectRules, asked, within)
			}
			var traced []string
			for _, rule := range trace.Rules {
				for _, s := range rule.Scopes {
					traced = append(traced, s.Granted...)
				}
			}
			slices.Sort(traced)
			if !slices.Equal(slices.Compact(traced), want) {
				t.Fatalf("policy %d: the rules of the explanation give %q, want %q", n, traced, want)
			}
			if len(want) > 0 {
				granted++
			}
		}
		if isDenied {
			denied++
		}
	}
	if granted < *randomPolicies/4 || denied < *randomPolicies/100 {
		t.Errorf("%d granted and %d denied: hardly tested", granted, denied)
	}
}
