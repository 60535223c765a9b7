package main

import "cmp"

// https://buildkite.com/docs/agent/cli/reference/oidc: the ids, by which alone
// Pullpass knows a pipeline, are only in tokens for which they are asked.
var buildkite = system{
	marks: []string{"BUILDKITE"}, asks: "buildkite-agent",
	job: func(getenv func(string) string) job {
		claims := cmp.Or(getenv("BUILDKITE_OIDC_TOKEN_CLAIMS"), "organization_id,pipeline_id")
		return command("buildkite-agent", func(audience string) []string {
			return []string{"oidc", "request-token", "--claim", claims, "--audience", audience}
		})
	},
}
