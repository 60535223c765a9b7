package pullsecretstest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	manifest = "deploy/kubernetes/pull-secrets-controller.yaml" // in the repository

	// As in the manifest.
	namespace  = "pullpass"
	controller = "pullpass-pull-secrets"
	audience   = "pull.registry.example.com"
	registry   = "registry.example.com"
	label      = "pullpass.dev/pull-secrets"
	prefix     = "pullpass-pull-"

	user = "system:serviceaccount:" + namespace + ":" + controller

	limit = 6 * time.Minute // for what is waited for, on a machine that is busy
)

var optedIn = cluster.Object{label: "enabled"}

// site is a cluster with the manifest.
type site struct {
	*cluster.Cluster
	key    certs.RSAKey // signs the tokens of the ServiceAccounts
	access cluster.Access
	begin  time.Time
}

func startSite(t testing.TB) *site {
	t.Helper()
	s := &site{key: certs.NewRSAKey(t), begin: time.Now()}
	s.Cluster = cluster.StartWith(t, s.key, cluster.Options{AuditUser: user})
	s.StartControllers(t, s.key, "garbage-collector-controller")
	s.CreateNamespace(t, namespace, nil)
	s.Kubectl(t, "", "apply", "--validate=strict", "-f", filepath.Join(programs.Checkout(t), manifest))
	s.access = s.Access(t, controller)
	s.awaitPolicies(t)
	return s
}

// awaitPolicies waits until the API server enforces them: it learns of them by watches.
func (s *site) awaitPolicies(t testing.TB) {
	t.Helper()
	s.CreateNamespace(t, "waiting", optedIn)
	s.CreateServiceAccount(t, "waiting", "out", nil)
	s.account(t, "waiting", "in", true)
	s.awaitEnforced(t)
	n := 0
	testenv.Await(t, limit, "pods are given the name", func() bool {
		n++
		pod := s.pod(t, "waiting", fmt.Sprint("p", n), "in")
		return len(pullSecrets(pod)) == 1
	})
}

func (s *site) awaitEnforced(t testing.TB) {
	t.Helper()
	token := s.Token(t, cluster.TokenRequest{Namespace: namespace, ServiceAccount: controller})
	for _, wrong := range []struct{ policy, account, audience string }{{controller, "in", "another"}, {controller + "-opt-in", "out", audience}} {
		testenv.Await(t, limit, "the policy "+wrong.policy+" is enforced", func() bool {
			_, body := s.As(t, token, http.MethodPost, "/api/v1/namespaces/waiting/serviceaccounts/"+wrong.account+"/token", cluster.Object{"spec": cluster.Object{
				"audiences": []string{wrong.audience}, "expirationSeconds": 3600,
				"boundObjectRef": cluster.Object{"kind": "Secret", "apiVersion": "v1", "name": prefix + wrong.account, "uid": "x"},
			}})
			return strings.Contains(body, "'"+wrong.policy+"'")
		})
	}
}

// account makes a ServiceAccount that has opted in, or not.
func (s *site) account(t testing.TB, namespace, name string, isOptedIn bool) cluster.Object {
	t.Helper()
	account := testenv.Value(s.tryAccount(t.Context(), namespace, name, isOptedIn))(t)
	return account
}

// tryAccount is account for goroutines, which must not end a test.
func (s *site) tryAccount(ctx context.Context, namespace, name string, isOptedIn bool) (cluster.Object, error) {
	metadata := cluster.Object{"name": name}
	if isOptedIn {
		metadata["labels"] = optedIn
	}
	return s.Try(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts", cluster.Object{"metadata": metadata})
}

// pod makes a pod that no node runs.
func (s *site) pod(t testing.TB, namespace, name, account string, secrets ...string) cluster.Object {
	t.Helper()
	list := []cluster.Object{}
	for _, secret := range secrets {
		list = append(list, cluster.Object{"name": secret})
	}
	return s.Create(t, "/api/v1/namespaces/"+namespace+"/pods", cluster.Object{"metadata": cluster.Object{"name": name}, "spec": cluster.Object{
		"serviceAccountName": account, "automountServiceAccountToken": false, "imagePullSecrets": list,
		"containers": []cluster.Object{{"name": "c", "image": registry + "/app"}},
	}})
}

func pullSecrets(pod cluster.Object) (names []string) {
	list, _ := pod["spec"].(map[string]any)["imagePullSecrets"].([]any)
	for _, o := range list {
		names = append(names, o.(map[string]any)["name"].(string))
	}
	return names
}

func (s *site) token(t testing.TB, access cluster.Access) string {
	t.Helper()
	return testenv.ReadFile(t, access.TokenFile)
}

// replica is one of the controller.
type replica struct {
	*process.Process
	admin string // URL
}

// run starts a replica, with the rights of its ServiceAccount and no more.
func (s *site) run(t testing.TB, identity string) *replica {
	t.Helper()
	address := process.FreeAddress(t)
	r := &replica{admin: "http://" + address}
	r.Process = process.Start(t, exec.Command(programs.Pullpass(t), "pull-secrets", "controller", "--audience="+audience, "--registry="+registry, "--namespace="+namespace,
		"--identity="+identity, "--kubeconfig="+s.access.KubeconfigFile, "--admin-address="+address))
	testenv.Await(t, limit, identity+" is ready", func() bool { status, _ := r.ask(t, "/readyz"); return status == http.StatusOK })
	return r
}

// stop ends it with SIGTERM.
func (r *replica) stop(t testing.TB) { t.Helper(); testenv.Must(t, r.Stop()) }

func (r *replica) ask(t testing.TB, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.admin+path, nil)
	testenv.Must(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	return resp.StatusCode, string(content)
}

// metric is the value of a series; -1: there is none.
func (r *replica) metric(t testing.TB, series string) int {
	t.Helper()
	_, body := r.ask(t, "/metrics")
	_, rest, ok := strings.Cut(body, "\n"+series+" ")
	if !ok {
		return -1
	}
	text, _, _ := strings.Cut(rest, "\n")
	value := testenv.Value(strconv.ParseFloat(text, 64))(t)
	return int(value)
}

// awaitKept waits until the replica leads and all n ServiceAccounts have a token.
func (s *site) awaitKept(t testing.TB, r *replica, n int) {
	t.Helper()
	testenv.Await(t, limit, fmt.Sprint(n, " Secrets are kept"), func() bool { return r.metric(t, `pullpass_pull_secrets{state="kept"}`) == n })
}

// changes are what the controller changed since a mark, but for its Lease and its memory, by verb and resource. namespace "" means all of
// them. Refused changes have their status besides.
func (s *site) changes(t testing.TB, since int, namespace string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, r := range s.Requests(t, since) {
		if !r.Changes() || isItsOwn(r) || namespace != "" && r.Namespace != namespace || r.Status == http.StatusTooManyRequests {
			continue
		}
		what := strings.TrimSuffix(r.Verb+" "+r.Resource+"/"+r.Subresource, "/")
		if r.Status >= 300 {
			what += fmt.Sprint(": ", r.Status)
		}
		counts[what]++
	}
	return counts
}

// expectChanges waits for them: a request may be in the audit log of the API server after it was answered.
func (s *site) expectChanges(t testing.TB, what string, since int, namespace string, want map[string]int) {
	t.Helper()
	var got map[string]int
	if !testenv.Poll(limit, func() bool { got = s.changes(t, since, namespace); return maps.Equal(got, want) }) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func isItsOwn(r cluster.Request) bool { return r.Resource == "leases" || r.Resource == "configmaps" }

// mark is where changes begin that come from now on.
func (s *site) mark(t testing.TB) int { t.Helper(); return len(s.Requests(t, 0)) }

// password is the token in a Secret.
func (s *site) password(t testing.TB, secret cluster.Object) string {
	t.Helper()
	var config struct {
		Auths map[string]struct{ Username, Password string }
	}
	text := testenv.Value(base64.StdEncoding.DecodeString(secret.Text("data", ".dockerconfigjson")))(t)
	testenv.Must(t, json.Unmarshal(text, &config))
	return config.Auths[registry].Password
}

// claims are those of the token in a Secret.
func (s *site) claims(t testing.TB, secret cluster.Object) (claims map[string]any) {
	t.Helper()
	testenv.Must(t, json.Unmarshal(testenv.TokenPart(t, s.password(t, secret), 1), &claims))
	return claims
}

// saw is a line of what was seen.
func (s *site) saw(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("%6.1f s  %s", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}
