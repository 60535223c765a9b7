package identity

import "strings"

// Bitbucket follows
// https://support.atlassian.com/bitbucket-cloud/docs/integrate-pipelines-with-resource-servers-using-oidc/.
// Its ids are UUIDs in braces, which the path of a repository cannot contain.
const Bitbucket Profile = "bitbucket"

var bitbucket = profile{
	name: Bitbucket,
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
	project: "repositoryUuid", run: "pipelineUuid", refs: []string{"branchName"},
	issuer:    hosts(nil, "api.bitbucket.org"),
	isDefault: func(_, audience string) bool { return strings.HasPrefix(audience, "ari:cloud:bitbucket::workspace/") },
	advice: []Advice{
		{[]string{"repositoryUuid"}, "", "any repository of the workspace pushes", `repositoryUuid: ["{…}"]`},
		{[]string{"branchName", "deploymentEnvironmentUuid"}, "", "any branch pushes, also an unreviewed one", `branchName: ["main"]`},
	},
}
