package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/schematest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestSchema(t *testing.T) {
	t.Parallel()
	schema := schematest.Hold(t, "configuration.schema.json", "Pullpass configuration", defaultConfig())
	acceptsWhatParseDoes(t, schema)
	refusesWhatParseDoes(t, schema)
}

// The schema accepts the documents that Parse accepts.
func acceptsWhatParseDoes(t *testing.T, schema *jsonschema.Schema) {
	t.Helper()
	names := testkit.Value(filepath.Glob("testdata/config/*.txtar"))(t)
	accepted := 0
	for _, name := range names {
		archive := testkit.Value(txtar.ParseFile(name))(t)
		data := section(t, archive, "config.yaml")
		if _, err := Parse(data, name, "/etc/pullpass"); err != nil {
			continue
		}
		accepted++
		schematest.Accept(t, schema, name, data)
	}
	if accepted < 5 {
		t.Errorf("only %d cases are accepted", accepted)
	}
	schematest.AcceptFile(t, schema, "../../examples/pullpass.yaml")
	schematest.AcceptFile(t, schema, "../../docs/reference/configuration.yaml")
}

// The schema and Parse refuse the same faults within one value.
func refusesWhatParseDoes(t *testing.T, schema *jsonschema.Schema) {
	t.Helper()
	const good = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  bound: pod
  maxTokenLifetime: 24h
  node: {claim: required, fallback: none, proof: {mode: "off", methods: [address]}}
  kubernetes: {podChecks: true}
identities:
- {name: github, issuer: "https://ci.example.com", profile: github, audiences: [a], require: {repository_id: ["42"]}, maxTokenLifetime: 1h, discovery: {}}
registries: [{service: registry.example.com, issuer: pullpass, signing: {algorithm: ES256, trust: jwks}}]
policyFiles: [policy.yaml]
state: {replay: "off"}
limits: {perAddress: {rate: 1, burst: 1}}
`
	schematest.Accept(t, schema, "good", []byte(good))
	for old, changed := range map[string]string{
		"v1beta1":                    "v1",
		"ProxyConfiguration":         "AccessPolicy",
		"clusters:":                  "clusters: []\nunknown:",
		"policyFiles: [policy.yaml]": "",
		"[policy.yaml]":              `[""]`,
		"name: prod":                 "name: Prod_1",
		"https:":                     "http:",
		"[registry.example.com]":     "[]",
		"bound: pod":                 "bound: node",
		"24h":                        "24",
		"claim: required":            "claim: needed",
		"fallback: none":             "fallback: no one",
		`mode: "off"`:                "mode: on",
		"[address]":                  "[ip]",
		"podChecks: true":            `podChecks: "true"`,
		"podChecks":                  "podCheck",
		"service: ":                  "services: ",
		"name: github":               "name: a/b",
		`"https://ci`:                `"http://ci`,
		"profile: github":            "profile: jenkins",
		"audiences: [a]":             "audiences: []",
		`["42"]`:                     "[42]",
		`{repository_id: ["42"]}`:    `["42"]`,
		"ES256":                      "HS256",
		"jwks":                       "jwk",
		`replay: "off"`:              "replay: never",
		"rate: 1":                    "rate: 0",
		"burst: 1":                   "burst: 1.5",
	} {
		bad := []byte(strings.Replace(good, old, changed, 1))
		if _, err := Parse(bad, "bad", "/"); err == nil {
			t.Errorf("%s: Parse accepts it", changed)
		}
		schematest.Refuse(t, schema, changed, bad)
	}
}
