package identity

// Advice names a claim that a rule for pushes should also compare, so that it does not allow more
// callers than intended.
type Advice struct {
	Claims []string // the rule should compare at least one of these
	Only   string   // the advice is for rules that compare this claim; empty: for all rules
	Risk   string   // the callers that such a rule allows otherwise
	Better string   // the condition to add, in the syntax of policies
}

// Advice returns the known risks of the profile's tokens. It considers which claims a rule
// compares. It cannot tell whether the values are right.
func (p Profile) Advice() []Advice { return advice[p] }

// Strangers names the outsiders who can influence jobs whose claim has this value. It is empty if
// none are known. It is for rules that let callers push.
func (p Profile) Strangers(claim, value string) string {
	if p == GitHub && claim == "event_name" && (value == "pull_request_target" || value == "workflow_run") {
		return "anyone who opens a pull request can influence such a job"
	}
	return ""
}

// Repeats reports whether two issuers of the profile can give a claim the same value for two
// unrelated things. Each server counts from one, and on each server any user may have taken a name.
// UUIDs and values that contain a domain are unique.
func (p Profile) Repeats(claim string) bool {
	switch p {
	case GitHub, GitLab, Generic:
		c, _ := p.Claim(claim)
		return c.IsPath || claim == "sub" || claim == "actor_id" || claim == "user_id"
	}
	return false
}

var advice = map[Profile][]Advice{
	GitHub: {
		{[]string{"repository_id", "sub"}, "", "any repository of the owner pushes", `repository_id: ["…"]`},
		{[]string{"repository_id", "repository_owner_id", "sub"}, "job_workflow_ref", "anybody who calls this workflow pushes", `repository_owner_id: ["…"]`},
		{[]string{"ref", "environment", "sub"}, "", "any branch pushes, also an unreviewed one", `ref: ["refs/heads/main"], or environment`},
		{[]string{"ref_protected", "environment"}, "ref", "anyone who may create the branch pushes", `ref_protected: ["true"]`},
		{[]string{"event_name"}, "", "any event pushes, also pull_request_target and workflow_run, which outsiders can influence", `event_name: ["push"]`},
	},
	GitLab: {
		{[]string{"project_id", "sub"}, "", "any project pushes that identities[].require lets in", `project_id: ["…"]`},
		{[]string{"ref_protected", "environment_protected"}, "", "any branch pushes, also an unreviewed one", `ref_protected: ["true"]`},
		{[]string{"ref_type", "sub"}, "ref", "a tag pushes that is called as the branch is", `ref_type: ["branch"]`},
		{[]string{"pipeline_source"}, "", "any pipeline pushes, also one of a merge request or a trigger", `pipeline_source: ["push"]`},
	},
	Buildkite: {
		{[]string{"pipeline_id"}, "", "any pipeline of the organization pushes", `pipeline_id: ["…"]`},
		{[]string{"build_branch", "build_tag"}, "", "any branch pushes, also one of a fork, if the pipeline builds them", `build_branch: ["main"]`},
	},
	CircleCI: {
		{[]string{"oidc.circleci.com/project-id"}, "", "any project of the organization pushes", `oidc.circleci.com/project-id: ["…"]`},
		{[]string{"oidc.circleci.com/vcs-ref"}, "", "any branch pushes, also an unreviewed one", `oidc.circleci.com/vcs-ref: ["refs/heads/main"]`},
		{[]string{"oidc.circleci.com/ssh-rerun"}, "", "anyone who reruns a job with SSH pushes by hand", `oidc.circleci.com/ssh-rerun: ["false"]`},
	},
	Bitbucket: {
		{[]string{"repositoryUuid"}, "", "any repository of the workspace pushes", `repositoryUuid: ["{…}"]`},
		{[]string{"branchName", "deploymentEnvironmentUuid"}, "", "any branch pushes, also an unreviewed one", `branchName: ["main"]`},
	},
	Terraform: {
		{[]string{"terraform_workspace_id"}, "", "any workspace of the organization pushes", `terraform_workspace_id: ["…"]`},
		{[]string{"terraform_run_phase"}, "", "a plan pushes, which anybody may start who opens a pull request", `terraform_run_phase: ["apply"]`},
	},
	SPIFFE:  {{[]string{"sub"}, "", "any workload of the trust domain pushes", `sub: ["spiffe://…"]`}},
	Google:  {{[]string{"sub"}, "", "any account pushes that identities[].require lets in", `sub: ["…"]`}},
	Azure:   {{[]string{"oid"}, "", "any application of the tenant pushes", `oid: ["…"]`}},
	AWS:     {{[]string{"sub"}, "", "any role of the account pushes", `sub: ["arn:aws:iam::…"]`}},
	Generic: {{[]string{"sub"}, "", "any token of the issuer pushes", `sub: ["…"]`}},
}
