package nodetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
)

const (
	registryName = "registry.example.com" // as in the documentation; also the service and the audience
	tokenAddress = "127.0.0.1:8443"
	realm        = "https://" + registryName + ":8443/token"

	annotation = "pullpass.dev/repositories"
	builders   = "builders" // namespace of those who push

	podLimit = 3 * time.Minute // the machine that tests may have other things to do
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["*"]}]
  annotation: ` + annotation + `
  allow: [{repositories: ["shared/**"], actions: [pull]}]
- name: kept
  subjects: [{namespaces: ["` + keptScenario + `-*"], serviceAccounts: [autopilot]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
- name: builders
  subjects: [{namespaces: [` + builders + `]}]
  allow: [{repositories: ["**"], actions: [pull, push]}]
`

// site is all that a registry's users have.
type site struct {
	*cluster.Cluster
	key      certs.RSAKey // signs the tokens of the ServiceAccounts
	ca       *certs.CA    // of the registry and Pullpass
	config   pullpass.Config
	proxy    *pullpass.Proxy // the first one
	retired  []*pullpass.Proxy
	relay    *relay.Relay // in front of Pullpass
	builder  *http.Transport
	password string // of the builder
	table    *table
}

func startSite(t testing.TB) *site {
	t.Helper()
	names := []string{registryName, bareName}
	for _, a := range aliases() {
		names = append(names, a.host())
	}
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+strings.Join(names, " ")+"\n"), 0o644))
	s := &site{table: &table{}, key: certs.NewRSAKey(t), ca: certs.NewCA(t, "registry-ca")}
	s.Cluster = cluster.Start(t, s.key)
	s.StartControllers(t, s.key)
	access := s.ApplyRBAC(t)
	s.config = pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.Issuer, Audiences: []string{registryName},
			Discovery:   pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
			Kubernetes:  pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			Node:        pullpass.Node{Proof: pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: s.CA.File}},
			PullSecrets: pullpass.PullSecrets{Audience: pullAudience, Namespaces: []string{keptScenario + "-*"}},
		}},
		Policy:  policy,
		Service: registryName,
		Signing: pullpass.Signing{ManagedDir: filepath.Join(t.TempDir(), "keys")},
		Names:   []string{registryName},
		// Replicas share nothing here: each is the only one that pods are sent to.
		State: pullpass.State{Replay: "enforce"},
	}
	s.proxy = pullpass.StartReady(t, s.ca, s.config)
	s.relay = relay.Start(t, tokenAddress, s.proxy.Address())
	registry.Start(t, s.ca, registry.Config{
		Program: programs.Distribution(t), Address: "127.0.0.1:443", Names: names, Realm: realm,
		Service: registryName, Issuer: pullpass.Issuer, RootCertBundle: s.proxy.Certificates(t),
	})
	s.Apply(t, s.proxy.Command(t, "kubelet-config", "--registry="+registryName, "--part=rbac"))
	s.startBuilder(t)
	s.startPullSecrets(t)
	return s
}

// checkReplays shows that no request of a node is a replay: the two requests of a pull, repeated ones, and one token for
// several pulls. The callers are nodes, by their certificates: all come from one address. The tokens that the tests present from
// elsewhere are refused because they do not prove the node, before the check for replays.
func (s *site) checkReplays(t testing.TB) {
	t.Helper()
	first := map[string]bool{} // by the token
	used := 0
	for _, proxy := range append(s.retired, s.proxy) {
		for _, e := range proxy.Replays(t) {
			t.Errorf("a replay: %+v, %+v", e, e.Replay)
		}
		for _, e := range proxy.Audit(t) {
			if e.Replay == nil {
				continue
			}
			if !strings.HasPrefix(e.Replay.Caller, "node/"+e.Node.Name+"/") {
				t.Errorf("the caller is not the node: %+v, %+v", e, e.Replay)
			}
			if first[e.CredentialID] {
				used++
			}
			first[e.CredentialID] = true
		}
	}
	if used == 0 {
		t.Errorf("%d tokens, and none was presented again", len(first))
	}
	s.table.add(len(scenarios())+3, "all", "tokens that count for their first caller alone", fmt.Sprintf("%d, presented %d times again by the same", len(first), used), 0)
}

// startNodes runs a node with each containerd.
func (s *site) startNodes(t testing.TB) []*node.Node {
	t.Helper()
	addresses := isolate.Addresses()
	var nodes []*node.Node
	for i, name := range []string{"containerd-2", "containerd-1"} {
		nodes = append(nodes, node.Start(t, s.nodeConfig(t, name, addresses[i], i == 1)))
	}
	return nodes
}

func (s *site) nodeConfig(t testing.TB, name, address string, old bool) node.Config {
	config := node.Config{
		Name: name, Address: address, OldContainerd: old, Cluster: s.Cluster, Pullpass: s.proxy, Registry: registryName, CA: s.ca,
		Hosts: map[string]string{},
	}
	config.Hosts[bareName] = s.proxy.Command(t, "kubelet-config", "--registry="+bareName, "--part=hosts")
	for _, a := range aliases() {
		config.Providers += a.provider()
		config.Plugins = append(config.Plugins, a.file())
		hosts := s.proxy.Command(t, "kubelet-config", "--registry="+a.host(), "--part=hosts")
		if a.name == noClient.name {
			hosts = strings.Replace(hosts, "\nclient = ", "\n# client = ", 1)
		}
		config.Hosts[a.host()] = hosts
	}
	return config
}

// startBuilder is a pod that may push. It runs on no kubelet; its token and the certificate of its node are all that is needed.
func (s *site) startBuilder(t testing.TB) {
	t.Helper()
	s.CreateNamespace(t, builders, nil)
	s.CreateServiceAccount(t, builders, "builder", nil)
	s.CreateNode(t, "build-1", nil)
	s.password = s.Token(t, cluster.PodToken(s.CreatePod(t, builders, "build", "builder", "build-1"), registryName))
	certificate := s.CA.Client(t, "system:node:build-1", "system:nodes").TLS(t)
	s.builder = s.ca.Transport(t, certificate)
}

// push puts an image into a repository, and returns its name.
func (s *site) push(t testing.TB, repository string) string {
	t.Helper()
	image := registryName + "/" + repository + ":v1"
	testenv.Must(t, node.Push(t.Context(), s.builder, "serviceaccount", s.password, image, node.Image(t, repository)))
	return image
}

// milliseconds is for the table.
func milliseconds(d time.Duration) string { return fmt.Sprint(d.Round(time.Millisecond)) }
