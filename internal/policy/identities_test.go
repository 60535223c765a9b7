package policy

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each profile has recorded tokens and a policy. The policy grants the requests of the good token.
// It denies genuine tokens of different jobs, which the verifier has to accept. The tests of
// package oidc cover all other tokens.
func TestRecordedIdentities(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../oidc/testdata/identities/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recordedIdentity(t, file)
		})
	}
}

func recordedIdentity(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	testkit.Must(t, err)
	sections := map[string][]byte{}
	for _, f := range archive.Files {
		sections[f.Name] = f.Data
	}
	var entry struct {
		Name, Issuer     string
		Profile          identity.Profile
		Audiences        []string
		Require          map[string][]string
		MaxTokenLifetime string
	}
	testkit.Must(t, yaml.UnmarshalStrict(sections["identity.yaml"], &entry))
	issuer := oidc.Issuer{Provider: &oidc.Provider{Name: entry.Name, Profile: entry.Profile, Require: entry.Require}, URL: entry.Issuer, Audiences: entry.Audiences}
	p, err := ParseFor(map[string]identity.Profile{entry.Name: entry.Profile}, File{Name: "policy.yaml", Data: sections["policy.yaml"]})
	testkit.Must(t, err)
	scopes, err := registryauth.ParseScopes([]string{strings.TrimSpace(string(sections["scope"]))})
	if err != nil || len(scopes) != 1 {
		t.Fatalf("%d scopes, %v", len(scopes), err)
	}
	decide := func(patch []byte) ScopeDecision {
		t.Helper()
		id := testkit.Value(issuer.IdentifyClaims(patched(t, sections["token.json"], patch)))(t)
		return p.Decide(Subject{Identity: &id}, "registry.example.com", scopes).Scopes[0]
	}
	if d := decide([]byte("{}")); d.Reason != "" || len(d.Rules) == 0 {
		t.Errorf("the good token: %+v", d)
	}
	for _, f := range archive.Files {
		name, isWant := strings.CutSuffix(f.Name, ".want")
		if step, _, _ := strings.Cut(string(f.Data), " "); !isWant || step != "policy" {
			continue
		}
		if d := decide(sections[name+".json"]); len(d.Granted) > 0 || d.Reason == "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// patched returns claims with changes applied, which have at most one level of nesting.
func patched(t *testing.T, claims, patch []byte) []byte {
	t.Helper()
	var all, changes map[string]json.RawMessage
	for text, into := range map[*[]byte]*map[string]json.RawMessage{&claims: &all, &patch: &changes} {
		testkit.Must(t, json.Unmarshal(*text, into))
	}
	maps.Copy(all, changes) // null is equivalent to missing
	text := testkit.Value(json.Marshal(all))(t)
	return text
}

// The claims of rules for other identities are not listed.
func TestComparedClaims(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, []string{"- {name: a, subjects: [{identities: [one], claims: {x: [v]}}, {identities: [two], claims: {y: [v]}}], allow: [{repositories: [a], actions: [pull]}]}\n"},
		"deny:\n- {name: d, subjects: [{identities: [one], claims: {x: [v], w: [v]}}]}\n")
	for name, want := range map[string][]string{"one": {"w", "x"}, "two": {"y"}, "three": nil} {
		if got := policy.Compared(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
