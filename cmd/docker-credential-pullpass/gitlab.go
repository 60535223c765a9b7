package main

import "github.com/pullpass/pullpass/credential"

// https://docs.gitlab.com/ci/secrets/id_token_authentication/
var gitLab = system{
	marks: []string{"PULLPASS_ID_TOKEN", "GITLAB_CI"},
	job: func(getenv func(string) string) job {
		return variable(getenv, "PULLPASS_ID_TOKEN", "give the job id_tokens: {PULLPASS_ID_TOKEN: {aud: %q}}", credential.Source{
			Audience: "aud of the job's id_tokens, or whatever makes the token,",
			Renewal:  "in GitLab it lives as long as the job may run (timeout)",
		})
	},
}
