package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

// jobsPolicy lets one repository's jobs push below its name at the upstream.
const jobsPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: web
  subjects: [{identities: [github], claims: {repository_id: ["42"]}}]
  services: [gateway.example.com]
  allow: [{repositories: ["users.example/team-a/**"], actions: [pull, push]}]
`

// TestGatewayPushCredential has a CI job push through the gateway with the output of its credential helper: a push credential, which opens the
// repositories that the job has listed, at a registry that knows neither the job nor Pullpass.
func TestGatewayPushCredential(t *testing.T) {
	t.Parallel()
	ca := certs.NewCA(t, "registry-ca")
	gitHub, behind := issuer.StartGitHub(t, ca), upstream.StartBasic(t, ca, programs.DockerRegistry(t))
	proxy := pullpass.Start(t, ca, pullpass.Config{
		Identities: []pullpass.Identity{{
			Name: "github", Issuer: gitHub.URL, Profile: "github", Audiences: []string{gatewayService},
			Require: map[string][]string{"repository_owner_id": {"1234"}}, Discovery: pullpass.Discovery{CAFile: ca.File},
		}},
		Policy: jobsPolicy, Service: gatewayService,
		Upstreams: []pullpass.Upstream{behind.Setting(usersUpstream, "pull", "push")},
	})
	host := strings.TrimPrefix(proxy.GatewayURL, "https://")

	helper := exec.CommandContext(t.Context(), programs.CredentialHelper(t), "get")
	helper.Stdin = strings.NewReader(host)
	helper.Env = append(os.Environ(), "GITLAB_CI=", "PULLPASS_ID_TOKEN=", "PULLPASS_TOKEN_FILE=", "SSL_CERT_FILE="+ca.File, "PULLPASS_AUDIENCE="+gatewayService,
		"PULLPASS_REGISTRIES="+host, "PULLPASS_PUSH="+usersUpstream+"/team-a/web")
	for name, value := range gitHub.Environment(issuer.Job{Repository: "web", RepositoryID: 42, Branch: "main", Protected: true, Run: 1001}) {
		helper.Env = append(helper.Env, name+"="+value)
	}
	text, err := helper.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	var answer struct{ Secret string }
	if err := json.Unmarshal(text, &answer); err != nil || strings.HasPrefix(answer.Secret, "eyJ") {
		t.Fatalf("no push credential: %v", err)
	}
	proxy.NeverLog(answer.Secret)

	s := newSession(t, host, ca, answer.Secret)
	image := newImage(t)
	testenv.Must(t, ggcrPush(t, s, basicAuth(s), usersUpstream+"/team-a/web", image))
	digest, err := image.Digest()
	testenv.Must(t, err)
	if got := behind.Registry.Digest(t, "team-a/web", tag); got != digest.String() {
		t.Errorf("the upstream has %q, want %s", got, digest)
	}
	// The policy would allow it, and the job has not listed it.
	if err := ggcrPush(t, s, basicAuth(s), usersUpstream+"/team-a/other", image); err == nil || behind.Registry.Digest(t, "team-a/other", tag) != "" {
		t.Errorf("what was not listed: %v", err)
	}

	events := proxy.Audit(t)
	made := slices.IndexFunc(events, func(e pullpass.Event) bool { return e.PushCredential != "" })
	if made < 0 {
		t.Fatalf("no push credential in %+v", events)
	}
	id := events[made].PushCredential
	stored := func(e pullpass.Event) bool {
		return e.Gateway != nil && e.Gateway.Method == "PUT" && e.Status == 201 && e.PushCredential == id && slices.Equal(e.Requested, []string{fmt.Sprintf("repository:%s/team-a/web:pull,push", usersUpstream)})
	}
	proxy.AwaitAudit(t, 0, id+" pushed", stored)
}
