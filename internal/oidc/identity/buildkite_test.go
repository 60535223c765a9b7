package identity

import "testing"

func TestBuildkite(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"organization_id": "o", "pipeline_id": "p"}, project: "p",
		issuers: map[string]bool{
			"https://agent.buildkite.com": true,
		},
		audiences: []audienceTest{
			{"https://agent.buildkite.com", "https://buildkite.com/octo", true},
		},
		repeats: map[string]bool{"pipeline_id": false},
	}.check(t, Buildkite)
}
