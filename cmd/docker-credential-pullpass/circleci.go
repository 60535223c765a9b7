package main

import "encoding/json"

// CIRCLE_OIDC_TOKEN_V2 has the organization's id for its audience, and any
// service of the organization could pass it on:
// https://circleci.com/docs/guides/permissions-authentication/oidc-tokens-with-custom-claims/
var circleCI = system{
	marks: []string{"CIRCLECI"}, asks: "circleci",
	job: func(func(string) string) job {
		return command("circleci", func(audience string) []string {
			claims, _ := json.Marshal(map[string]string{"aud": audience}) // strings alone
			return []string{"run", "oidc", "get", "--claims", string(claims)}
		})
	},
}
