package identity

// GitLab follows https://docs.gitlab.com/ci/secrets/id_token_authentication/. Ids and booleans are
// strings, except the id of the runner. The path of a project that was deleted or moved long ago
// can be taken by any user.
const GitLab Profile = "gitlab"

var gitlab = profile{
	name: GitLab,
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
	project: "project_id", run: "pipeline_id", refs: []string{"ref", "ref_type"},
	check: func(c Claims) string {
		// In the pipeline of a merge request, job_project_id is the project that runs it, and
		// project_id is the project of the source code.
		if c["job_project_id"] != c["project_id"] {
			return `claim "project_id" is not "job_project_id": the code comes from another project than the job runs in, as in a merge request from a fork`
		}
		return ""
	},
	issuer:  hosts([]string{"project_id", "namespace_id"}, "gitlab.com"),
	repeats: true,
	advice: []Advice{
		{[]string{"project_id", "sub"}, "", "any project pushes that identities[].require lets in", `project_id: ["…"]`},
		{[]string{"ref_protected", "environment_protected"}, "", "any branch pushes, also an unreviewed one", `ref_protected: ["true"]`},
		{[]string{"ref_type", "sub"}, "ref", "a tag pushes that is called as the branch is", `ref_type: ["branch"]`},
		{[]string{"pipeline_source"}, "", "any pipeline pushes, also one of a merge request or a trigger", `pipeline_source: ["push"]`},
	},
}
