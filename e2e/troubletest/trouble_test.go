package troubletest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// symptom is a section of the page.
type symptom struct {
	heading string
	// fault makes it. It may be undone by a cleanup.
	fault func(*testing.T, *site)
	// programs are those whose text the page must have.
	programs []string
}

func symptoms() []symptom {
	two := []string{"docker", "crane"}
	four := []string{"docker", "crane", "skopeo", "ctr"}
	five := []string{"docker", "crane", "skopeo", "ctr", "kubectl"}
	artifacts := []string{"helm", "oras"}
	none := func(*testing.T, *site) {}
	return []symptom{
		{"No credential", func(t *testing.T, s *site) { s.login(t, "") }, slices.Concat(five, artifacts, []string{"podman"})},
		{"The credential helper has no token", noJobToken, slices.Concat(two, artifacts, []string{"skopeo"})},
		{"The token is for another audience", func(t *testing.T, s *site) { s.login(t, s.token(t, otherAudience, "team-a")) }, slices.Concat(five, artifacts)},
		{"No rule grants it", none, slices.Concat(five, artifacts, []string{"podman"})},
		{"The image does not exist", none, slices.Concat(five, artifacts)},
		{"A push is refused", none, slices.Concat(two, artifacts, []string{"skopeo"})},
		{"The token has expired", expired, slices.Concat(four, artifacts)},
		{"The token is not valid yet", notYetValid, two},
		{"The token is not bound to a pod", notBound, two},
		{"The token names no node", noNode, two},
		{"The caller is not the node", notTheNode, []string{"docker", "crane", "ctr", "kubectl"}},
		{"Too many requests", limited, slices.Concat(four, artifacts)},
		{"The registry does not trust the key", otherKey, slices.Concat(five, artifacts)},
		{"The service has another name", otherService, five},
		{"The certificate of the token endpoint is not trusted", otherCA, five},
		{"The token endpoint cannot be reached", noEndpoint, five},
		{"The name of the token endpoint is unknown", noName, five},
		{"The keys of the issuer are missing", noIssuer, four},
		{"The registry behind the gateway is down", noUpstream, four},
		{"The gateway has no such upstream", none, four},
		{"The kubelet's log", none, []string{"journalctl"}},
	}
}

// TestPage makes each symptom of the page, and has each command of the page print what the page shows.
func TestPage(t *testing.T) {
	page := readPage(t)
	checkIndex(t, page)
	s := startSite(t)
	s.startPrograms(t)
	var tested []string
	for _, symptom := range symptoms() {
		tested = append(tested, symptom.heading)
		t.Run(symptom.heading, func(t *testing.T) {
			s.login(t, s.token(t, registryName, "team-a"))
			symptom.fault(t, s)
			var seen []string
			for _, shown := range page[symptom.heading] {
				if strings.HasSuffix(shown.command, "# on a node with CRI-O") {
					continue // criotest makes it
				}
				program, _, _ := strings.Cut(shown.command, " ")
				seen = append(seen, program)
				var output string
				if strings.HasPrefix(shown.command, "kubectl describe pod ") {
					output = s.describe(t, shown, cmp.Or(podImages()[symptom.heading], registryName+"/team-a/web:v1"))
				} else {
					output = s.run(t, shown.command)
				}
				t.Logf("$ %s\n%s", shown.command, output)
				if len(shown.lines) == 0 {
					t.Errorf("the page does not show what this prints: %s", shown.command)
				}
				if line := shown.missing(output); line != "" {
					t.Errorf("%s does not print %q", shown.command, line)
				}
			}
			for _, program := range symptom.programs {
				if !slices.Contains(seen, program) {
					t.Errorf("the page does not show what %s prints", program)
				}
			}
		})
	}
	for _, heading := range slices.Sorted(maps.Keys(page)) {
		if !slices.Contains(tested, heading) {
			t.Errorf("no test makes what the page shows under %q", heading)
		}
	}
}

// startPrograms puts the programs where a person's shell finds them.
func (s *site) startPrograms(t *testing.T) {
	t.Helper()
	bin := filepath.Join(s.dir, "bin")
	testenv.Must(t, os.Mkdir(bin, 0o755))
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(s.dir, "images"), filepath.Join(s.dir, "run"))
	testenv.Must(t, os.WriteFile("/etc/containers/storage.conf", []byte(storage), 0o644))
	testenv.Must(t, os.WriteFile(filepath.Join(s.dir, "Dockerfile"), []byte("FROM "+registryName+"/team-a/web:v1\n"), 0o644))
	for _, program := range []func(testing.TB) string{programs.Crane, programs.Skopeo, programs.Podman, programs.Docker, programs.Helm, programs.Oras, programs.CredentialHelper, programs.Kubectl} {
		path := program(t)
		testenv.Must(t, os.Symlink(path, filepath.Join(bin, filepath.Base(path))))
	}
	chart := filepath.Join(s.dir, "chart")
	testenv.Must(t, os.Mkdir(chart, 0o755))
	testenv.WriteFile(t, filepath.Join(chart, "Chart.yaml"), "apiVersion: v2\nname: web\nversion: 1.0.0\n")
	testenv.WriteFile(t, filepath.Join(s.dir, "README"), "of an artifact\n")
	s.startEngine(t)
	s.kubeconfig = s.cluster.AdminKubeconfig(t)
	s.login(t, s.token(t, registryName, "team-a"))
	s.run(t, "docker pull "+registryName+"/team-a/web:v1; crane pull "+registryName+"/team-a/web:v1 web.tar; helm package chart") // something to push
}
