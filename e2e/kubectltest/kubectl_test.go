package kubectltest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	service = "registry.example.com"
	policy  = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
`
	// namespace is that of a team: a developer who may read pods, events and RepositoryAccess objects in it, and nothing else.
	namespace = `
{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: team-a}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: developer, namespace: team-a}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: developer, namespace: team-a}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [""], resources: [events], verbs: [list]}
- {apiGroups: [pullpass.dev], resources: [repositoryaccesses], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: developer, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: developer}
subjects: [{kind: ServiceAccount, name: developer, namespace: team-a}]
`
	request = `
apiVersion: pullpass.dev/v1beta1
kind: RepositoryAccess
metadata: {name: web, namespace: team-a}
spec: {serviceAccounts: [web], repositories: [shared/base], actions: [pull]}
`
)

// developer runs kubectl with a kubeconfig.
type developer struct{ kubeconfig string }

func (d developer) kubectl(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Kubectl(t), append(args, "--kubeconfig="+d.kubeconfig)...)
	cmd.Env = []string{"PATH=" + filepath.Dir(programs.KubectlPlugin(t)), "HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	}
	testenv.Must(t, err)
	return 0, string(out)
}

// A developer who may read pods, events and RepositoryAccess objects of one namespace sees the reason of a refused pull, and is told
// which rights the rest needs. The command that checks such a right agrees.
func TestWhy(t *testing.T) {
	t.Parallel()
	c := cluster.StartWith(t, certs.NewRSAKey(t), cluster.Options{})
	c.CreateNode(t, "node1", nil)
	access := c.ApplyRBAC(t)
	c.Kubectl(t, "", "apply", "--server-side", "-f", filepath.Join(programs.Checkout(t), "deploy/helm/pullpass/files/crds.yaml"))
	c.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/repositoryaccesses.pullpass.dev")
	c.Kubectl(t, namespace, "apply", "-f", "-")
	c.Kubectl(t, request, "apply", "-f", "-")
	proxy := pullpass.Start(t, certs.NewCA(t, "pullpass-ca"), pullpass.Config{Service: service, Policy: policy, Clusters: []pullpass.Cluster{{
		Name: "prod-eu", Issuer: c.Issuer, Audiences: []string{service},
		Discovery:  pullpass.Discovery{CAFile: c.CA.File, TokenFile: access.TokenFile},
		Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
	}}})
	testenv.Await(t, time.Minute, "Pullpass is ready", func() bool { ready, _ := proxy.Ready(t); return ready })

	pod := c.CreatePod(t, "team-a", "web-0", "web", "node1")
	answer := proxy.Host(t, pullpass.From{}).Ask(t, service, c.Token(t, cluster.PodToken(pod, service)), "repository:shared/base:pull")
	if answer.Audit.Reason != "scope_not_granted" {
		t.Fatalf("Pullpass: %d, audit %+v", answer.Status, answer.Audit)
	}
	testenv.Await(t, time.Minute, "the pod has an event", func() bool { return len(c.Events(t, pod)) > 0 })

	d := developer{filepath.Join(t.TempDir(), "kubeconfig")}
	c.TokenKubeconfig(t, d.kubeconfig, c.Token(t, cluster.TokenRequest{Namespace: "team-a", ServiceAccount: "developer", Lifetime: time.Hour}))
	code, output := d.kubectl(t, "pullpass", "why", "web-0", "-n", "team-a")
	t.Logf("exit code %d:\n%s", code, output)
	const rest = "kubectl auth can-i list pods -n pullpass --kubeconfig="
	for _, want := range []string{
		"pod          team-a/web-0, on node node1\naccount      web\n",
		"Pullpass refused repository:shared/base:pull at registry.example.com: no rule for prod-eu/team-a/web allows pull on shared/base",
		"Remedy: ",
		"request      RepositoryAccess web: no status",
		"not known    annotations: you may not get serviceaccounts in namespace team-a; ",
		"not known    explanation: you may not list pods in namespace pullpass; an administrator can allow it; to check, run: " + rest,
	} {
		if !strings.Contains(output, want) {
			t.Errorf("want %q", want)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d of a refused pod, want 1", code)
	}
	for _, check := range [][]string{{"list", "pods", "-n", "pullpass"}, {"create", "pods", "--subresource=portforward", "-n", "pullpass"}} {
		if _, output := d.kubectl(t, append([]string{"auth", "can-i"}, check...)...); !strings.HasPrefix(output, "no") {
			t.Errorf("kubectl auth can-i %q: %s", check, output)
		}
	}
	if code, output := d.kubectl(t, "pullpass", "can-i", "pull", "shared/base", "--as", "team-a/web"); code != 2 || !strings.Contains(output, "you may not list pods in namespace pullpass; ") {
		t.Errorf("can-i: exit code %d: %s", code, output)
	}
	if code, output := d.kubectl(t, "pullpass", "why", "web-0", "-n", "default"); code != 2 || !strings.Contains(output, "you may not get pods in namespace default; ") {
		t.Errorf("in another namespace: exit code %d: %s", code, output)
	}
}
