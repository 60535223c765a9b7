package warning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

func TestCautions(t *testing.T) {
	t.Parallel()
	known := map[string]subjects.KnownIdentity{"github": {Profile: identity.GitHub, Require: []string{"repository_owner_id"}}, "gitlab": {Profile: identity.GitLab}, "idp": {Profile: identity.Generic},
		"server": {Profile: identity.GitHub, Require: []string{"repository_owner_id"}}, "azure": {Profile: identity.Azure}, "tenant": {Profile: identity.Azure}}
	whole := `{identities: [github], claims: {repository_id: ["42"], ref: [refs/heads/main], ref_protected: ["true"], event_name: [push]}}`
	for _, test := range []struct {
		subject, actions string
		want             []string // a part of each caution
	}{
		{whole, "push", nil},
		{strings.Replace(whole, "[github]", "[elsewhere]", 1), "push", nil},
		{`{namespaces: [a]}`, "push", nil},
		{`{identities: [github]}`, "pull", nil},
		{`{identities: [github]}`, "push", []string{"any repository of the owner", "any branch", "any event"}},
		{`{identities: [github]}`, "delete", []string{"any repository of the owner", "any branch", "any event"}},
		{`{identities: [github]}`, `"*"`, []string{"any repository of the owner", "any branch", "any event"}},
		{`{identities: [github], claims: {repository_id: ["42"], ref: [refs/heads/main]}, condition: 'claims.event_name == "push"'}`, "push", []string{`ref_protected: ["true"]`}},
		{`{identities: [github], claims: {repository_id: ["42"], environment: [release], event_name: [push]}}`, "push", nil},
		{`{identities: [github], claims: {repository: [octo-org/web]}}`, "pull", []string{"compare repository_id"}},
		{`{identities: [github], claims: {repository_owner: [octo-org]}}`, "pull", nil}, // its id is required of all tokens
		{`{identities: [github], claims: {repositry_id: ["42"]}}`, "pull", []string{"claims.repositry_id is not a known claim"}},
		{`{identities: [idp], claims: {anything: [x], sub: [z]}}`, "push", nil},
		{`{identities: [gitlab], claims: {project_id: ["1"], ref: [main], ref_protected: ["true"], pipeline_source: [push]}}`, "push", []string{"ref_type"}},
		// A claim that only has to be present does not distinguish callers.
		{strings.Replace(whole, "refs/heads/main", `"*"`, 1), "push", []string{"any branch"}},
		{strings.Replace(whole, "refs/heads/main", `main, "**"`, 1), "push", []string{"any branch"}},
		{`{identities: [github], condition: 'has(claims.repository_id) && "environment" in claims && has(claims["event_name"].x)'}`, "push", []string{"any repository of the owner", "any branch", "any event"}},
		{strings.Replace(whole, "[push]", "[push, pull_request_target]", 1), "push", []string{"claims.event_name may be pull_request_target, and anyone who opens"}},
		{strings.Replace(whole, "[push]", "[workflow_run]", 1), "push", []string{"claims.event_name may be workflow_run, and anyone who opens"}},
		{strings.Replace(whole, "[push]", "[workflow_run]", 1), "pull", nil},
		// Each server counts from one.
		{strings.Replace(whole, "[github]", "[github, server]", 1), "push", []string{"subjects[0]: claims.repository_id can have the same value"}},
		{strings.Replace(whole, "[github]", "[github, elsewhere]", 1), "push", nil},
		{`{identities: [github, server], claims: {ref: [main]}}`, "pull", nil},
		{`{identities: [idp, gitlab], condition: 'claims.sub == "x"'}`, "pull", []string{"subjects[0]: claims.sub can have the same value"}},
		{`{identities: [azure, tenant], claims: {oid: ["x"]}}`, "pull", nil},
	} {
		p := parse(t, fmt.Sprintf("rules:\n- {name: r, subjects: [%s], allow: [{repositories: [a], actions: [%s]}]}\n", test.subject, test.actions))
		got := Cautions(p, known)
		if !slices.EqualFunc(got, test.want, strings.Contains) {
			t.Errorf("%s %s: got\n%s\nwant\n%s", test.subject, test.actions, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
	// The workflow alone does not identify its caller.
	p := parse(t, `
rules:
- name: r
  subjects: [{identities: [github], claims: {job_workflow_ref: ["octo-org/ci/.github/workflows/build.yml@refs/heads/main"]}}]
  allow: [{repositories: [a], actions: [push]}]
`)
	got := Cautions(p, map[string]subjects.KnownIdentity{"github": {Profile: identity.GitHub}})
	if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "anybody who calls this workflow") }) {
		t.Errorf("got %q", got)
	}
}

// The same path has different owners on different servers.
func TestCautionsOfPlaceholders(t *testing.T) {
	t.Parallel()
	known := map[string]subjects.KnownIdentity{"a": {Profile: identity.GitLab}, "b": {Profile: identity.GitLab}, "c": {Profile: identity.Buildkite}}
	for subjects, want := range map[string]string{
		`{identities: [a, b]}`:                      "rule r: allow[0].repositories[1]: {claims.project_path} can have the same value",
		`{identities: [a]}, {identities: [b]}`:      "rule r: allow[0].repositories[1]: {claims.project_path} can have the same value",
		`{identities: [a]}, {identities: [a]}`:      "",
		`{identities: [a, c]}`:                      "",
		`{identities: [a]}, {identities: [absent]}`: "",
	} {
		p := parse(t, fmt.Sprintf("rules:\n- {name: r, subjects: [%s], allow: [{repositories: [x, 'ci/{claims.project_path}'], actions: [pull]}]}\n", subjects))
		if got := Cautions(p, known); len(got) > 1 || (want == "") != (len(got) == 0) || want != "" && !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q, want %q", subjects, got, want)
		}
	}
}
