package identity

import "testing"

func TestBitbucket(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"workspaceUuid": "{w}", "repositoryUuid": "{r}", "pipelineUuid": "{p}"}, project: "{r}", run: "{p}",
		issuers: map[string]bool{
			"https://api.bitbucket.org/2.0/workspaces/o/x": false,
		},
		audiences: []audienceTest{
			{"https://api.bitbucket.org/x", "ari:cloud:bitbucket::workspace/a", true},
		},
	}.check(t, Bitbucket)
}
