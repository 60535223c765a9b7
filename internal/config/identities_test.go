package config

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The identities whose tokens package oidc is tried with are accepted as they stand.
func TestIdentitiesOfTheTokensThatAreTried(t *testing.T) {
	t.Parallel()
	names := testkit.Value(filepath.Glob("../oidc/testdata/identities/*.txtar"))(t)
	if len(names) < 10 {
		t.Fatalf("%d cases", len(names))
	}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		testkit.Must(t, err)
		entry := bytes.ReplaceAll(bytes.TrimSpace(section(t, archive, "identity.yaml")), []byte("\n"), []byte("\n  "))
		c, err := Parse([]byte(`apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
registries: [{service: registry.example.com, issuer: pullpass}]
policyFiles: [policy.yaml]
identities:
- `+string(entry)+"\n"), name, "/etc/pullpass")
		if err != nil {
			t.Errorf("%v", err)
		} else if len(c.Warnings) > 0 {
			t.Errorf("%s: warnings %q", name, c.Warnings)
		}
	}
}

// The owner of an unknown issuer is unknown, so others may also have its tokens.
func TestGenericIdentityWithoutTenant(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]bool{
		"profile: generic":                              true,
		"profile: generic, require: {}":                 true,
		"profile: generic, require: {tenant: [octo]}":   false,
		"profile: gitlab":                               false,
		"profile: gitlab, require: {project_id: ['1']}": false,
	} {
		c := testkit.Value(Parse([]byte(`apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
registries: [{service: registry.example.com, issuer: pullpass}]
policyFiles: [policy.yaml]
identities: [{name: ci, issuer: "https://ci.example.com", audiences: [registry.example.com], `+entry+`}]
`), "pullpass.yaml", "/etc/pullpass"))(t)
		const text = "identities[0].require: is empty, so that every token of this issuer counts; require its tenant if others have tokens of it, too"
		if got := strings.Contains(strings.Join(c.Warnings, "\n"), text); got != want || len(c.Warnings) > 1 {
			t.Errorf("%s: %q", entry, c.Warnings)
		}
	}
}
