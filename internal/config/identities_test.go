package config

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/testkit"
)

// The identities whose tokens package oidc is tried with are accepted as they stand.
func TestIdentitiesOfTheTokensThatAreTried(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../oidc/testdata/identities/*.txtar")
	testkit.Must(t, err)
	if len(names) < 10 {
		t.Fatalf("%d cases", len(names))
	}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		testkit.Must(t, err)
		entry := bytes.ReplaceAll(bytes.TrimSpace(section(t, archive, "identity.yaml")), []byte("\n"), []byte("\n  "))
		c, err := Parse([]byte(`apiVersion: pullpass.dev/v1alpha1
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
