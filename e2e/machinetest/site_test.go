package machinetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	registryName = "registry.example.com" // also the service, and an audience
	cloudName    = "cloud.example.com"    // the platform's own registry, for which it has a provider
	before       = "before.example.com"   // the audience before an upgrade of the configuration
	realm        = "https://" + registryName + ":8443/token"
	builders     = "builders" // namespace of those who push

	podLimit = 3 * time.Minute // the machine that tests may have other things to do
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: builders
  subjects: [{namespaces: [` + builders + `]}]
  allow: [{repositories: ["**"], actions: [pull, push]}]
`

// site is what all machines share.
type site struct {
	*cluster.Cluster
	ca      *certs.CA // of the registries and Pullpass
	proxy   *pullpass.Proxy
	builder *http.Transport
	token   string // of the builder
	table   table
}

func startSite(t *testing.T) *site {
	t.Helper()
	addresses := isolate.Addresses()
	testenv.Must(t, os.WriteFile("/etc/hosts", fmt.Appendf(nil, "127.0.0.1 localhost\n%s %s\n%s %s\n", addresses[0], registryName, addresses[1], cloudName), 0o644))
	key := certs.NewRSAKey(t)
	s := &site{ca: certs.NewCA(t, "registry-ca")}
	s.Cluster = cluster.Start(t, key)
	s.StartControllers(t, key)
	s.ServePods(t)
	access := s.ApplyRBAC(t)
	s.proxy = pullpass.Start(t, s.ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.Issuer, Audiences: []string{registryName, before},
			Discovery:  pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
			Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			// Kubelets of EKS have no certificate, and are not refused here.
			Node: pullpass.Node{Proof: pullpass.Proof{Mode: "audit", Methods: []string{"certificate"}, ClientCAFile: s.CA.File}},
		}},
		Policy: policy, Service: registryName, Signing: pullpass.Signing{ManagedDir: filepath.Join(t.TempDir(), "keys")}, Names: []string{registryName},
	})
	relay.Start(t, addresses[0]+":8443", s.proxy.Address())
	own := registry.Start(t, s.ca, registry.Config{
		Program: programs.Distribution(t), Names: []string{registryName}, Realm: realm, Service: registryName, Issuer: pullpass.Issuer,
		RootCertBundle: s.proxy.Certificates(t),
	})
	relay.Start(t, addresses[0]+":443", own.Address())
	cloud := registry.Start(t, s.ca, registry.Config{
		Program: programs.Distribution(t), Names: []string{cloudName}, Realm: "cloud", Htpasswd: []byte(upstream.Htpasswd),
	})
	relay.Start(t, addresses[1]+":443", cloud.Address())
	s.allow(t, registryName)
	s.allow(t, before)
	s.startBuilder(t)
	return s
}

// config is Pullpass's configuration as it is given to the installer: with one audience, and for kubelets without a certificate
// without a proof of the node.
func (s *site) config(t *testing.T, audience string, certificate bool) string {
	t.Helper()
	content := testenv.ReadFile(t, s.proxy.ConfigFile)
	var config map[string]any
	testenv.Must(t, json.Unmarshal([]byte(content), &config))
	c := config["clusters"].([]any)[0].(map[string]any)
	c["audiences"] = []string{audience}
	if !certificate {
		delete(c, "node")
	}
	changed := testenv.Value(json.Marshal(config))(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	testenv.WriteFile(t, file, changed)
	return file
}

// allow lets kubelets request tokens for an audience.
func (s *site) allow(t *testing.T, audience string) {
	t.Helper()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	s.Create(t, rbac+"clusterroles", cluster.Object{"metadata": cluster.Object{"name": audience}, "rules": []cluster.Object{
		{"apiGroups": []string{""}, "resources": []string{audience}, "verbs": []string{"request-serviceaccounts-token-audience"}},
	}})
	s.Create(t, rbac+"clusterrolebindings", cluster.Object{
		"metadata": cluster.Object{"name": audience},
		"roleRef":  cluster.Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": audience},
		"subjects": []cluster.Object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}},
	})
}

// startBuilder is a pod that may push, on no kubelet.
func (s *site) startBuilder(t *testing.T) {
	t.Helper()
	s.CreateNamespace(t, builders, nil)
	s.CreateServiceAccount(t, builders, "builder", nil)
	s.CreateNode(t, "build-1", nil)
	s.token = s.Token(t, cluster.PodToken(s.CreatePod(t, builders, "build", "builder", "build-1"), registryName))
	s.builder = s.ca.Transport(t)
}

// push puts an image into a registry, and returns its name.
func (s *site) push(t *testing.T, registry, repository string) string {
	t.Helper()
	image := registry + "/" + repository + ":v1"
	username, password := "serviceaccount", s.token
	if registry == cloudName {
		username, password = upstream.Username, upstream.Password
	}
	testenv.Must(t, node.Push(t.Context(), s.builder, username, password, image, node.Image(t, repository)))
	return image
}

// table is what was seen.
type table struct {
	mu   sync.Mutex
	rows []string
}

func (b *table) add(machine, what string, took time.Duration, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, fmt.Sprintf("%-14s %-52s %6.1f s  %s", machine, what, took.Seconds(), fmt.Sprintf(format, args...)))
}

func (b *table) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := slices.Clone(b.rows)
	slices.SortStableFunc(rows, func(a, b string) int { return strings.Compare(a[:14], b[:14]) })
	return "what was seen\n" + strings.Join(rows, "\n") + "\n"
}
