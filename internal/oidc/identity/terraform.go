package identity

import "strings"

// Terraform follows
// https://developer.hashicorp.com/terraform/cloud-docs/dynamic-provider-credentials/workload-identity-tokens.
// Names within an organization belong to it, and may have upper case and spaces.
const Terraform Profile = "terraform" // HCP Terraform and Terraform Enterprise

var terraform = profile{
	name: Terraform,
	claims: map[string]Claim{
		"terraform_organization_id":   id,
		"terraform_organization_name": instead("terraform_organization_id"),
		"terraform_project_id":        id,
		"terraform_project_name":      instead("terraform_project_id"),
		"terraform_workspace_id":      id,
		"terraform_workspace_name":    instead("terraform_workspace_id"),
		"terraform_full_workspace":    instead("terraform_workspace_id"),
		"terraform_run_id":            id,
		"terraform_run_phase":         id,
	},
	needs:   []string{"terraform_organization_id", "terraform_workspace_id"},
	remedy:  "runs of workspaces have it, those of stacks have not",
	project: "terraform_workspace_id", run: "terraform_run_id", refs: []string{"terraform_run_phase"},
	issuer:    hosts([]string{"terraform_organization_id", "terraform_project_id", "terraform_workspace_id"}, "app.terraform.io", "app.eu.terraform.io"),
	isDefault: func(_, audience string) bool { return strings.HasSuffix(audience, ".workload.identity") },
	advice: []Advice{
		{[]string{"terraform_workspace_id"}, "", "any workspace of the organization pushes", `terraform_workspace_id: ["…"]`},
		{[]string{"terraform_run_phase"}, "", "a plan pushes, which anybody may start who opens a pull request", `terraform_run_phase: ["apply"]`},
	},
}
