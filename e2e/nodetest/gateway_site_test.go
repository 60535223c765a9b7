package nodetest

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	gatewayName = "gateway.example.com" // as in the documentation; also the service and the audience
	storageName = "storage.example.com"

	// The registries behind the gateway, as in the names of images: with users, with a token endpoint, with blobs at another
	// host, and the one that images without a registry are of.
	usersRegistry    = "ghcr.io"
	tokenRegistry    = "registry.gitlab.example"
	redirectRegistry = "images.example"
	hubRegistry      = "docker.io"

	// unmirrored is for containerd alone: its requests there show that the trap works.
	unmirrored = "unmirrored.example"

	trapAddress    = "127.0.0.9"
	storageAddress = "127.0.0.2"
)

const gatewayPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: acme
  services: [` + gatewayName + `]
  subjects: [{namespaces: ["acme-*"], serviceAccounts: [puller, leaver]}]
  allow: [{repositories: ["*/acme/**", "docker.io/library/*"], actions: [pull]}]
`

// downRegistry is down at first. Each node has its own, which the node's test starts again.
func downRegistry(node string) string { return "down." + node + ".example" }

func nodeNames() []string { return []string{"containerd-2", "containerd-1"} }

func mirrors() []string {
	all := []string{usersRegistry, tokenRegistry, redirectRegistry, hubRegistry}
	for _, node := range nodeNames() {
		all = append(all, downRegistry(node))
	}
	return all
}

// gatewaySite is a site whose registries know nothing of Pullpass. From the nodes, their names lead to the trap.
type gatewaySite struct {
	*site
	upstreams map[string]*upstream.Upstream
	gateway   *relay.Relay            // in front of the gateway
	down      map[string]*relay.Relay // in front of each downRegistry; they are cut
	storage   *storage
	trap      *trap
}

func startGatewaySite(t testing.TB) *gatewaySite {
	t.Helper()
	hosts := fmt.Sprintf("127.0.0.1 localhost %s\n%s %s\n%s %s registry-1.docker.io index.docker.io auth.docker.io %s\n",
		gatewayName, storageAddress, storageName, trapAddress, strings.Join(mirrors(), " "), unmirrored)
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte(hosts), 0o644))
	key, ca := certs.NewRSAKey(t), certs.NewCA(t, "registry-ca")
	s := &gatewaySite{site: &site{Cluster: cluster.Start(t, key), key: key, ca: ca, table: &table{}}, trap: startTrap(t, trapAddress)}
	s.StartControllers(t, s.key)
	access := s.ApplyRBAC(t)
	s.startUpstreams(t)
	s.config = pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.Issuer, Audiences: []string{gatewayName},
			Discovery:  pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
			Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			Node:       pullpass.Node{Proof: pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: s.CA.File}},
		}},
		Policy:     gatewayPolicy,
		Service:    gatewayName,
		GatewayURL: "https://" + gatewayName,
		Names:      []string{gatewayName},
		// Revocations need a Redis.
		State: pullpass.State{Replay: "enforce", Redis: pullpass.Redis{Addresses: []string{redis.Start(t).Address}}},
	}
	for _, mirror := range mirrors() {
		setting := s.upstreams[mirror].Setting(mirror)
		if mirror == redirectRegistry {
			setting.RedirectHosts = []string{storageName}
		}
		if way := s.down[mirror]; way != nil {
			setting.URL = "https://localhost" + port(way.Address)
		}
		s.config.Upstreams = append(s.config.Upstreams, setting)
	}
	s.proxy = pullpass.StartReady(t, s.ca, s.config)
	s.gateway = relay.Start(t, "127.0.0.1:443", s.proxy.GatewayAddress)
	s.Apply(t, s.proxy.Command(t, "kubelet-config", append(mirrorFlags(), "--part=rbac")...))
	return s
}

func mirrorFlags() (flags []string) {
	for _, mirror := range mirrors() {
		flags = append(flags, "--mirror="+mirror)
	}
	return flags
}

func (s *gatewaySite) startUpstreams(t testing.TB) {
	t.Helper()
	old := programs.DockerRegistry(t)
	s.upstreams = map[string]*upstream.Upstream{
		usersRegistry:    upstream.StartBasic(t, s.ca, old),
		tokenRegistry:    upstream.StartToken(t, s.ca, programs.Distribution(t)),
		redirectRegistry: upstream.StartRedirecting(t, s.ca, old, "https://"+storageName),
		hubRegistry:      upstream.StartBasic(t, s.ca, old),
	}
	s.storage = startStorage(t, s.ca, s.upstreams[redirectRegistry].Registry.Storage)
	s.down = map[string]*relay.Relay{}
	for _, node := range nodeNames() {
		at := downRegistry(node)
		s.upstreams[at] = s.upstreams[usersRegistry]
		s.down[at] = relay.Start(t, "127.0.0.1:0", "127.0.0.1"+port(s.upstreams[at].Recorder.Host))
		s.down[at].Cut()
	}
}

// port is that of an address, with its colon.
func port(address string) string { return address[strings.LastIndex(address, ":"):] }

// publish puts an image into an upstream, as its owner: not through the gateway.
func (s *gatewaySite) publish(t testing.TB, at, repository string) {
	t.Helper()
	image := s.upstreams[at].Registry.Host + "/" + repository + ":v1"
	testenv.Must(t, node.Push(t.Context(), s.ca.Transport(t), upstream.Username, upstream.Password, image, node.Image(t, at+"/"+repository)))
}

// keptPlugin is Pullpass's plugin, beside the one that takes its place and keeps what the kubelet gives it.
const keptPlugin = "pullpass-itself"

// startGatewayNodes runs a node with each containerd, configured with what "pullpass kubelet-config --mirror" prints.
func (s *gatewaySite) startGatewayNodes(t testing.TB) []*node.Node {
	t.Helper()
	var nodes []*node.Node
	for i, name := range nodeNames() {
		nodes = append(nodes, node.Start(t, node.Config{
			Name: name, Address: isolate.Addresses()[i], OldContainerd: i == 1, Cluster: s.Cluster, Pullpass: s.proxy, Mirrors: mirrors(), CA: s.ca,
			Plugins: []node.Plugin{{Name: keptPlugin}, {
				Name:    "pullpass-credential-provider",
				Content: "#!/bin/sh\ntee -a " + stolenFile + ` | "${0%/*}/` + keptPlugin + `" "$@"` + "\n",
			}},
		}))
	}
	return nodes
}

// given are the tokens that the kubelet of a node gave to the plugin, by the UIDs of their pods.
func given(t testing.TB, n *node.Node) map[string]string {
	t.Helper()
	file := testenv.Value(os.Open(n.Path(stolenFile)))(t)
	defer file.Close()
	tokens := map[string]string{}
	for requests := json.NewDecoder(file); requests.More(); {
		var request struct {
			Token string `json:"serviceAccountToken"`
		}
		err := requests.Decode(&request)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			break // it is just being written
		}
		testenv.Must(t, err)
		tokens[podOf(t, request.Token)] = request.Token
	}
	return tokens
}

// storage is the other host that has the blobs of a registry.
type storage struct {
	mu       sync.Mutex
	requests []*http.Request
	dumps    [][]byte
}

func startStorage(t testing.TB, ca *certs.CA, directory string) *storage {
	t.Helper()
	s := &storage{}
	files := http.FileServer(http.Dir(directory))
	listener := testenv.Value(net.Listen("tcp", storageAddress+":443"))(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dump, err := httputil.DumpRequest(r, true)
		if err != nil {
			dump = []byte(err.Error())
		}
		s.mu.Lock()
		s.requests, s.dumps = append(s.requests, r), append(s.dumps, dump)
		s.mu.Unlock()
		files.ServeHTTP(w, r)
	}))
	testenv.Must(t, server.Listener.Close())
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t, "storage", storageName).TLS(t)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return s
}

// asked are all requests so far, and what was sent with them.
func (s *storage) asked() ([]*http.Request, [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests), slices.Clone(s.dumps)
}
