package main

import (
	"os"
	"reflect"
	"regexp"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/exchange"
)

// yamlBlock returns the first block of YAML in a document.
func yamlBlock(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	must(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no block of YAML", name)
	}
	return block[1]
}

// What the document shows is accepted, whole, and is what a file gets that
// leaves it out.
func TestConfigurationDocument(t *testing.T) {
	t.Parallel()
	block := yamlBlock(t, "docs/configuration.md")
	shown, err := ParseConfig(block, "shown", "/etc/pullpass")
	must(t, err)
	var written any
	must(t, yaml.Unmarshal(block, &written))
	fieldsIn(t, "", reflect.TypeFor[Config](), written)

	plain, err := ParseConfig([]byte(`
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
server: {tls: {certFile: tls.crt, keyFile: tls.key}}
clusters: [{name: prod-eu, issuer: "https://oidc.prod-eu.example.com", audiences: [registry.example.com]}]
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`), "plain", "/etc/pullpass")
	must(t, err)
	// Written out, an empty list is a list, and limits are worth a warning.
	shown.Warnings, shown.name, plain.name = nil, "", ""
	left, err := yaml.Marshal(shown)
	must(t, err)
	right, err := yaml.Marshal(plain)
	must(t, err)
	if string(left) != string(right) {
		t.Errorf("the document shows\n%s\nand the defaults are\n%s", left, right)
	}
}

func TestPolicyDocument(t *testing.T) {
	t.Parallel()
	_, err := exchange.ParsePolicy(exchange.PolicyFile{Name: "docs/policy.md", Data: yamlBlock(t, "docs/policy.md")})
	must(t, err)
}
