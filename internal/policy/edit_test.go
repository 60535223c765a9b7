package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The edits of a request together grant everything that is missing.
func TestEdit(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: allow-team-a-web-v1
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
- name: others
  subjects: [{namespaces: ["*"]}]
  annotation: example.com/builds
  allow: [{repositories: ["{namespace}/**"], actions: [push]}]
- name: again
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/a"], actions: [pull]}]
- name: elsewhere
  subjects: [{namespaces: ["*"]}]
  annotation: example.com/again
  allow: [{repositories: ["shared/a"], actions: [pull]}]
deny:
- {name: allow-team-a-web-v1-2, subjects: [{namespaces: [old]}]}
`
	policy := parseText(t, text)
	subject := Subject{Identity: account(t, "prod/team-a/web.v1"), Annotations: map[string]string{"pullpass.dev/repositories": "shared/x"}}
	requested := scopesOf(t, "repository:shared/a:pull,push repository:shared/b:pull repository:team-a/web:pull,push registry:catalog:* repository:c:sign plugin:d:pull")
	_, trace := policy.Explain(subject, "registry.example.com", requested)
	want := &Edit{
		Cluster: "prod",
		Commands: []string{
			"kubectl annotate serviceaccount web.v1 -n team-a --overwrite pullpass.dev/repositories='shared/x shared/a:pull shared/b:pull'",
			"kubectl annotate serviceaccount web.v1 -n team-a example.com/builds='team-a/web:push'",
		},
		Rule: `- name: allow-team-a-web-v1-3
  subjects:
  - {clusters: ["prod"], namespaces: ["team-a"], serviceAccounts: ["web.v1"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["shared/a"], actions: ["push"]}
  - {repositories: ["team-a/web"], actions: ["pull"]}
  - {registry: ["catalog"], actions: ["*"]}
  - {repositories: ["c"], actions: ["*"]}
`,
	}
	if !reflect.DeepEqual(trace.Edit, want) {
		t.Errorf("got  %+v\nwant %+v", trace.Edit, want)
	}
	_, trace = policy.Explain(subject, "registry.example.com", scopesOf(t, "repository:shared/b:pull"))
	want = &Edit{Cluster: "prod", Commands: []string{"kubectl annotate serviceaccount web.v1 -n team-a --overwrite pullpass.dev/repositories='shared/x shared/b:pull'"}}
	if !reflect.DeepEqual(trace.Edit, want) {
		t.Errorf("a command alone: got  %+v\nwant %+v", trace.Edit, want)
	}
}

// Explain proposes no edit if no change would help, or if the change must not be proposed. Above all, no
// edit opens a registry to anonymous callers.
func TestNoEdit(t *testing.T) {
	t.Parallel()
	asking := parseText(t, askPolicy)
	full := strings.TrimSpace(strings.Repeat("x ", maxAnnotationItems))
	const key = "pullpass.dev/repositories"
	named := func(cluster, namespace, name string) *oidc.Identity {
		return &oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name}}}
	}
	someone := account(t, "prod/team-a/web")
	for what, test := range map[string]struct {
		policy  *Policy
		subject Subject
		service string
		scope   registryauth.Scope
	}{
		"all is granted":                    {asking, Subject{Identity: someone, Annotations: map[string]string{key: "**:*"}}, "s", scopeNamed("a")},
		"anonymous":                         {&Policy{}, Subject{}, "s", scopeNamed("a")},
		"nothing that rules can allow":      {&Policy{}, Subject{Identity: someone}, "s", registryauth.Scope{Type: "plugin", Name: "a", Actions: []string{"pull"}}},
		"an annotation with a fault":        {asking, Subject{Identity: someone, Annotations: map[string]string{key: "?"}}, "s", scopeNamed("a")},
		"an annotation that is full":        {asking, Subject{Identity: someone, Annotations: map[string]string{key: full}}, "s", scopeNamed("a")},
		"a repository that is a pattern":    {&Policy{}, Subject{Identity: someone}, "s", scopeNamed("**")},
		"a repository with a quote":         {&Policy{}, Subject{Identity: someone}, "s", scopeNamed(`a"]}, {repositories: ["**`)},
		"a cluster that is a pattern":       {&Policy{}, Subject{Identity: named("*", "a", "b")}, "s", scopeNamed("a")},
		"a namespace that is a pattern":     {&Policy{}, Subject{Identity: named("a", "*", "b")}, "s", scopeNamed("a")},
		"a ServiceAccount with a quote":     {&Policy{}, Subject{Identity: named("a", "b", `c"]`)}, "s", scopeNamed("a")},
		"a service that no rule can name":   {&Policy{}, Subject{Identity: someone}, "Docker*registry", scopeNamed("a")},
		"a service that ends its line":      {&Policy{}, Subject{Identity: someone}, "a\nb", scopeNamed("a")},
		"a name that is a flag":             {asking, Subject{Identity: named("a", "b", "-f")}, "s", scopeNamed("a")},
		"a command for a repository that's": {asking, Subject{Identity: someone}, "s", scopeNamed("x';reboot;'")},
	} {
		_, trace := test.policy.Explain(test.subject, test.service, []registryauth.Scope{test.scope})
		if trace.Edit != nil {
			t.Errorf("%s: %+v", what, trace.Edit)
		}
	}
	// The remedy has no command that would make the annotation faulty either.
	d := asking.Decide(Subject{Identity: someone, Annotations: map[string]string{key: full}}, "s", scopesOf(t, "repository:a:pull"))
	if got, want := d.Scopes[0].Remedy, "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for a:pull"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A registry's service may have several words, and rules can name it.
func TestServiceOfSeveralWords(t *testing.T) {
	t.Parallel()
	_, trace := (&Policy{}).Explain(Subject{Identity: account(t, "prod/team-a/web")}, "Docker registry", scopesOf(t, "repository:a:pull"))
	policy := parseText(t, "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n"+trace.Edit.Rule)
	for service, want := range map[string]int{"Docker registry": 1, "Docker": 0} {
		if d := policy.Decide(Subject{Identity: account(t, "prod/team-a/web")}, service, scopesOf(t, "repository:a:pull")); len(d.Granted()) != want {
			t.Errorf("%s: %+v", service, d)
		}
	}
}

// The names of a token are not trusted, and operators paste the text.
func TestObjectsAreProposedForNamesAlone(t *testing.T) {
	t.Parallel()
	asking := parseText(t, strings.Replace(askPolicy, "annotation: pullpass.dev/repositories", "requests: true", 1))
	own := cluster(t, "**", nil, nil)
	for name, want := range map[string]bool{"web.v1": true, "web\"]}": false, "": false, "Web": false} {
		for namespace, want := range map[string]bool{"team-a": want, "a.b": false, "a\n---": false} {
			id := &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name}}}
			_, trace := asking.Explain(Subject{Identity: id, Objects: own}, "", scopesOf(t, "repository:a:pull"))
			if got := trace.Edit != nil && trace.Edit.Requests != ""; got != want {
				t.Errorf("%q in %q: %+v", name, namespace, trace.Edit)
			}
		}
	}
}

func TestRuleForNoService(t *testing.T) {
	t.Parallel()
	_, trace := (&Policy{}).Explain(Subject{Identity: account(t, "prod/team-a/web")}, "", scopesOf(t, "repository:a:pull"))
	if trace.Edit == nil || !strings.Contains(trace.Edit.Rule, "repositories") || strings.Contains(trace.Edit.Rule, "services") {
		t.Errorf("%+v", trace.Edit)
	}
	job := &oidc.Identity{External: &identity.External{Provider: "ci", Profile: identity.GitLab}}
	if _, trace := (&Policy{}).Explain(Subject{Identity: job}, "", scopesOf(t, "repository:a:pull")); trace.Edit != nil {
		t.Errorf("an identity: %+v", trace.Edit)
	}
}

// For every policy, its edits grant everything that edits can grant, at the first attempt, and
// remove nothing.
func TestEditsHelp(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(5, 6))}
	edits := 0
	for round := range *randomPolicies {
		var rules []string
		for i := range 1 + w.IntN(5) {
			rules = append(rules, w.rule(fmt.Sprintf("r%d", i)))
		}
		policy := policyOf(t, rules, "")
		subject, service := w.asker(), w.pick("r1", "r2")
		requested := testkit.Value(registryauth.ParseScopes(strings.Fields(strings.Join(ScopeStrings(w.request()), " "))))(t)
		before, trace := policy.Explain(subject, service, requested)
		if trace.Edit == nil {
			continue
		}
		edits++
		after := subject
		after.Annotations = map[string]string{"k1": subject.Annotations["k1"], "k2": subject.Annotations["k2"]}
		for _, command := range trace.Edit.Commands {
			fields, value, _ := strings.Cut(strings.TrimSuffix(command, "'"), "='")
			after.Annotations[fields[strings.LastIndexByte(fields, ' ')+1:]] = value
		}
		edited := policyOf(t, append(rules, trace.Edit.Rule), "")
		d := edited.Decide(after, service, requested)
		for i, s := range d.Scopes {
			faulty := strings.HasPrefix(before.Scopes[i].Remedy, "correct the annotation") || strings.Contains(before.Scopes[i].Reason, "counts for nothing")
			if s.Reason != "" && !faulty && kindOf(s.Requested) != unknownResource || !includes(s.Granted, before.Scopes[i].Granted) {
				t.Errorf("round %d: %s is not granted, before %q, now %q\n%s%+v\n%+v", round, s.Requested, before.Scopes[i].Granted, s.Granted, strings.Join(rules, ""), subject, trace.Edit)
			}
		}
	}
	if edits < *randomPolicies/3 {
		t.Errorf("only %d edits: hardly anything is tested", edits)
	}
}
