package main

import "github.com/pullpass/pullpass/credential"

// https://developer.hashicorp.com/terraform/cloud-docs/workspaces/dynamic-provider-credentials/manual-generation
var terraform = system{
	marks: []string{"TFC_RUN_ID"}, holds: "TFC_WORKLOAD_IDENTITY_TOKEN",
	job: func(getenv func(string) string) job {
		return variable(getenv, "TFC_WORKLOAD_IDENTITY_TOKEN", "set TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace to %q", credential.Source{
			Audience: "TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace",
			Renewal:  "plan and apply get one token each",
		})
	},
}
