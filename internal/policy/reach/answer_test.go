package reach

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func policyOf(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules: [" + rules + "]\n")}))(t)
	return p
}

// Of the names that a rule matches, the answer lists only those that a pattern can match.
func TestWhoIsNarrow(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]string{
		`{name: r, subjects: [{namespaces: ["team-*"]}, {namespaces: [other]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}`: "namespaces team-*; where {namespace} is team-a",
		`{name: r, subjects: [{namespaces: [other]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}`:                           "",
		`{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["{namespace}-{cluster}/web"], actions: [pull]}]}`:                      "clusters a; where {cluster} is a and {namespace} is team",
		`{name: r, subjects: [{clusters: [b]}], allow: [{repositories: ["{namespace}-{cluster}/web"], actions: [pull]}]}`:                      "",
		`{name: r, subjects: [{serviceAccounts: [x]}], allow: [{repositories: ["*/{serviceAccount}"], actions: [pull]}]}`:                      "",
		`{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["{namespace}-*/**", "**"], actions: [pull]}]}`:                         "clusters a",
		// Two patterns with the same names, and with more of them.
		`{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["{namespace}/**", "{namespace}/web"], actions: [pull]}]}`:              "clusters a; where {namespace} is team-a",
		`{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["{namespace}/**", "{namespace}/{serviceAccount}"], actions: [pull]}]}`: "clusters a; where {namespace} is team-a, or {namespace} is team-a and {serviceAccount} is web",
		// An identity has none of these names.
		`{name: r, subjects: [{namespaceSelector: tier, condition: 'kubernetes.node == "n"'}], allow: [{repositories: ["**"], actions: [pull]}]}`:        "namespaces with labels tier; if kubernetes.node == \"n\"",
		`{name: r, subjects: [{identities: [ci]}], allow: [{repositories: ["{namespace}/**", "**/{serviceAccount}", "{cluster}/**"], actions: [pull]}]}`: "",
		// No namespace can have such a name.
		`{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["{namespace}a/web"], actions: [pull]}]}`:             "",
		`{name: r, subjects: [{identities: [ci]}], allow: [{repositories: ["{claims.project_path}/web"], actions: [pull]}]}`: "identities ci; where {claims.project_path} is team-a",
	} {
		who := testkit.Value(FindWho(t.Context(), policyOf(t, rules), "s", scope("team-a/web", "pull"), nil))(t)
		var got []string
		for _, r := range who.Rules {
			for _, s := range r.Subjects {
				got = append(got, s.String())
			}
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s: %q, want %q", rules, got, want)
		}
	}
}

// If there are too many names to list, none is listed.
func TestWhoIsUnlisted(t *testing.T) {
	t.Parallel()
	p := policyOf(t, `{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["*{namespace}*"], actions: [pull]}]}`)
	who, err := FindWho(t.Context(), p, "s", scope(strings.Repeat("abc", 20), "pull"), nil)
	if err != nil || len(who.Rules) != 1 {
		t.Fatalf("%+v, %v", who, err)
	}
	if s := who.Rules[0].Subjects[0]; !s.Unlisted || s.Names != nil || !strings.HasSuffix(s.String(), "; whose names make the pattern match") {
		t.Errorf("%+v", s)
	}
}

// The answer shows only reachable repositories.
func TestWhatIsNarrow(t *testing.T) {
	t.Parallel()
	p := policyOf(t, `{name: asks, annotation: a/b, subjects: [{namespaces: [team-a]}], allow: [{repositories: ["shared/**", "{namespace}/x", "x/**/y"], actions: [pull, push]}]}`)
	for annotation, want := range map[string]string{
		"shared/base":     "shared/base::pull",
		"shared/*:delete": "",
		"**:push":         "shared/**::push team-a/x::push x/**/y::push",
		"other/**":        "",
		"**/base":         "**/base:shared/**:pull",
		"x/*":             "x/*:x/**/y:pull",
	} {
		subject := policy.Subject{Identity: &oidc.Identity{Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web"}}}, Annotations: map[string]string{"a/b": annotation}}
		what := FindWhat(p, "c/team-a/web", subject, []string{"s"})
		var got []string
		for _, r := range what.Services[0].Rules[0].Reached {
			got = append(got, r.Repositories+":"+strings.Join(r.Within, "+")+":"+r.Actions)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", annotation, got, want)
		}
	}
}

func TestPlacesAndKnowledge(t *testing.T) {
	t.Parallel()
	if got := Where("p: rules[0]", "") + "; " + Where("AccessPolicy o: rules[0]", "prod") + "; " + Text(Whom{}); got != "p: rules[0]; AccessPolicy o: rules[0], in cluster prod; every ServiceAccount" {
		t.Error(got)
	}
	p := policyOf(t, `{name: r, subjects: [{namespaces: [a]}], allow: [{repositories: ["**"], actions: [pull]}]}`)
	accounts := []Account{{Namespace: "b", Name: "web"}, {Namespace: "a", Name: "web"}, {Namespace: "a", Name: "ci"}}
	clusters := []Accounts{{Cluster: "prod", All: accounts}, {Cluster: "lost", All: accounts, Unknown: errors.New("no route")}}
	who, err := FindWho(t.Context(), p, "s", scope("x", "pull"), clusters)
	testkit.Must(t, err)
	if got, want := fmt.Sprint(who.Clusters), "[{prod  3 [{a ci [r]} {a web [r]}] []} {lost no route 3 [] []}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !who.Knows("prod") || who.Knows("lost") || !who.Knows("other") {
		t.Errorf("known: prod %t, lost %t, other %t", who.Knows("prod"), who.Knows("lost"), who.Knows("other"))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		policy   *policy.Policy
		clusters []Accounts
	}{{p, nil}, {&policy.Policy{}, clusters}} { // before the rules, and before the ServiceAccounts
		if _, err := FindWho(gone, test.policy, "s", scope("x", "pull"), test.clusters); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v after the end of the context", err)
		}
	}
	who, err = FindWho(t.Context(), policyOf(t, `{name: r, subjects: [{clusters: [a]}], allow: [{repositories: ["*/{serviceAccount}"], actions: [pull]}]}`), "s", scope("x/a__b", "pull"), nil)
	if err != nil || len(who.Rules) != 0 {
		t.Errorf("%+v, %v for a name that no ServiceAccount has", who, err)
	}
}

// Objects that ask for the same are told together, and a faulty annotation for nothing.
func TestWhatIsToldOnce(t *testing.T) {
	t.Parallel()
	id := &oidc.Identity{Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: "a", ServiceAccount: oidc.ObjectRef{Name: "web"}}}
	request := func(name string, repositories ...any) *policy.Request {
		return policy.ParseRequest("a", name, map[string]any{"serviceAccounts": []any{"web"}, "repositories": repositories, "actions": []any{"pull"}})
	}
	subject := policy.Subject{Identity: id, Annotations: map[string]string{"k": "?"}, Objects: policy.Objects{
		Policies: policy.NewPolicies([]pattern.Pattern{"**"}),
		Requests: policy.NewRequests("web", []*policy.Request{request("q", "x/y", "z/**"), request("r", "x/y"), request("s", "**/w")}),
	}}
	p := policyOf(t, `{name: r, requests: true, subjects: [{namespaces: [a]}], allow: [{repositories: ["x/**", "z/**", "*/y"], actions: [pull]}]},
		{name: noted, annotation: k, subjects: [{namespaces: [a]}], allow: [{repositories: ["**"], actions: [pull]}]}`)
	rules := FindWhat(p, "c/a/web", subject, []string{"s"}).Services[0].Rules
	want := "[{x/y [] pull [a/q a/r]} {**/w [x/**] pull [a/s]} {z/** [] pull [a/q]} {**/w [z/**] pull [a/s]} {z/** [*/y] pull [a/q]}]"
	if got := fmt.Sprint(rules[0].Reached); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if rules[1].Fault == "" || len(rules[1].Reached) != 0 {
		t.Errorf("%+v", rules[1])
	}
	job := policy.Subject{Identity: &oidc.Identity{Subject: "ci/x", External: &identity.External{Provider: "ci"}}}
	rules = FindWhat(policyOf(t, `{name: r, subjects: [{identities: [ci]}], allow: [{repositories: ["{namespace}/x", "y"], actions: [pull]}]}`), "ci", job, []string{"s"}).Services[0].Rules
	if got, want := fmt.Sprintf("%q", rules[0].Reached), `[{"y" [] "pull" []}]`; got != want {
		t.Errorf("of an identity: %s, want %s", got, want)
	}
}
