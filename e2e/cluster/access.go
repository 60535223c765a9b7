package cluster

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// rbacFile is what administrators apply, in the repository.
const rbacFile = "deploy/kubernetes/rbac.yaml"

const (
	rbac            = "/apis/rbac.authorization.k8s.io/v1/"
	systemNamespace = "pullpass" // of Pullpass itself, as the file says
	account         = "pullpass" // name of its ServiceAccount and ClusterRole, likewise
)

// Verb is one thing that a ClusterRole allows.
type Verb struct{ Resource, Verb string }

// Access is what a program is given to use the API.
type Access struct {
	KubeconfigFile string
	TokenFile      string // the token in it alone
}

// ApplyRBAC creates the namespace pullpass and in it what deploy/kubernetes/rbac.yaml holds, and returns what Pullpass needs
// to connect as the ServiceAccount of that file.
func (c *Cluster) ApplyRBAC(t testing.TB) Access {
	t.Helper()
	c.CreateNamespace(t, systemNamespace, nil)
	c.Apply(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), rbacFile)))
	return c.access(t, c.Issuer, account)
}

// Apply creates what administrators of Pullpass are given: ServiceAccounts in its namespace, roles, bindings and definitions, in
// YAML.
func (c *Cluster) Apply(t testing.TB, manifest string) {
	t.Helper()
	collections := map[string]string{
		"ServiceAccount":           "/api/v1/namespaces/" + systemNamespace + "/serviceaccounts",
		"Role":                     rbac + "namespaces/" + systemNamespace + "/roles",
		"RoleBinding":              rbac + "namespaces/" + systemNamespace + "/rolebindings",
		"ClusterRole":              rbac + "clusterroles",
		"ClusterRoleBinding":       rbac + "clusterrolebindings",
		"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	}
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		_, rest, _ := strings.Cut("\n"+document, "\nkind: ")
		kind, _, _ := strings.Cut(rest, "\n")
		// The API server reads YAML itself, and refuses a namespace that is not the path's.
		if _, err := c.send(t.Context(), http.MethodPost, collections[kind], "application/yaml", []byte(document)); err != nil {
			t.Fatalf("%v of:\n%s", err, document)
		}
	}
}

// Verbs lists what the ClusterRole of ApplyRBAC allows.
func (c *Cluster) Verbs(t testing.TB) []Verb {
	t.Helper()
	var verbs []Verb
	for _, rule := range c.role(t).Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				verbs = append(verbs, Verb{resource, verb})
			}
		}
	}
	return verbs
}

// AccessWithout makes a ServiceAccount of the given name that may do what that of ApplyRBAC may, but for the given verbs.
func (c *Cluster) AccessWithout(t testing.TB, name string, missing ...Verb) Access {
	t.Helper()
	role := c.role(t)
	var rules []policyRule
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			left := slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool {
				return slices.Contains(missing, Verb{resource, verb})
			})
			if len(left) > 0 {
				rules = append(rules, policyRule{rule.APIGroups, []string{resource}, left})
			}
		}
	}
	c.CreateServiceAccount(t, systemNamespace, name, nil)
	c.Create(t, rbac+"clusterroles", Object{"metadata": Object{"name": name}, "rules": rules})
	c.Create(t, rbac+"clusterrolebindings", Object{
		"metadata": Object{"name": name},
		"roleRef":  Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
		"subjects": []Object{{"kind": "ServiceAccount", "namespace": systemNamespace, "name": name}},
	})
	return c.access(t, c.Issuer, name)
}

// Access is that of a ServiceAccount of Pullpass's namespace.
func (c *Cluster) Access(t testing.TB, serviceAccount string) Access {
	t.Helper()
	return c.access(t, c.Issuer, serviceAccount)
}

// Relay starts a relay to the API server. It ends with the test.
func (c *Cluster) Relay(t testing.TB) *relay.Relay {
	t.Helper()
	return relay.Start(t, "127.0.0.1:0", c.address)
}

// AccessThrough is the access of ApplyRBAC, but through a relay.
func (c *Cluster) AccessThrough(t testing.TB, r *relay.Relay) Access {
	t.Helper()
	return c.access(t, "https://"+r.Address, account)
}

type policyRule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
}

type clusterRole struct {
	Rules []policyRule `json:"rules"`
}

func (c *Cluster) role(t testing.TB) clusterRole {
	t.Helper()
	var role clusterRole
	c.Get(t, rbac+"clusterroles/"+account).Decode(t, &role)
	return role
}

func (c *Cluster) access(t testing.TB, server, serviceAccount string) Access {
	t.Helper()
	token := c.Token(t, TokenRequest{Namespace: systemNamespace, ServiceAccount: serviceAccount, Lifetime: 24 * time.Hour})
	dir := t.TempDir()
	a := Access{KubeconfigFile: filepath.Join(dir, "kubeconfig"), TokenFile: filepath.Join(dir, "token")}
	testenv.WriteFile(t, a.TokenFile, token)
	testenv.WriteFile(t, a.KubeconfigFile, c.kubeconfig(t, server, systemNamespace, Object{"tokenFile": a.TokenFile}))
	return a
}

// Kubeconfig writes a file for one who has a client certificate.
func (c *Cluster) Kubeconfig(t testing.TB, file, certFile, keyFile string) {
	t.Helper()
	testenv.WriteFile(t, file, c.kubeconfig(t, c.Issuer, "", Object{"client-certificate": certFile, "client-key": keyFile}))
}

// AdminKubeconfig writes a file for the administrator, and returns its path.
func (c *Cluster) AdminKubeconfig(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	c.Kubeconfig(t, file, c.Admin.CertFile, c.Admin.KeyFile)
	return file
}

// Kubectl runs kubectl as the administrator, with text as its standard input.
func (c *Cluster) Kubectl(t testing.TB, input string, args ...string) {
	t.Helper()
	kubectl := exec.CommandContext(t.Context(), programs.Kubectl(t), append([]string{"--kubeconfig=" + c.AdminKubeconfig(t)}, args...)...)
	kubectl.Stdin = strings.NewReader(input)
	if output, err := kubectl.CombinedOutput(); err != nil {
		t.Fatalf("kubectl %q: %v\n%s\n%s", args, err, output, input)
	}
}

// TokenKubeconfig writes a file for one who has a token.
func (c *Cluster) TokenKubeconfig(t testing.TB, file, token string) {
	t.Helper()
	testenv.WriteFile(t, file, c.kubeconfig(t, c.Issuer, "", Object{"token": token}))
}

// kubeconfig is a file for one user. JSON is YAML too.
func (c *Cluster) kubeconfig(t testing.TB, server, namespace string, user Object) string {
	t.Helper()
	content := testenv.Value(json.Marshal(Object{
		"apiVersion": "v1", "kind": "Config",
		"clusters":        []Object{{"name": "e2e", "cluster": Object{"server": server, "certificate-authority": c.CA.File}}},
		"users":           []Object{{"name": "e2e", "user": user}},
		"contexts":        []Object{{"name": "e2e", "context": Object{"cluster": "e2e", "user": "e2e", "namespace": namespace}}},
		"current-context": "e2e",
	}))(t)
	return string(content)
}
