package e2e

import (
	"encoding/base64"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

// testAccount gives Pullpass an account, as an administrator does. The rights of rbac.yaml are there before.
func testAccount(t *testing.T, s *site) {
	admin, dir := s.AdminKubeconfig(t), filepath.Join(t.TempDir(), "added")
	add := func(more ...string) pullpass.Cluster {
		printed := command(t, append([]string{"cluster", "add", "added", "--kubeconfig", admin, "--audience", audience, "--dir", dir, "--at", dir}, more...)...)
		var entries []pullpass.Cluster
		var document any
		testenv.Must(t, yaml.Unmarshal([]byte(printed), &document))
		testenv.Must(t, json.Unmarshal(testenv.Value(json.Marshal(document))(t), &entries))
		if len(entries) != 1 || entries[0].Issuer != s.Issuer || entries[0].Discovery.JWKSURL == "" {
			t.Fatalf("printed:\n%s", printed)
		}
		return entries[0]
	}
	added := add()
	proxy := s.pullpass(t, pullpass.Config{Clusters: []pullpass.Cluster{added}, Policy: livePolicy, Service: service})
	s.CreateNode(t, "account-1", nil)
	token := s.proofWorkload(t, "account", "account-1")
	expect(t, "a pod of the cluster", proxy.Get(t, service, token, own("account")), own("account"))
	proxy.Command(t, "check", "--live")

	before := testenv.ReadFile(t, added.Discovery.TokenFile)
	command(t, "cluster", "renew", "--dir", dir)
	renewed := testenv.ReadFile(t, added.Discovery.TokenFile)
	if status, _ := s.As(t, renewed, "GET", "/api/v1/pods?limit=1", nil); status != 200 || renewed == before {
		t.Errorf("the new token: status %d", status)
	}

	encode := func(name string) string {
		return base64.StdEncoding.EncodeToString([]byte(testenv.ReadFile(t, filepath.Join(dir, name))))
	}
	secrets := "/api/v1/namespaces/account/secrets"
	s.Create(t, secrets, cluster.Object{"metadata": cluster.Object{"name": "added"},
		"data": cluster.Object{"kubeconfig": encode("kubeconfig"), "ca.crt": encode("ca.crt"), "token": encode("token")}})
	command(t, "cluster", "renew", "--kubeconfig", admin, "--namespace", "account", "--secret", "added")
	kept := testenv.Value(base64.StdEncoding.DecodeString(s.Get(t, secrets+"/added").Text("data", "token")))(t)
	if status, _ := s.As(t, string(kept), "GET", "/api/v1/pods?limit=1", nil); status != 200 || string(kept) == renewed {
		t.Errorf("the new token of the Secret: status %d", status)
	}

	s.Delete(t, bindings+"/pullpass-remote")
	testenv.Await(t, reconnectLimit, "check --live says that rights are missing", func() bool {
		_, err := proxy.TryCommand(t, "check", "--live")
		return err != nil && strings.Contains(err.Error(), "the API server of added does not allow list pods; apply deploy/kubernetes/rbac.yaml there") &&
			!strings.Contains(err.Error(), "no keys of")
	})
	user := add("--user", "system:serviceaccount:account:"+puller, "--token-file", testenv.WriteFile(t, filepath.Join(t.TempDir(), "token"), s.Token(t, cluster.TokenRequest{Namespace: "account", ServiceAccount: puller})))
	byUser := s.pullpass(t, pullpass.Config{Clusters: []pullpass.Cluster{user}, Policy: livePolicy, Service: service})
	expect(t, "with the token of a user", byUser.Get(t, service, token, own("account")), own("account"))
	byUser.Command(t, "check", "--live")
	add() // restores the binding
	proxy.Command(t, "check", "--live")
}

// command runs a command of Pullpass without a configuration, and returns what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Pullpass(t), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("pullpass %q: %v\n%s", args, err, &stderr)
	}
	return string(output)
}
