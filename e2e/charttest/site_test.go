package charttest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	pollPeriod = 50 * time.Millisecond // short beside what a kubelet does between two polls
	waitLimit  = 5 * time.Minute       // a kubelet updates a volume within 90 seconds, on a machine that is not busy
)

// site is a cluster without Pullpass, but with the definitions that operators publish.
type site struct {
	*cluster.Cluster
	kubeconfig  string
	since       time.Time // of the last line of the table
	begin       time.Time
	table       strings.Builder
	environment []string // of Helm and kubectl
}

func startSite(t testing.TB) *site {
	t.Helper()
	key := certs.NewRSAKey(t)
	s := &site{begin: time.Now(), since: time.Now(), Cluster: cluster.Start(t, key)}
	s.StartControllers(t, key, "deployment-controller", "replicaset-controller", "job-controller", "endpointslice-controller",
		"disruption-controller", "garbage-collector-controller", "node-lifecycle-controller") // without the last, nodes stay tainted
	s.StartScheduler(t)
	s.ServePods(t)
	s.kubeconfig = s.AdminKubeconfig(t)
	// In commands of the documents.
	const dir = "/usr/local/bin/"
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	for name, program := range map[string]string{"kubectl": programs.Kubectl(t), "helm": programs.Helm(t)} {
		testenv.Must(t, os.Symlink(program, dir+name))
		t.Cleanup(func() { testenv.Must(t, os.Remove(dir+name)) })
	}
	s.environment = append(programs.HelmEnvironment(t), "KUBECONFIG="+s.kubeconfig)
	args := []string{"kubectl", "create"}
	for _, file := range programs.CustomResources(t) {
		args = append(args, "--filename="+file)
	}
	s.run(t, args...)
	s.run(t, "kubectl", "wait", "--for=condition=Established", "--timeout="+waitLimit.String(), "customresourcedefinitions", "--all")
	s.saw("the control plane runs", "")
	return s
}

// run runs a command of an administrator and returns what it printed.
func (s *site) run(t testing.TB, args ...string) string {
	t.Helper()
	output := testenv.Value(s.try(t, args...))(t)
	return output
}

// input is run for a command that reads standard input.
func (s *site) input(t testing.TB, input string, args ...string) string {
	t.Helper()
	output := testenv.Value(s.execute(t, input, args...))(t)
	return output
}

// try is run for a command that may fail. The error holds what it wrote to standard error.
func (s *site) try(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return s.execute(t, "", args...)
}

func (s *site) execute(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Stdin = s.environment, strings.NewReader(input)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), err, &stderr, output)
	}
	return string(output), nil
}

// saw adds a line to the table, with the time since the last.
func (s *site) saw(what, format string, args ...any) {
	fmt.Fprintf(&s.table, "%-58s %6.1f s  %s\n", what, time.Since(s.since).Seconds(), fmt.Sprintf(format, args...))
	s.since = time.Now()
}
