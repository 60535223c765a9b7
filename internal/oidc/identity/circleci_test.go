package identity

import "testing"

func TestCircleCI(t *testing.T) {
	t.Parallel()
	profileTest{
		claims: Claims{"oidc.circleci.com/project-id": "p", "oidc.circleci.com/pipeline-id": "r"}, project: "p", run: "r",
		issuers: map[string]bool{
			"https://oidc.circleci.com/org/a": false,
		},
		audiences: []audienceTest{
			{"https://oidc.circleci.com/org/a", "a", true},
			{"https://oidc.circleci.com/org/a", "b", false},
		},
	}.check(t, CircleCI)
}
