package identity

import "strings"

// CircleCI follows
// https://circleci.com/docs/guides/permissions-authentication/openid-connect-tokens/. The names of
// its claims contain a slash, so {claims.NAME} cannot name them.
const CircleCI Profile = "circleci"

var circleCI = profile{
	name: CircleCI,
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
	project: "oidc.circleci.com/project-id", run: "oidc.circleci.com/pipeline-id", refs: []string{"oidc.circleci.com/vcs-ref"},
	check: func(c Claims) string {
		// The issuer is https://oidc.circleci.com/org/ORG.
		if org, ok := c["oidc.circleci.com/org-id"]; ok && !inPath(c, org) {
			return `claim "oidc.circleci.com/org-id" is not the organization of "iss"`
		}
		return ""
	},
	issuer:    hosts(nil, "oidc.circleci.com"),
	isDefault: func(issuer, audience string) bool { return strings.HasSuffix(issuer, "/org/"+audience) },
	advice: []Advice{
		{[]string{"oidc.circleci.com/project-id"}, "", "any project of the organization pushes", `oidc.circleci.com/project-id: ["…"]`},
		{[]string{"oidc.circleci.com/vcs-ref"}, "", "any branch pushes, also an unreviewed one", `oidc.circleci.com/vcs-ref: ["refs/heads/main"]`},
		{[]string{"oidc.circleci.com/ssh-rerun"}, "", "anyone who reruns a job with SSH pushes by hand", `oidc.circleci.com/ssh-rerun: ["false"]`},
	},
}
