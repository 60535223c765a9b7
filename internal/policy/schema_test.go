package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/test/schematest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// everyField has each field of a policy, with a value that has an effect.
const everyField = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: first
  subjects:
  - clusters: [prod]
    namespaces: [a]
    namespaceSelector: {matchLabels: {team: a}, matchExpressions: [{key: env, operator: In, values: [prod]}]}
    serviceAccounts: [web]
    nodes: [node1]
  services: [registry.example.com]
  annotation: pullpass.dev/repositories
  allow: [{repositories: [a], actions: [pull]}]
- name: build
  subjects:
  - identities: [github]
    claims: {repository_id: ["42"], ref: [refs/heads/main]}
    condition: claims.event_name == "push"
  - identities: [gitlab]
  allow: [{repositories: [a], actions: [push]}]
- name: object
  subjects: [{clusters: [prod]}]
  requests: true
  allow: [{repositories: [a], actions: [pull]}]
- name: second
  anonymous: true
  allow: [{registry: [catalog], actions: ["*"]}]
deny:
- name: third
  subjects:
  - clusters: [prod]
    namespaces: [a]
    namespaceSelector: {matchLabels: {team: a}, matchExpressions: [{key: env, operator: In, values: [prod]}]}
  - namespaceSelector: team=a
    serviceAccounts: [web]
    nodes: [node1]
    tokenIDs: [x]
  - identities: [github]
    claims: {run_id: ["1"]}
    condition: claims.event_name == "push"
`

// A field of the types that the parser never reads would be accepted and have no effect.
func TestEveryFieldCounts(t *testing.T) {
	t.Parallel()
	whole := testkit.Value(Parse(File{Name: "p", Data: []byte(everyField)}))(t)
	schematest.WithoutEachField[Document](t, []byte(everyField), func(field string, document []byte) {
		without, err := Parse(File{Name: "p", Data: document})
		if err == nil && reflect.DeepEqual(comparable(whole), comparable(without)) {
			t.Errorf("without %s the policy is the same", field)
		}
	})
}

// comparable returns all subjects, with the text of conditions among the claims:
// programs are functions, which are never equal.
func comparable(p *Policy) any {
	var all []any
	whom := func(list []subjects.Match) {
		for _, m := range list {
			if m.Condition != nil {
				m.Claims, m.Condition = append(slices.Clip(m.Claims), subjects.Claim{Name: m.Condition.String()}), nil
			}
			all = append(all, m)
		}
	}
	for _, r := range p.rules {
		whom(r.subjects)
		r.subjects = nil
		all = append(all, r)
	}
	for _, d := range p.deny {
		whom(d.subjects)
		all = append(all, d.name, d.origin)
	}
	return all
}

func TestSchema(t *testing.T) {
	t.Parallel()
	schema := schematest.Hold(t, "policy.schema.json", "Pullpass access policy", &Document{})
	schematest.Accept(t, schema, "every field", []byte(everyField))
	schematest.Accept(t, schema, "the least", []byte(minimalPolicy))
	schematest.Accept(t, schema, "an empty deny list", []byte(minimalPolicy+"deny: []\n"))
	schematest.AcceptFile(t, schema, "../../docs/reference/policy.yaml")
	schematest.AcceptFile(t, schema, "../../examples/policy.yaml")

	for old, changed := range map[string]string{
		"v1beta1":                "v1",
		"kind: AccessPolicy":     "",
		"name: first":            "name: First",
		"- name: second\n ":      "-",
		"subjects:":              "subject:",
		"[prod]":                 "prod",
		"[a]":                    "[]",
		"serviceAccounts: [web]": "serviceAccounts: [1]",
		"{team: a}":              "{team: 1}",
		"matchLabels":            "labels",
		"key: env, ":             "",
		"operator: In":           "operator: in",
		"[pull]":                 "[pul]",
		", actions: [pull]":      "",
		"[catalog]":              "[catalogue]",
		"anonymous: true":        `anonymous: "true"`,
		"  allow: [{registry: [catalog], actions: [\"*\"]}]\n": "",
		"- name: third":             "- tokenIDs: [x]",
		"namespaceSelector: team=a": `namespaceSelector: ""`,
		"nodes: [node1]":            "tokenIDs: [x]", // only for denials
	} {
		bad := strings.Replace(everyField, old, changed, 1)
		if _, err := Parse(File{Name: "p", Data: []byte(bad)}); err == nil {
			t.Errorf("%s: Parse accepts it", changed)
		}
		schematest.Refuse(t, schema, fmt.Sprintf("%q for %q", changed, old), []byte(bad))
	}
}
