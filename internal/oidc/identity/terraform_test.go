package identity

import "testing"

func TestTerraform(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"terraform_organization_id": "o", "terraform_workspace_id": "w", "terraform_run_id": "r"}, project: "w", run: "r",
		issuers: map[string]bool{
			"https://app.terraform.io":    true,
			"https://app.eu.terraform.io": true,
		},
		audiences: []audienceTest{
			{"https://app.terraform.io", "aws.workload.identity", true},
			{"https://app.terraform.io", "registry.example.com", false},
		},
	}.check(t, Terraform)
}
