package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// askTimeout bounds all requests for one token. Clients wait for a helper without
// a timeout.
const askTimeout = 30 * time.Second

// instead tells how to use the token of the pod that runs the job. It is never the
// default: anyone who can start jobs on a runner could act as the runner by not giving
// the job a token of its own.
const instead = "to answer with the token of the runner's pod, set PULLPASS_TOKEN_FILE"

// job is the CI job that the helper runs in, and its way to an OpenID token.
type job struct {
	from  credential.Source
	token func(ctx context.Context, audience string) (string, error)
}

// jobOf detects the CI system by a variable that it sets in every job. The first
// variable that is set counts. PULLPASS_ID_TOKEN comes first, because it is set for
// this program.
func jobOf(getenv func(string) string) (j job, found bool) {
	switch {
	case getenv("PULLPASS_ID_TOKEN") != "", getenv("GITLAB_CI") != "":
		// https://docs.gitlab.com/ci/secrets/id_token_authentication/
		return variable(getenv, "PULLPASS_ID_TOKEN", "give the job id_tokens: {PULLPASS_ID_TOKEN: {aud: %q}}", credential.Source{
			Audience: "aud of the job's id_tokens, or whatever makes the token,",
			Renewal:  "in GitLab it lives as long as the job may run (timeout)",
		}), true
	// Forgejo and Gitea set it, too, and have the same token service.
	case getenv("GITHUB_ACTIONS") != "":
		return newGitHub(getenv).job(), true
	case getenv("BUILDKITE") != "":
		// https://buildkite.com/docs/agent/cli/reference/oidc: the ids, by which alone
		// Pullpass knows a pipeline, are only in tokens for which they are asked.
		claims := cmp.Or(getenv("BUILDKITE_OIDC_TOKEN_CLAIMS"), "organization_id,pipeline_id")
		return command("buildkite-agent", func(audience string) []string {
			return []string{"oidc", "request-token", "--claim", claims, "--audience", audience}
		}), true
	case getenv("CIRCLECI") != "":
		// CIRCLE_OIDC_TOKEN_V2 has the organization's id for its audience, and any
		// service of the organization could pass it on:
		// https://circleci.com/docs/guides/permissions-authentication/oidc-tokens-with-custom-claims/
		return command("circleci", func(audience string) []string {
			claims, _ := json.Marshal(map[string]string{"aud": audience}) // strings alone
			return []string{"run", "oidc", "get", "--claims", string(claims)}
		}), true
	case getenv("BITBUCKET_BUILD_NUMBER") != "":
		// https://support.atlassian.com/bitbucket-cloud/docs/integrate-pipelines-with-resource-servers-using-oidc/
		return variable(getenv, "BITBUCKET_STEP_OIDC_TOKEN", "give the step oidc: {audiences: [%q]}", credential.Source{
			Audience: "oidc.audiences of the step",
			Renewal:  "a step gets one token",
		}), true
	case getenv("TFC_RUN_ID") != "":
		// https://developer.hashicorp.com/terraform/cloud-docs/workspaces/dynamic-provider-credentials/manual-generation
		return variable(getenv, "TFC_WORKLOAD_IDENTITY_TOKEN", "set TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace to %q", credential.Source{
			Audience: "TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace",
			Renewal:  "plan and apply get one token each",
		}), true
	}
	return job{}, false
}

// credential gets the job's token and looks at it as at a pod's.
func (j job) credential(audience string, now time.Time) (credential.Credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	token, err := j.token(ctx, audience)
	if err != nil {
		return credential.Credential{}, fmt.Errorf("%s: %w", j.from.Name, err)
	}
	return credential.FromToken(token, j.from, audience, now)
}

// variable is for systems that put the token into the job's environment. The
// remedy has a place for the audience.
func variable(getenv func(string) string, name, remedy string, from credential.Source) job {
	from.Name = name
	return job{from, func(_ context.Context, audience string) (string, error) {
		if token := getenv(name); token != "" {
			return token, nil
		}
		return "", fmt.Errorf("%w in this CI job; "+remedy+"; %s", credential.ErrMissing, audience, instead)
	}}
}
