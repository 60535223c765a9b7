package identity

import "strings"

// Buildkite follows https://buildkite.com/docs/agent/cli/reference/oidc. A slug that was given up
// can be taken by any user. Ids are present if the job requests them.
const Buildkite Profile = "buildkite"

var buildkite = profile{
	name: Buildkite,
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
	project: "pipeline_id", run: "build_id", refs: []string{"build_branch", "build_tag"},
	issuer:    hosts([]string{"organization_id", "pipeline_id"}, "agent.buildkite.com"),
	isDefault: func(_, audience string) bool { return strings.HasPrefix(audience, "https://buildkite.com/") },
	advice: []Advice{
		{[]string{"pipeline_id"}, "", "any pipeline of the organization pushes", `pipeline_id: ["…"]`},
		{[]string{"build_branch", "build_tag"}, "", "any branch pushes, also one of a fork, if the pipeline builds them", `build_branch: ["main"]`},
	},
}
