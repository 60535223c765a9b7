package pullsecretstest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
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

	limit      = 3 * time.Minute // for what is waited for, on a machine that is busy
	pollPeriod = 50 * time.Millisecond
)

var optedIn = cluster.Object{label: "enabled"}

// site is a cluster with the manifest.
type site struct {
	*cluster.Cluster
	key    certs.RSAKey // signs the tokens of the ServiceAccounts
	access cluster.Access
	caller *http.Client
	begin  time.Time
}

func startSite(t testing.TB) *site {
	t.Helper()
	s := &site{key: certs.NewRSAKey(t), begin: time.Now()}
	s.Cluster = cluster.StartWith(t, s.key, cluster.Options{AuditUser: user})
	s.StartControllers(t, s.key, "garbage-collector-controller")
	admin := filepath.Join(t.TempDir(), "admin.conf")
	s.Kubeconfig(t, admin, s.Admin.CertFile, s.Admin.KeyFile)
	s.CreateNamespace(t, namespace, nil)
	kubectl := exec.CommandContext(t.Context(), programs.Kubectl(t), "--kubeconfig="+admin, "apply", "--validate=strict", "-f", filepath.Join(programs.Checkout(t), manifest))
	if output, err := kubectl.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, output)
	}
	s.access = s.Access(t, controller)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.CA.Pool()}}
	t.Cleanup(transport.CloseIdleConnections)
	s.caller = &http.Client{Transport: transport, Timeout: limit}
	s.awaitPolicies(t)
	return s
}

// awaitPolicies waits until the API server enforces them: it learns of them by watches.
func (s *site) awaitPolicies(t testing.TB) {
	t.Helper()
	s.CreateNamespace(t, "waiting", optedIn)
	s.CreateServiceAccount(t, "waiting", "out", nil)
	s.account(t, "waiting", "in", true)
	token := s.token(t, s.access)
	for policy, audience := range map[string]string{controller: "another", controller + "-opt-in": audience} {
		s.await(t, "the policy "+policy+" is enforced", func() bool {
			_, body := s.as(t, token, http.MethodPost, "/api/v1/namespaces/waiting/serviceaccounts/out/token", cluster.Object{
				"spec": cluster.Object{"audiences": []string{audience}, "expirationSeconds": 3600, "boundObjectRef": cluster.Object{"kind": "Secret", "apiVersion": "v1", "name": prefix + "out", "uid": "x"}},
			})
			return strings.Contains(body, "'"+policy+"'")
		})
	}
	n := 0
	s.await(t, "pods are given the name", func() bool {
		n++
		pod := s.pod(t, "waiting", fmt.Sprint("p", n), "in")
		return len(pullSecrets(pod)) == 1
	})
}

// account makes a ServiceAccount that has opted in, or not.
func (s *site) account(t testing.TB, namespace, name string, isOptedIn bool) cluster.Object {
	t.Helper()
	account, err := s.tryAccount(t.Context(), namespace, name, isOptedIn)
	check(t, err)
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
	return readFile(t, access.TokenFile)
}

// as sends a request with a token. The type of a patch is that of server-side apply if the path says so.
func (s *site) as(t testing.TB, token, method, path string, body any) (status int, answer string) {
	t.Helper()
	payload, err := json.Marshal(body)
	check(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, s.Issuer+path, bytes.NewReader(payload))
	check(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	switch {
	case method != http.MethodPatch:
		req.Header.Set("Content-Type", "application/json")
	case strings.Contains(path, "force="):
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	default:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := s.caller.Do(req)
	check(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(text)
}

// run starts a replica of the controller, with its rights and no more.
func (s *site) run(t testing.TB, identity string, environment ...string) *process.Process {
	t.Helper()
	program := programs.Pullpass
	if len(environment) > 0 {
		program = programs.PullpassWithClock
	}
	cmd := exec.Command(program(t), "pull-secrets", "controller", "--audience="+audience, "--registry="+registry, "--namespace="+namespace,
		"--identity="+identity, "--kubeconfig="+s.access.KubeconfigFile)
	cmd.Env = append(cmd.Environ(), environment...)
	return process.Start(t, cmd)
}

// await polls until done returns true.
func (s *site) await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); time.Sleep(pollPeriod) {
		if time.Since(start) > limit {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// claims are those of the token in a Secret.
func (s *site) claims(t testing.TB, secret cluster.Object) (claims map[string]any) {
	t.Helper()
	var config struct {
		Auths map[string]struct{ Username, Password string }
	}
	text, err := base64.StdEncoding.DecodeString(secret.Text("data", ".dockerconfigjson"))
	check(t, err)
	check(t, json.Unmarshal(text, &config))
	parts := strings.Split(config.Auths[registry].Password, ".")
	if len(parts) != 3 {
		t.Fatalf("no token in %v", secret["metadata"])
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	check(t, err)
	check(t, json.Unmarshal(payload, &claims))
	return claims
}

// saw is a line of what was seen.
func (s *site) saw(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("%6.1f s  %s", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}
