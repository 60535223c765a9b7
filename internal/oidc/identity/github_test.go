package identity

import (
	"slices"
	"testing"
)

func TestGitHub(t *testing.T) {
	t.Parallel()
	const gh = "https://token.actions.githubusercontent.com"
	profileTest{
		claims: Claims{"repository_id": "42", "repository_owner_id": "1", "run_id": "7"}, project: "42", run: "7",
		issuers: map[string]bool{
			gh:       true,
			gh + "/": true,
			"https://TOKEN.actions.githubusercontent.com": true,
			gh + ":443":                          true,
			gh + "/octo":                         false,
			"https://token.actions.octo.ghe.com": false,
		},
		audiences: []audienceTest{
			{gh, "registry.example.com", false},
			{gh, "https://registry.example.com", false},
			{gh, "https://registry.example.com/octo-org", false},
			{gh, "https://github.com/octo-org", true},
			{gh, "https://github.com/octo-org/", true},
			{gh, "https://github.com/octo-org/registry", false},
			{gh, gh, true},
			{gh + "/octo", "https://github.com/octo-org", true},
			{"https://token.actions.octo.ghe.com", "https://octo.ghe.com/octo-org", true},
			{"https://github.example.com/_services/token", "https://github.example.com/octo-org", true},
			{gh, "sigstore", true},
			{gh, "https://%", false},
			{"https://%", "https://github.com/octo-org", false},
			{gh, "https://github.com/", false},
			{gh, "https://GitHub.com/octo-org", true},
			{"https://GitHub.example.com/_services/token", "https://github.example.com/octo-org", true},
			{"https://token.actions.octo.ghe.com", "https://Octo.GHE.com/octo-org", true},
			{gh, "api://AzureADTokenExchangeUSGov", true},
			{gh, "api://AzureADTokenExchangeChina", true},
			{gh, "pypi", true},
		},
		repeats: map[string]bool{"repository_id": true, "repository": true, "sub": true, "actor_id": true, "ref": false, "event_name": false},
	}.check(t, GitHub)
	// An owner can choose a form of sub in which the text after @ is not an id.
	if _, err := GitHub.External("ci", Claims{"sub": "octo@9/a@9", "repository_id": "42", "repository_owner_id": "1"}); err != nil {
		t.Error(err)
	}
	for value, outsiders := range map[string]bool{"pull_request_target": true, "workflow_run": true, "push": false} {
		if (GitHub.Outsiders("event_name", value) != "") != outsiders || GitHub.Outsiders("ref", value) != "" {
			t.Errorf("outsiders of %s: %q, %q", value, GitHub.Outsiders("event_name", value), GitHub.Outsiders("ref", value))
		}
	}
	if known, _ := KnownIssuer(gh); slices.Contains(known.Tenant, "repository_owner") {
		t.Error("a name is a tenant")
	}
}
