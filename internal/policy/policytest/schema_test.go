package policytest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/schematest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const everyField = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicyTests
tests:
- name: granted
  identity:
    cluster: prod
    namespace: a
    serviceAccount: web
    node: node1
    tokenID: x
    annotations: {pullpass.dev/repositories: a}
    namespaceLabels: {team: a}
  service: registry.example.com
  scopes: ["repository:a:pull"]
  expect: {granted: ["repository:a:pull"], rules: [first], reason: some}
- name: in a Secret
  identity: {cluster: prod, namespace: a, serviceAccount: web, pullSecret: pull}
  expect: {granted: []}
- name: denied
  anonymous: true
  expect: {denied: third}
- name: a job
  identity:
    provider: github
    claims: {repository_id: "42", repository_owner_id: "7", ref: x}
  expect: {granted: []}
`

// A field of the types that the parser never reads would be accepted and have no effect.
func TestEveryFieldCounts(t *testing.T) {
	t.Parallel()
	whole := testkit.Value(Parse(issuers, policy.File{Name: "p", Data: []byte(everyField)}))(t)
	schematest.WithoutEachField[Document](t, []byte(everyField), func(field string, document []byte) {
		if without, err := Parse(issuers, policy.File{Name: "p", Data: document}); err == nil && reflect.DeepEqual(whole, without) {
			t.Errorf("without %s the tests are the same", field)
		}
	})
}

func TestSchema(t *testing.T) {
	t.Parallel()
	schema := schematest.Hold(t, "policy-tests.schema.json", "Tests of a Pullpass access policy", &Document{})
	schematest.Accept(t, schema, "every field", []byte(everyField))
	schematest.Accept(t, schema, "the least", []byte(minimalCases))
	schematest.AcceptFile(t, schema, "../../../docs/reference/policy-tests.yaml")
	schematest.AcceptFile(t, schema, "../../../examples/policy-tests.yaml")

	for old, changed := range map[string]string{
		"AccessPolicyTests":      "AccessPolicy",
		"name: granted":          `name: ""`,
		"cluster: prod":          "cluster: Prod",
		"    namespace: a\n":     "",
		"tokenID":                "tokenIDs",
		"    provider: github\n": "",
		"    provider: github":   "    cluster: prod",
		`{repository_id: "42", repository_owner_id: "7", ref: x}`: "{}",
		"{team: a}":                       "{team: 1}",
		"scopes: [\"repository:a:pull\"]": "scopes: []",
		"rules: [first]":                  "rules: []",
		"reason: some":                    "reasons: [some]",
		"anonymous: true":                 `anonymous: "true"`,
		"{denied: third}":                 `{denied: ""}`,
		"  expect: {denied: third}\n":     "",
	} {
		bad := []byte(strings.Replace(everyField, old, changed, 1))
		if _, err := Parse(issuers, policy.File{Name: "p", Data: bad}); err == nil {
			t.Errorf("%q for %q: Parse accepts it", changed, old)
		}
		schematest.Refuse(t, schema, changed+" for "+old, bad)
	}
}
