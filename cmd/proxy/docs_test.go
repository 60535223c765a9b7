package main

import (
	"bytes"
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
	// Written out, an empty list is a list.
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

// The examples belong together: one audience in all of them, and the plugin's
// own name.
func TestExamplesAgree(t *testing.T) {
	t.Parallel()
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile("../../examples/" + name)
		must(t, err)
		decoder := yaml.NewDecoder(bytes.NewReader(data))
		must(t, decoder.Decode(into))
	}
	data, err := os.ReadFile("../../examples/pullpass.yaml")
	must(t, err)
	cfg, err := ParseConfig(data, "pullpass.yaml", "../../examples")
	must(t, err)
	audience := cfg.Clusters[0].Audiences[0]

	var plugin struct {
		Providers []struct {
			Name            string
			MatchImages     []string `yaml:"matchImages"`
			TokenAttributes struct {
				Audience  string `yaml:"serviceAccountTokenAudience"`
				CacheType string `yaml:"cacheType"`
			} `yaml:"tokenAttributes"`
		}
	}
	read("credential-provider.yaml", &plugin)
	if p := plugin.Providers[0]; p.Name != "pullpass-credential-provider" || p.TokenAttributes.Audience != audience || p.TokenAttributes.CacheType != "Token" {
		t.Errorf("credential-provider.yaml: %+v, and the audience is %q", p, audience)
	}
	var role struct {
		Rules []struct{ Resources, Verbs []string }
	}
	read("audience-rbac.yaml", &role)
	if r := role.Rules[0]; r.Resources[0] != audience || r.Verbs[0] != "request-serviceaccounts-token-audience" {
		t.Errorf("audience-rbac.yaml: %+v, and the audience is %q", r, audience)
	}
}
