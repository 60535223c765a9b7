package describe

import (
	"testing"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestSentences(t *testing.T) {
	t.Parallel()
	p := testkit.Value(policy.ParseFor(map[string]identity.Profile{"github": identity.GitHub}, policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: many
  subjects:
  - {clusters: [prod, test], namespaces: [a, b, c], serviceAccounts: [web, ci], nodes: ["gpu-*"]}
  - {namespaceSelector: "tier=gold,env in (a,b)"}
  services: [registry.example.com]
  allow: [{repositories: [shared/base, "shared/tools/**"], actions: [push, pull]}, {repositories: ["**"], actions: ["*"]}, {registry: [catalog], actions: ["*"]}]
- name: by-annotation
  subjects: [{clusters: ["*"], namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push, delete]}]
- name: by-object
  subjects: [{namespaces: ["*"]}]
  requests: true
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: public
  anonymous: true
  allow: [{repositories: ["public/**"], actions: [pull]}]
- name: one
  subjects: [{namespaces: [a], serviceAccounts: [web]}]
  allow: [{repositories: [a], actions: [pull, "*"]}]
- name: builds
  subjects: [{identities: [github], claims: {repository_id: ["42", "43"], ref: ["refs/heads/main"]}, condition: 'claims.event_name == "push"'}]
  allow: [{repositories: ["team-a/web"], actions: [pull, push]}]
deny:
- {name: quarantine, subjects: [{namespaces: [team-bad]}]}
- {name: any-node, subjects: [{namespaces: ["*"], nodes: ["*"]}]}
- {name: tokens, subjects: [{tokenIDs: [a, b]}]}
`)}))(t)
	got := append(sentences("", p.WrittenRules()), denials("prod", p.WrittenDenials())...)
	for i, want := range []string{
		"All ServiceAccounts in namespace team-* may pull {namespace}/**.",
		"The ServiceAccounts web and ci in namespace a, b or c of cluster prod or test on node gpu-*, and all ServiceAccounts in namespaces with the labels env in (a,b),tier=gold" +
			" may pull and push shared/base and shared/tools/**, do anything with every repository and list all repositories at registry.example.com.",
		"All ServiceAccounts may delete, pull and push {namespace}/**, as far as the annotation pullpass.dev/repositories requests it.",
		"All ServiceAccounts may pull {namespace}/**, as far as a RepositoryAccess of their namespace requests it.",
		"All callers, with a token or without, may pull public/**.",
		"ServiceAccounts named web in namespace a may do anything with a.",
		`Callers of github with ref refs/heads/main and repository_id 42 or 43 that meet the condition "claims.event_name == \"push\"" may pull and push team-a/web.`,
		"All ServiceAccounts in namespace team-bad get no token, even if a rule allows access.",
		"All ServiceAccounts on node * get no token, even if a rule allows access.",
		"The holders of the token a or b get no token, even if a rule allows access.",
	} {
		if got[i].Sentence != want {
			t.Errorf("%s:\n%s\nwant\n%s", got[i].Name, got[i].Sentence, want)
		}
	}
	if len(got) != 10 || got[0].Origin != "p: rules[0]" || got[0].Cluster != "" || got[7].Cluster != "prod" {
		t.Errorf("%+v", got)
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	files := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules: [{name: p, anonymous: true, allow: [{repositories: [p], actions: [pull]}]}]\n")}))(t)
	object := policy.ParseObject("team", map[string]any{"rules": []any{map[string]any{
		"name": "own", "subjects": []any{map[string]any{"namespaces": []any{"a"}}}, "allow": []any{map[string]any{"repositories": []any{"a"}, "actions": []any{"pull"}}},
	}}})
	testkit.Must(t, object.Err())
	d := Of(files, map[string]*policy.Policies{"prod": policy.NewPolicies(nil, object), "unread": nil})
	if want := "All ServiceAccounts in namespace a may pull a, within the limit for objects of its cluster."; len(d.Rules) != 2 || d.Rules[1].Sentence != want || d.Rules[1].Cluster != "prod" {
		t.Errorf("%+v, want %s", d.Rules, want)
	}
}
