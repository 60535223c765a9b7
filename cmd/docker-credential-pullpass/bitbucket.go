package main

import "github.com/pullpass/pullpass/credential"

// https://support.atlassian.com/bitbucket-cloud/docs/integrate-pipelines-with-resource-servers-using-oidc/
var bitbucket = system{
	marks: []string{"BITBUCKET_BUILD_NUMBER"}, holds: "BITBUCKET_STEP_OIDC_TOKEN",
	job: func(getenv func(string) string) job {
		return variable(getenv, "BITBUCKET_STEP_OIDC_TOKEN", "give the step oidc: {audiences: [%q]}", credential.Source{
			Audience: "oidc.audiences of the step",
			Renewal:  "a step gets one token",
		})
	},
}
