package composetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	ciRegistry = "registry.example.com" // at port 443: named as docs/how-to/ci.md does
	// A build lasts longer than its token: the token is short here, where GitHub's is five minutes.
	shortLife = 5 * time.Second
)

// The jobs. The policy of docs/how-to/ci.md is about the first one.
var (
	webJob    = issuer.Job{Repository: "web", RepositoryID: 42, Branch: "main", Protected: true, Run: 1001}
	webAgain  = issuer.Job{Repository: "web", RepositoryID: 42, Branch: "main", Protected: true, Run: 1002}
	webBranch = issuer.Job{Repository: "web", RepositoryID: 42, Branch: "main", Run: 1003}
	baseJob   = issuer.Job{Repository: "base", RepositoryID: 7, Branch: "main", Protected: true, Run: 2001}
)

// basePolicy is a condition beside the claims of the documented policy.
const basePolicy = `- name: base
  subjects: [{identities: [github], claims: {repository_id: ["7"], ref: [refs/heads/main]}, condition: 'claims.ref_protected == "true" && claims.event_name == "push"'}]
  services: [registry.example.com]
  allow: [{repositories: [team-a/base], actions: [pull, push]}]
- name: base-for-all
  subjects: [{identities: [github], condition: 'claims.event_name in ["push", "workflow_dispatch"]'}]
  services: [registry.example.com]
  allow: [{repositories: [team-a/base], actions: [pull]}]
`

// ci is a registry to which jobs push.
type ci struct {
	gitHub   *issuer.GitHub
	proxy    *pullpass.Proxy
	registry *registry.Registry
	clients  []ciClient
	// Programs.
	helper, crane, runc, buildkitd string
	plugins                        string // of the docker client
}

// TestBuildsPush has jobs push as docs/how-to/ci.md says, when the token that they began with has ended.
func TestBuildsPush(t *testing.T) {
	s := startCI(t)
	s.job(t, baseJob, "")
	importImage(t, ciRegistry+"/team-a/base:v1", (*rootFS).shell, "ENV PATH=/bin")
	run(t, "docker", "push", ciRegistry+"/team-a/base:v1")

	t.Run("clients", s.testClients)
	t.Run("BuildKit", s.testBuildKit)
	t.Run("others", s.testOthers)
	t.Run("revoked", s.testRevoked)
}

func startCI(t *testing.T) *ci {
	t.Helper()
	ca := certs.NewCA(t, "registry-ca")
	hosts := testenv.Value(os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0))(t)
	testenv.Value(fmt.Fprintf(hosts, "\n127.0.0.1 %s\n", ciRegistry))(t)
	testenv.Must(t, hosts.Close())

	s := &ci{
		gitHub: issuer.StartGitHub(t, ca), clients: ciClients(t),
		helper: programs.CredentialHelper(t), crane: programs.Crane(t), runc: programs.Runc(t), buildkitd: programs.Buildkitd(t),
	}
	s.proxy = pullpass.Start(t, ca, pullpass.Config{
		Identities: []pullpass.Identity{{
			Name: "github", Issuer: s.gitHub.URL, Profile: "github", Audiences: []string{ciRegistry},
			Require: map[string][]string{"repository_owner_id": {"1234"}}, Discovery: pullpass.Discovery{CAFile: ca.File},
		}},
		Policy: documentedPolicy(t) + basePolicy, Service: ciRegistry, Names: []string{ciRegistry},
		State: pullpass.State{Redis: pullpass.Redis{Addresses: []string{redis.Start(t).Address}}},
	})
	s.registry = registry.Start(t, ca, registry.Config{
		Program: programs.Distribution(t), Address: "127.0.0.1:443", Names: []string{ciRegistry},
		// Of the same name: oras-go takes no realm at a loopback address otherwise.
		Realm:   strings.Replace(s.proxy.URL, "localhost", ciRegistry, 1) + "/token",
		Service: ciRegistry, Issuer: pullpass.Issuer, RootCertBundle: s.proxy.Certificates(t),
	})
	t.Setenv("SSL_CERT_FILE", ca.File) // of the engine, the helper and all clients
	startEngine(t)
	s.plugins = filepath.Join(os.Getenv("DOCKER_CONFIG"), "cli-plugins")
	t.Setenv("PATH", filepath.Dir(s.helper)+":"+os.Getenv("PATH"))
	return s
}

// documentedPolicy is the first one of docs/how-to/ci.md.
func documentedPolicy(t *testing.T) string {
	t.Helper()
	_, policy, found := strings.Cut(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/ci.md")), "```yaml\n# policy.yaml\n")
	policy, _, ended := strings.Cut(policy, "```")
	if !found || !ended {
		t.Fatal("docs/how-to/ci.md shows no policy")
	}
	return policy
}

// job makes the rest of the test a step of the job, after the action of docs/how-to/ci.md.
func (s *ci) job(t *testing.T, job issuer.Job, push string) {
	t.Helper()
	for _, name := range []string{"GITLAB_CI", "PULLPASS_ID_TOKEN", "PULLPASS_TOKEN_FILE", "PULLPASS_AUDIENCE"} {
		t.Setenv(name, "") // of the job that runs this test
	}
	for name, value := range s.gitHub.Environment(job) {
		t.Setenv(name, value)
	}
	t.Setenv("PULLPASS_REGISTRIES", ciRegistry)
	t.Setenv("PULLPASS_PUSH", push)
	s.home(t, "{}")
	run(t, s.helper, "configure")
}

// home is where clients find their configuration.
func (s *ci) home(t *testing.T, config string) {
	t.Helper()
	home, err := os.MkdirTemp("/run", "home-") // podman refuses long names
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.Must(t, os.RemoveAll(home)) })
	docker := filepath.Join(home, ".docker")
	testenv.Must(t, os.Mkdir(docker, 0o700))
	testenv.WriteFile(t, filepath.Join(docker, "config.json"), config)
	testenv.Must(t, os.Symlink(s.plugins, filepath.Join(docker, "cli-plugins")))
	t.Setenv("HOME", home)
	t.Setenv("DOCKER_CONFIG", docker)
}

// password is what the helper answers.
func (s *ci) password(t *testing.T) string {
	t.Helper()
	var answer struct{ Username, Secret string }
	testenv.Must(t, json.Unmarshal([]byte(pipe(t, strings.NewReader(ciRegistry), s.helper, "get")), &answer))
	s.proxy.NeverLog(answer.Secret)
	return answer.Secret
}

// login keeps a password for all clients, as "docker login" does.
func (s *ci) login(t *testing.T, password string) {
	t.Helper()
	auths := testenv.Value(json.Marshal(map[string]any{"auths": map[string]any{ciRegistry: map[string][]byte{"auth": []byte("serviceaccount:" + password)}}}))(t)
	s.home(t, string(auths))
}

func expired(e pullpass.Event) bool { return e.Status == 401 && e.Reason == "token_expired" }

func pushedByCredential(e pullpass.Event) bool {
	return e.Status == 200 && e.PushCredential != "" && e.PushCredential != e.IssuedID && slices.Contains(e.Granted, "repository:team-a/web:pull,push")
}

// startBuildKit runs a BuildKit, which becomes the builder of the job.
func (s *ci) startBuildKit(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	address, config := "unix://"+filepath.Join(dir, "socket"), filepath.Join(dir, "buildkitd.toml")
	testenv.Must(t, os.WriteFile(config, fmt.Appendf(nil, "[worker.oci]\nbinary = %q\nsnapshotter = \"native\"\ndefaultCgroupParent = %q\n[worker.containerd]\nenabled = false\n",
		s.runc, filepath.Join("/", isolate.Cgroup(), "buildkit")), 0o600))
	buildkit := process.Start(t, exec.Command(s.buildkitd, "--config", config, "--addr", address, "--root", filepath.Join(dir, "data")))
	t.Cleanup(func() { buildkit.Kill(t) }) // SIGTERM is an error to it
	run(t, "docker", "buildx", "create", "--use", "--driver", "remote", address)
	buildkit.Await(t, startLimit, func(ctx context.Context) error {
		return exec.CommandContext(ctx, "docker", "buildx", "inspect", "--timeout", "5s").Run()
	})
}

// testBuildKit builds for longer than the job's token lives. BuildKit asks the helper once, when it pulls.
func (s *ci) testBuildKit(t *testing.T) {
	s.job(t, webJob, "")
	s.startBuildKit(t)
	dir := t.TempDir()
	dockerfile := fmt.Sprintf("FROM %s/team-a/base:v1\nRUN busybox sleep %d\n", ciRegistry, shortLife/time.Second+1)
	testenv.WriteFile(t, filepath.Join(dir, "Dockerfile"), dockerfile)
	build := func(tag string) error {
		return try(t, "docker", "buildx", "build", "--pull", "--no-cache", "--network", "none", "--push", "--tag", ciRegistry+"/team-a/web:"+tag, dir)
	}
	s.gitHub.Live(t, shortLife)

	before := len(s.proxy.Audit(t))
	if err := build("token"); err == nil || !strings.Contains(err.Error(), "the token expired at") || s.registry.Digest(t, "team-a/web", "token") != "" {
		t.Errorf("with the token: %v", err)
	}
	s.proxy.AwaitAudit(t, before, "the token has expired", expired)

	before = len(s.proxy.Audit(t))
	t.Setenv("PULLPASS_PUSH", "team-a/web team-a/base:pull")
	if err := build("credential"); err != nil || s.registry.Digest(t, "team-a/web", "credential") == "" {
		t.Errorf("with a push credential: %v", err)
	}
	s.proxy.AwaitAudit(t, before, "a push credential pushed", pushedByCredential)
	tokens := map[string]bool{}
	for _, e := range s.proxy.Audit(t)[before:] {
		if e.Status == 200 { // a line about the build before it may come late
			tokens[e.CredentialID] = true
		}
	}
	if len(tokens) != 1 {
		t.Errorf("the build used the tokens %v: BuildKit did not keep the helper's answer", tokens)
	}
}

// testOthers pushes as jobs that may not.
func (s *ci) testOthers(t *testing.T) {
	s.job(t, baseJob, "")
	stolen := ciRegistry + "/team-a/web:stolen"
	run(t, "docker", "tag", ciRegistry+"/team-a/base:v1", stolen)
	notDone(t, "denied", "push", stolen)
	t.Setenv("PULLPASS_PUSH", "team-a/web")
	notDone(t, "answered 403: nothing of what was asked for is granted", "push", stolen)
	if s.registry.Digest(t, "team-a/web", "stolen") != "" {
		t.Error("another repository's job pushed")
	}

	s.job(t, webBranch, "team-a/web team-a/base:pull")
	cmd := exec.CommandContext(t.Context(), s.helper, "get")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(ciRegistry), &stderr
	_, err := cmd.Output()
	if err != nil || !strings.Contains(stderr.String(), "PULLPASS_PUSH: not granted: team-a/web:pull team-a/web:push") {
		t.Errorf("from a branch that is not protected: %v, %s", err, &stderr)
	}
	notDone(t, "denied", "push", stolen)
	run(t, "docker", "pull", ciRegistry+"/team-a/base:v1")
}

// testRevoked ends a run whose job is in the middle of its work. Another run goes on.
func (s *ci) testRevoked(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image.tar")
	run(t, "docker", "save", "--output", image, ciRegistry+"/team-a/base:v1")
	push := func(t *testing.T, tag string) error {
		return try(t, s.crane, "push", image, ciRegistry+"/team-a/web:"+tag)
	}
	s.job(t, webAgain, "team-a/web")
	other := s.password(t)
	s.job(t, webJob, "team-a/web")
	s.login(t, s.password(t))
	testenv.Must(t, push(t, "running"))

	s.proxy.Command(t, "revoke", "--run", "github/1001", "--reason", "runs unreviewed code")
	testenv.Await(t, startLimit, "the run is revoked", func() bool { return push(t, "revoked") != nil })
	if err := push(t, "revoked"); err == nil || !strings.Contains(err.Error(), "runs unreviewed code") {
		t.Errorf("a push credential of the run: %v", err)
	}
	s.job(t, webJob, "team-a/web")
	notDone(t, "runs unreviewed code", "push", ciRegistry+"/team-a/base:v1")
	s.login(t, other)
	testenv.Must(t, push(t, "other"))
}

// try runs a program. The error holds all that it printed.
func try(t *testing.T, program string, args ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, output)
	}
	return nil
}
