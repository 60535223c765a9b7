package identity

import (
	"fmt"
	"strings"
)

// github follows https://docs.github.com/actions/reference/security/oidc. Every custom claim is a
// string, also ids, numbers and ref_protected. A name of an owner or a repository that was given up
// can be taken by any user.
var github = profile{
	claims: map[string]Claim{
		"repository_id":         pathID,
		"repository_owner_id":   pathID,
		"enterprise_id":         pathID,
		"repository":            pathInstead("repository_id"),
		"repository_owner":      pathInstead("repository_owner_id"),
		"enterprise":            instead("enterprise_id"),
		"repository_visibility": id,
		"actor":                 instead("actor_id"),
		"actor_id":              id,
		"ref":                   name,
		"ref_type":              id,
		"ref_protected":         id,
		"base_ref":              name,
		"head_ref":              name,
		"sha":                   id,
		"event_name":            id,
		"environment":           name,
		"environment_node_id":   id,
		"workflow":              name,
		"workflow_ref":          id, // like job_workflow_ref, it begins with the name of an owner: * could match any owner
		"workflow_sha":          id,
		"job_workflow_ref":      id,
		"job_workflow_sha":      id,
		"runner_environment":    id,
		"run_id":                id,
		"run_number":            id,
		"run_attempt":           id,
		"check_run_id":          id,
	},
	needs:   []string{"repository_id", "repository_owner_id"},
	remedy:  "GitHub sets it since 2022, and Enterprise Server since 3.7",
	project: "repository_id", run: "run_id",
	check: func(c Claims) string {
		// sub is repo:OWNER@ID/REPO@ID:… for repositories that were created, renamed or moved since
		// July 2026. It is repo:OWNER/REPO:… for older ones, and owners can choose other forms. So
		// sub decides nothing. But ids in it must be those of the claims.
		sub, _ := c["sub"].(string)
		repository, ok := strings.CutPrefix(sub, "repo:")
		if !ok {
			return ""
		}
		repository, _, _ = strings.Cut(repository, ":")
		owner, repo, _ := strings.Cut(repository, "/")
		for _, part := range [...]struct{ text, claim string }{{owner, "repository_owner_id"}, {repo, "repository_id"}} {
			if _, id, ok := strings.Cut(part.text, "@"); ok && id != c[part.claim] {
				return fmt.Sprintf("claim %q has another id than %q", "sub", part.claim)
			}
		}
		return ""
	},
}

// gitlab follows https://docs.gitlab.com/ci/secrets/id_token_authentication/. Ids and booleans are
// strings, except the id of the runner. The path of a project that was deleted or moved long ago
// can be taken by any user.
var gitlab = profile{
	claims: map[string]Claim{
		"project_id":            pathID,
		"project_path":          pathInstead("project_id"),
		"namespace_id":          pathID,
		"namespace_path":        pathInstead("namespace_id"),
		"job_project_id":        pathID,
		"job_project_path":      pathInstead("job_project_id"),
		"job_namespace_id":      pathID,
		"job_namespace_path":    pathInstead("job_namespace_id"),
		"project_visibility":    id,
		"user_id":               id,
		"user_login":            instead("user_id"),
		"user_email":            instead("user_id"),
		"user_access_level":     id,
		"groups_direct":         list,
		"pipeline_id":           id,
		"pipeline_source":       id,
		"job_id":                id,
		"ref":                   name,
		"ref_path":              name,
		"ref_type":              id,
		"ref_protected":         id,
		"environment":           name,
		"environment_protected": id,
		"environment_action":    id,
		"deployment_tier":       id,
		"deployment_action":     id,
		"runner_id":             number,
		"runner_environment":    id,
		"sha":                   id,
		"ci_config_ref_uri":     id, // it begins with the path of a project: * could match any project
		"ci_config_sha":         id,
	},
	needs:   []string{"project_id", "job_project_id"},
	remedy:  "GitLab sets it since 18.3, and before, a merge request from a fork could get the claims of its parent",
	project: "project_id", run: "pipeline_id",
	check: func(c Claims) string {
		// In the pipeline of a merge request, job_project_id is the project that runs it, and
		// project_id is the project of the source code.
		if c["job_project_id"] != c["project_id"] {
			return `claim "project_id" is not "job_project_id": the code comes from another project than the job runs in, as in a merge request from a fork`
		}
		return ""
	},
}

// buildkite follows https://buildkite.com/docs/agent/cli/reference/oidc. A slug that was given up
// can be taken by any user. Ids are present if the job requests them.
var buildkite = profile{
	claims: map[string]Claim{
		"organization_id":    pathID,
		"organization_slug":  pathInstead("organization_id"),
		"pipeline_id":        pathID,
		"pipeline_slug":      pathInstead("pipeline_id"),
		"cluster_id":         pathID,
		"cluster_name":       instead("cluster_id"),
		"queue_id":           pathID,
		"queue_key":          instead("queue_id"),
		"build_id":           id,
		"build_number":       number,
		"build_branch":       name,
		"build_tag":          name,
		"build_commit":       id,
		"build_source":       id,
		"step_key":           name,
		"job_id":             id,
		"agent_id":           id,
		"runner_environment": id,
	},
	needs:   []string{"organization_id", "pipeline_id"},
	remedy:  "ask for it with buildkite-agent oidc request-token --claim organization_id,pipeline_id",
	project: "pipeline_id", run: "build_id",
}

// circleCI follows
// https://circleci.com/docs/guides/permissions-authentication/openid-connect-tokens/. The names of
// its claims contain a slash, so {claims.NAME} cannot name them.
var circleCI = profile{
	claims: map[string]Claim{
		"oidc.circleci.com/org-id":                 id,
		"oidc.circleci.com/project-id":             id,
		"oidc.circleci.com/context-ids":            list,
		"oidc.circleci.com/job-id":                 id,
		"oidc.circleci.com/workflow-id":            id,
		"oidc.circleci.com/pipeline-id":            id,
		"oidc.circleci.com/pipeline-definition-id": id,
		"oidc.circleci.com/ssh-rerun":              boolean,
		"oidc.circleci.com/vcs-origin":             instead("oidc.circleci.com/project-id"),
		"oidc.circleci.com/vcs-ref":                name,
	},
	needs:   []string{"oidc.circleci.com/project-id"},
	remedy:  "all tokens of CircleCI have it",
	project: "oidc.circleci.com/project-id", run: "oidc.circleci.com/pipeline-id",
	check: func(c Claims) string {
		// The issuer is https://oidc.circleci.com/org/ORG.
		if org, ok := c["oidc.circleci.com/org-id"]; ok && !inPath(c, org) {
			return `claim "oidc.circleci.com/org-id" is not the organization of "iss"`
		}
		return ""
	},
}

// bitbucket follows
// https://support.atlassian.com/bitbucket-cloud/docs/integrate-pipelines-with-resource-servers-using-oidc/.
// Its ids are UUIDs in braces, which the path of a repository cannot contain.
var bitbucket = profile{
	claims: map[string]Claim{
		"accountUuid":               id,
		"workspaceUuid":             id,
		"repositoryUuid":            id,
		"pipelineUuid":              id,
		"stepUuid":                  id,
		"deploymentEnvironmentUuid": id,
		"branchName":                name,
	},
	needs:   []string{"workspaceUuid", "repositoryUuid"},
	remedy:  "all tokens of Bitbucket have it",
	project: "repositoryUuid", run: "pipelineUuid",
}

// terraform follows
// https://developer.hashicorp.com/terraform/cloud-docs/dynamic-provider-credentials/workload-identity-tokens.
// Names within an organization belong to it, and may have upper case and spaces.
var terraform = profile{
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
	project: "terraform_workspace_id", run: "terraform_run_id",
}
