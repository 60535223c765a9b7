package identity

import (
	"slices"
	"testing"
)

func TestKnownIssuers(t *testing.T) {
	t.Parallel()
	for issuer, want := range map[string]struct {
		profile Profile
		shared  bool
	}{
		"https://token.actions.githubusercontent.com":                                 {GitHub, true},
		"https://token.actions.githubusercontent.com/":                                {GitHub, true},
		"https://TOKEN.actions.githubusercontent.com":                                 {GitHub, true},
		"https://token.actions.githubusercontent.com:443":                             {GitHub, true},
		"https://token.actions.githubusercontent.com/octo":                            {GitHub, false},
		"https://token.actions.octo.ghe.com":                                          {GitHub, false},
		"https://github.example.com/_services/token":                                  {"", false},
		"https://gitlab.com":                                                          {GitLab, true},
		"https://gitlab.com/":                                                         {GitLab, true},
		"https://gitlab.example.com":                                                  {"", false},
		"https://evil-gitlab.com":                                                     {"", false},
		"https://agent.buildkite.com":                                                 {Buildkite, true},
		"https://oidc.circleci.com/org/a":                                             {CircleCI, false},
		"https://api.bitbucket.org/2.0/workspaces/o/x":                                {Bitbucket, false},
		"https://app.terraform.io":                                                    {Terraform, true},
		"https://app.eu.terraform.io":                                                 {Terraform, true},
		"https://accounts.google.com":                                                 {Google, true},
		"https://login.microsoftonline.com/11111111-2/v2.0":                           {Azure, false},
		"https://sts.windows.net/11111111-2/":                                         {Azure, false},
		"https://login.microsoftonline.com/9188040D-6C67-4C5B-B112-36A304B66DAD/v2.0": {Azure, true},
		"https://a.tokens.sts.global.api.aws":                                         {AWS, false},
		"https://jenkins.example.com":                                                 {"", false},
		"":                                                                            {"", false},
		"https://[":                                                                   {"", false},
	} {
		known, ok := KnownIssuer(issuer)
		if ok != (want.profile != "") || known.Profile != want.profile || len(known.Tenant) > 0 != want.shared {
			t.Errorf("%s: %+v, %v", issuer, known, ok)
		}
		if known.HasTenant(nil) == want.shared || known.HasTenant(map[string][]string{"ref": {"a"}}) == want.shared {
			t.Errorf("%s: HasTenant is wrong for require without a tenant", issuer)
		}
		for _, claim := range known.Tenant {
			if c, ok := known.Profile.Claim(claim); !ok || c.Instead != "" || c.IsName || c.Type != String {
				t.Errorf("%s: the tenant %s is not an id", issuer, claim)
			}
			if !known.HasTenant(map[string][]string{claim: {"a"}}) || known.HasTenant(map[string][]string{claim: {}}) {
				t.Errorf("%s: %s does not count as the tenant, or counts without values", issuer, claim)
			}
		}
		if known.Profile == GitHub && slices.Contains(known.Tenant, "repository_owner") {
			t.Error("a name is a tenant")
		}
	}
}

func TestAudiencesOfOthers(t *testing.T) {
	t.Parallel()
	const gh = "https://token.actions.githubusercontent.com"
	for _, test := range []struct {
		profile          Profile
		issuer, audience string
		others           bool
	}{
		{GitHub, gh, "registry.example.com", false},
		{GitHub, gh, "https://registry.example.com", false},
		{GitHub, gh, "https://registry.example.com/octo-org", false},
		{GitHub, gh, "https://github.com/octo-org", true},
		{GitHub, gh, "https://github.com/octo-org/", true},
		{GitHub, gh, "https://github.com/octo-org/registry", false},
		{GitHub, gh, gh, true},
		{GitHub, gh + "/octo", "https://github.com/octo-org", true},
		{GitHub, "https://token.actions.octo.ghe.com", "https://octo.ghe.com/octo-org", true},
		{GitHub, "https://github.example.com/_services/token", "https://github.example.com/octo-org", true},
		{GitHub, gh, "sigstore", true},
		{GitHub, gh, "https://%", false},
		{GitLab, "https://gitlab.example.com", "https://gitlab.example.com", true},
		{GitLab, "https://gitlab.example.com", "https://registry.example.com", false},
		{Generic, "https://ci.example.com", "sts.amazonaws.com", true},
		{Generic, "https://ci.example.com", "api://AzureADTokenExchange", true},
		{Generic, "https://ci.example.com", "//iam.googleapis.com/projects/1", true},
		{Generic, "https://ci.example.com", "https://iam.googleapis.com/projects/1", true},
		{Generic, "https://ci.example.com", "https://ci.example.com", true},
		{Buildkite, "https://agent.buildkite.com", "https://buildkite.com/octo", true},
		{CircleCI, "https://oidc.circleci.com/org/a", "a", true},
		{CircleCI, "https://oidc.circleci.com/org/a", "b", false},
		{Bitbucket, "https://api.bitbucket.org/x", "ari:cloud:bitbucket::workspace/a", true},
		{Terraform, "https://app.terraform.io", "aws.workload.identity", true},
		{Terraform, "https://app.terraform.io", "registry.example.com", false},
		{Azure, "https://sts.windows.net/t/", "https://management.azure.com/", true},
		{Azure, "https://sts.windows.net/t/", "https://management.azure.com", true},
		{GitHub, gh, "https://GitHub.com/octo-org", true},
		{GitHub, "https://GitHub.example.com/_services/token", "https://github.example.com/octo-org", true},
		{GitHub, "https://token.actions.octo.ghe.com", "https://Octo.GHE.com/octo-org", true},
		{GitHub, gh, "api://AzureADTokenExchangeUSGov", true},
		{GitHub, gh, "api://AzureADTokenExchangeChina", true},
		{GitHub, gh, "pypi", true},
		{GitLab, "https://gitlab.com", "npm:packages.example.com", true},
	} {
		if whose := AudienceOfOthers(test.profile, test.issuer, test.audience); (whose != "") != test.others {
			t.Errorf("%s at %s is %q", test.audience, test.issuer, whose)
		}
	}
}
