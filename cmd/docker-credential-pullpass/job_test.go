package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const orInstead = "; " + instead

// Which token it is, is decided by what is set.
func TestWhoseToken(t *testing.T) {
	t.Parallel()
	now := time.Now()
	file, variable := newToken(t, registry, now), newToken(t, registry, now)
	path := testkit.TempFile(t, "token", file)
	for _, test := range []struct {
		name string
		env  environment
		want string
	}{
		{"the file that is named", environment{"PULLPASS_TOKEN_FILE": path}, file},
		{"the file that is named, in a job", environment{
			"PULLPASS_TOKEN_FILE": path, "GITHUB_ACTIONS": "true", "BITBUCKET_BUILD_NUMBER": "1", "BITBUCKET_STEP_OIDC_TOKEN": variable,
		}, file},
		{"the variable", environment{"PULLPASS_ID_TOKEN": variable}, variable},
		{"the variable, in a job of GitLab", environment{"PULLPASS_ID_TOKEN": variable, "GITLAB_CI": "true"}, variable},
		{"the variable, in a job of another system", environment{"PULLPASS_ID_TOKEN": variable, "GITHUB_ACTIONS": "true", "BUILDKITE": "true"}, variable},
		{"Bitbucket", environment{"BITBUCKET_BUILD_NUMBER": "1", "BITBUCKET_STEP_OIDC_TOKEN": variable}, variable},
		{"HCP Terraform", environment{"TFC_RUN_ID": "run-1", "TFC_WORKLOAD_IDENTITY_TOKEN": variable}, variable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.env["PULLPASS_REGISTRIES"] = registry
			output := printed(t, 0, []string{"get"}, test.env, now, strings.NewReader(registry))
			if !strings.Contains(output, `"Secret":"`+test.want+`"`) {
				t.Error("not that token")
			}
		})
	}
}

// A job without a token is told so, and does not become the runner's pod.
func TestJobRefusals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	token, other := newToken(t, registry, now), newToken(t, "vault", now)
	const (
		noToken = "no token in this CI job; "
		gitLab  = "PULLPASS_ID_TOKEN: " + noToken + `give the job id_tokens: {PULLPASS_ID_TOKEN: {aud: "registry.example.com"}}` + orInstead
		gitHub  = "ACTIONS_ID_TOKEN_REQUEST_URL: no token for this CI job, for it or ACTIONS_ID_TOKEN_REQUEST_TOKEN is not set; give the job permissions: {id-token: write} " +
			"(a pull request of a fork gets none, and a container of the job only the variables that it is given)" + orInstead
		ended  = "token expired at "
		wanted = `to "registry.example.com" (or set PULLPASS_AUDIENCE, if Pullpass expects another audience)`
	)
	for _, test := range []struct {
		name string
		env  environment
		now  time.Time
		want string // how the text begins
	}{
		{"GitLab", environment{"GITLAB_CI": "true"}, now, gitLab},
		{"GitLab before others", environment{"GITLAB_CI": "true", "GITHUB_ACTIONS": "true", "BITBUCKET_BUILD_NUMBER": "1", "BITBUCKET_STEP_OIDC_TOKEN": token}, now, gitLab},
		{"GitHub", environment{"GITHUB_ACTIONS": "true"}, now, gitHub},
		{"GitHub, no token for asking", environment{"GITHUB_ACTIONS": "true", "ACTIONS_ID_TOKEN_REQUEST_URL": "https://127.0.0.1:1"}, now, gitHub},
		{"GitHub, no address", environment{"GITHUB_ACTIONS": "true", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": token}, now, gitHub},
		{"Bitbucket", environment{"BITBUCKET_BUILD_NUMBER": "1"}, now, "BITBUCKET_STEP_OIDC_TOKEN: " + noToken + `give the step oidc: {audiences: ["registry.example.com"]}` + orInstead},
		{"HCP Terraform", environment{"TFC_RUN_ID": "run-1"}, now, "TFC_WORKLOAD_IDENTITY_TOKEN: " + noToken +
			`set TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace to "registry.example.com"` + orInstead},
		{"two tokens", environment{"PULLPASS_ID_TOKEN": token, "PULLPASS_TOKEN_FILE": "/token"}, now, errTwoTokens.Error()},

		{"GitLab, another audience", environment{"PULLPASS_ID_TOKEN": other}, now,
			`PULLPASS_ID_TOKEN: token for another audience: it is for ["vault"]; set aud of the job's id_tokens, or whatever makes the token, ` + wanted},
		{"GitLab, ended", environment{"PULLPASS_ID_TOKEN": token}, now.Add(time.Hour), "PULLPASS_ID_TOKEN: " + ended},
		{"Bitbucket, its default audience", environment{"BITBUCKET_BUILD_NUMBER": "1", "BITBUCKET_STEP_OIDC_TOKEN": newToken(t, "ari:cloud:bitbucket::workspace/1", now)}, now,
			`BITBUCKET_STEP_OIDC_TOKEN: token for another audience: it is for ["ari:cloud:bitbucket::workspace/1"]; set oidc.audiences of the step ` + wanted},
		{"HCP Terraform, another audience", environment{"TFC_RUN_ID": "run-1", "TFC_WORKLOAD_IDENTITY_TOKEN": other}, now,
			`TFC_WORKLOAD_IDENTITY_TOKEN: token for another audience: it is for ["vault"]; set TFC_WORKLOAD_IDENTITY_AUDIENCE of the workspace ` + wanted},
		{"no JWT", environment{"PULLPASS_ID_TOKEN": "hunter2"}, now, "PULLPASS_ID_TOKEN: not an OpenID token: not a JWT of three parts"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.env["PULLPASS_REGISTRIES"] = registry
			output := printed(t, 1, []string{"get"}, test.env, test.now, strings.NewReader(registry))
			if want := "docker-credential-pullpass: " + test.want; !strings.HasPrefix(output, want) {
				t.Errorf("standard output %q, want %q", output, want)
			}
			if strings.Contains(output, token) || strings.Contains(output, "hunter2") {
				t.Error("the token is in the message, which clients print")
			}
			if strings.ContainsAny(strings.TrimSuffix(output, "\n"), "\n`") {
				t.Errorf("standard output %q is more than a line, or has backquotes", output)
			}
		})
	}
}

// agentMain and circleciMain are the programs of two CI systems. Their last
// argument may also name a fault.
func agentMain() {
	claims := cmp.Or(os.Getenv("BUILDKITE_OIDC_TOKEN_CLAIMS"), "organization_id,pipeline_id")
	agent([]string{"oidc", "request-token", "--claim", claims, "--audience"}, func(audience string) string { return audience })
}

func circleciMain() {
	agent([]string{"run", "oidc", "get", "--claims"}, func(audience string) string { return fmt.Sprintf(`{"aud":%q}`, audience) })
}

func agent(arguments []string, last func(audience string) string) {
	args := os.Args[1:]
	for fault, act := range map[string]func(){
		"fail": func() { fmt.Fprintln(os.Stderr, "SECRET-OF-THE-AGENT"); os.Exit(3) },
		"long": func() { fmt.Print(strings.Repeat("x", maxAnswerSize+1)) },
		"hang": func() { time.Sleep(time.Hour) },
	} {
		if slices.Equal(args, append(slices.Clone(arguments), last(fault))) {
			act()
			return
		}
	}
	token, err := os.ReadFile(os.Getenv("AGENT_TOKEN"))
	if err != nil || !slices.Equal(args, append(slices.Clone(arguments), last(os.Getenv("REGISTRY")))) {
		fmt.Fprintln(os.Stderr, "unexpected:", args, err)
		os.Exit(1)
	}
	fmt.Println(string(token))
}

func TestCommandFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, mark, audience string
		timeout              time.Duration
		want                 string
	}{
		{"Buildkite fails", "BUILDKITE", "fail", time.Minute, "exit status 3; to see why, run in the job: buildkite-agent oidc request-token --claim organization_id,pipeline_id --audience fail >/dev/null"},
		{"Buildkite answers too much", "BUILDKITE", "long", time.Minute, "answered more than 32 KiB"},
		{"Buildkite does not answer", "BUILDKITE", "hang", 100 * time.Millisecond, "no answer within 30s"},
		{"CircleCI fails", "CIRCLECI", "fail", time.Minute, `exit status 3; to see why, run in the job: circleci run oidc get --claims {"aud":"fail"} >/dev/null`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j, found := jobOf(environment{test.mark: "true"}.get)
			if !found {
				t.Fatal("no job")
			}
			ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
			defer cancel()
			token, err := j.token(ctx, test.audience)
			if token != "" || err == nil || err.Error() != test.want {
				t.Errorf("token %.40q, error %v, want %s", token, err, test.want)
			}
		})
	}

	_, err := command(t.Name(), func(string) []string { return nil }).credential(registry, time.Now())
	if want := "TestCommandFaults: not found in PATH, and it gets this CI job its token; " +
		`or put a token for "registry.example.com" into PULLPASS_ID_TOKEN` + orInstead; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
