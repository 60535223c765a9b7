package composetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const user = "65532:65532"

// jwt is how any token begins: header and claims, which are JSON objects.
var jwt = regexp.MustCompile(`eyJ[\w-]{9,}\.eyJ[\w-]{9,}`)

// TestDocker does what docs/start/docker.md says, and looks at what a reader does not see.
func TestDocker(t *testing.T) {
	begin := time.Now()
	startEngine(t)
	checkout := copyCheckout(t)
	importImages(t, checkout)
	m := openManual(t, checkout)
	t.Logf("%v: the engine has what it cannot pull", since(begin))

	m.do(t, "docker compose up", 0)
	t.Logf("%v: images are built, and all runs", since(begin))
	composed := savedImage(t, "pullpass:dev")
	testConfinement(t)
	testRegistryConfig(t, checkout)
	testenv.Await(t, startLimit, "the registry and the balancer answer", func() bool {
		return exec.CommandContext(t.Context(), "curl", "--silent", "--insecure", "--fail-early",
			"https://localhost:5443/v2/", "https://localhost:5444/token").Run() == nil
	})

	m.do(t, "docker push", 0, "Login Succeeded", "v1: digest: sha256:")
	credentials := []string{loggedIn(t)}
	m.do(t, "docker pull", 0, "Login Succeeded", "localhost:5443/team-a/web:v1")
	credentials = append(credentials, loggedIn(t))
	m.do(t, "docker pull localhost:5443/team-b/app:v1", 1, "pull access denied")
	const reason = "no rule for demo/team-a/web allows pull on team-b/app"
	m.do(t, "/pullpass explain", 0, `"repository:team-b/app:pull"`, reason)
	m.do(t, "/pullpass revoke", 1, "revoked --service-account demo/team-a/web", `denied: revoked by an operator: "found in a log"`)
	testenv.Await(t, startLimit, "the second replica has refused something", func() bool {
		return len(audit(t, checkout, "pullpass-2", `"reason":"revoked"`)) > 0
	})
	testenv.Await(t, startLimit, "the balancer finds that the replica is gone", func() bool {
		said := compose(t, checkout, "logs", "balancer")
		return strings.LastIndex(said, "pullpass-1 is DOWN") > strings.LastIndex(said, "pullpass-1 is UP")
	})
	m.do(t, "/pullpass revoke undo", 0, "no longer revoked", "localhost:5443/team-a/web:v1")
	testLimit(t, m, checkout)
	testNoTokens(t, checkout, append(credentials, m.variable(t, "password")))

	m.do(t, "docker compose down", 0)
	for _, list := range [][]string{{"ps", "--all", "--quiet"}, {"volume", "ls", "--quiet"}, {"network", "ls", "--quiet", "--filter", "type=custom"}} {
		if left := run(t, "docker", list...); left != "" {
			t.Errorf("docker %s: %s", strings.Join(list, " "), left)
		}
	}
	t.Logf("%v: all that docker-compose.yaml runs was tried", since(begin))

	m.do(t, "docker build", 0)
	built := savedImage(t, "pullpass:dev")
	printed := m.do(t, "make image", 0, "pullpass:dev sha256:", "Loaded image: pullpass:dev", "pullpass devel")
	packed := savedImage(t, "pullpass:dev")
	packed.compare(t, "docker build", built)
	packed.compare(t, "docker compose", composed)
	m.end(t)
	t.Logf("%v: the image was made in each way", since(begin))

	testReadArchive(t, checkout)
	testOtherArchitecture(t, checkout)
	t.Logf("%v in all; %s", since(begin), printed[strings.LastIndex(printed, "bin/pullpass-image.tar: "):])
}

func compose(t *testing.T, checkout string, args ...string) string {
	t.Helper()
	return run(t, "docker", append([]string{"compose", "--file", filepath.Join(checkout, "docker-compose.yaml")}, args...)...)
}

func since(begin time.Time) time.Duration { return time.Since(begin).Round(time.Second / 10) }

// container is the part of docker inspect that is of interest.
type container struct {
	Name       string
	Config     struct{ User string }
	HostConfig struct {
		ReadonlyRootfs, Privileged bool
		CapDrop, CapAdd            []string
		SecurityOpt                []string
		PortBindings               map[string][]struct{ HostIP string }
	}
	NetworkSettings struct{ Networks map[string]any }
}

// testConfinement looks at the rights of every container, the ended ones as well.
func testConfinement(t *testing.T) {
	t.Helper()
	var containers []container
	testenv.Must(t, json.Unmarshal([]byte(run(t, "docker", append([]string{"inspect"}, strings.Fields(run(t, "docker", "ps", "--all", "--quiet"))...)...)), &containers))
	var stateful []string
	for _, c := range containers {
		h := c.HostConfig
		if c.Config.User != user || !h.ReadonlyRootfs || h.Privileged || !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0 ||
			!slices.Contains(h.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: user %s, %+v", c.Name, c.Config.User, h)
		}
		for port, bindings := range h.PortBindings {
			for _, b := range bindings {
				if b.HostIP != "127.0.0.1" {
					t.Errorf("%s: port %s is open on %q", c.Name, port, b.HostIP)
				}
			}
		}
		if _, ok := c.NetworkSettings.Networks["pullpass_state"]; ok {
			stateful = append(stateful, c.Name)
		} else if strings.Contains(c.Name, "redis") {
			t.Errorf("%s is on the networks %v", c.Name, c.NetworkSettings.Networks)
		}
	}
	slices.Sort(stateful)
	if want := []string{"/pullpass-pullpass-1-1", "/pullpass-pullpass-2-1", "/pullpass-redis-1"}; !slices.Equal(stateful, want) {
		t.Errorf("Redis is reached by %q, want %q", stateful, want)
	}
	if len(containers) != 9 {
		t.Errorf("%d containers, want 9", len(containers))
	}
}

// testRegistryConfig compares the registry's configuration with what Pullpass prints for it.
func testRegistryConfig(t *testing.T, checkout string) {
	t.Helper()
	config := testenv.ReadFile(t, filepath.Join(checkout, "deploy", "compose", "registry.yaml"))
	var printed strings.Builder
	for line := range strings.Lines(compose(t, checkout, "logs", "--no-log-prefix", "registry-trust")) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimRight(line, " \n"); line != "" {
			printed.WriteString(line + "\n")
		}
	}
	if !strings.Contains(printed.String(), "auth:") || !strings.Contains(config, printed.String()) {
		t.Errorf("deploy/compose/registry.yaml has not what pullpass registry-config prints:\n%s", printed.String())
	}
}

// testLimit asks both replicas, none of them as often as one alone would allow.
func testLimit(t *testing.T, m *manual, checkout string) {
	t.Helper()
	testenv.Await(t, startLimit, "the balancer takes the replica back", func() bool {
		said := compose(t, checkout, "logs", "balancer")
		return strings.LastIndex(said, "pullpass-1 is UP") > strings.LastIndex(said, "pullpass-1 is DOWN")
	})
	printed := m.do(t, "curl", 0)
	counts := map[string]int{}
	for line := range strings.Lines(printed) {
		if words := strings.Fields(line); len(words) == 2 {
			counts[words[1]], _ = strconv.Atoi(words[0]) // any other text counts as 0
		}
	}
	if counts["200"] == 0 || counts["429"] == 0 || counts["200"]+counts["429"] != 60 {
		t.Errorf("60 requests were answered with %v:\n%s", counts, printed)
	}
	for _, replica := range []string{"pullpass-1", "pullpass-2"} {
		if asked := len(audit(t, checkout, replica, `"client":"curl/`)); asked == 0 || asked > 40 {
			t.Errorf("%s was asked %d times, so that it says nothing about a common limit", replica, asked)
		}
	}
}

// audit returns the audit lines of a replica that hold a text.
func audit(t *testing.T, checkout, replica, text string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(compose(t, checkout, "logs", "--no-log-prefix", replica)) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// loggedIn is the token that "docker login" has kept.
func loggedIn(t *testing.T) string {
	t.Helper()
	content := testenv.ReadFile(t, filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"))
	var config struct {
		Auths map[string]struct{ Auth []byte }
	}
	testenv.Must(t, json.Unmarshal([]byte(content), &config))
	_, token, _ := strings.Cut(string(config.Auths["localhost:5443"].Auth), ":")
	return token
}

// testNoTokens looks for pieces of the credentials, and for keys, in what the containers wrote. The tokens that the registry got are not
// known here: for these, it looks for anything that is a token.
func testNoTokens(t *testing.T, checkout string, credentials []string) {
	t.Helper()
	for _, credential := range credentials {
		if !jwt.MatchString(credential) {
			t.Fatalf("a credential that is not a token: %.20q", credential)
		}
	}
	for line := range strings.Lines(compose(t, checkout, "logs")) {
		if piece := secrets.Found([]byte(line), credentials...); piece != "" {
			t.Errorf("a log holds %q, a piece of a credential: %.60s…", piece, line)
		}
		if jwt.MatchString(line) || strings.Contains(line, "PRIVATE KEY") {
			t.Errorf("a log holds a token or a key: %.60s…", line)
		}
	}
}
