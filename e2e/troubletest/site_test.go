package troubletest

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

// The names of the page. Their addresses are not of loopback: clients treat such registries differently.
const (
	registryName, registryAddress = "registry.example.com", "10.99.1.1"
	gatewayName, gatewayAddress   = "gateway.example.com", "10.99.1.2"
	upstreamName                  = "ghcr.io"

	otherAudience = "other.example.com"
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  services: [registry.example.com]
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  services: [registry.example.com]
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
- name: builders
  services: [registry.example.com]
  subjects: [{namespaces: [builders]}]
  allow: [{repositories: ["**"], actions: [pull, push]}]
- name: gateway
  services: [gateway.example.com]
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["ghcr.io/acme/**"], actions: [pull, push]}]
`

// site is a registry with Pullpass, a gateway, and a person with programs.
type site struct {
	ca       *certs.CA
	cluster  *cluster.Cluster
	node     *node.Node
	issuer   *issuer.Issuer
	config   pullpass.Config // of Pullpass before the registry
	proxy    *pullpass.Proxy
	gateway  *pullpass.Proxy
	registry *registry.Registry
	// answering is the one at the registry's address: registry, or one with a fault.
	answering *registry.Registry
	// Each name leads to a relay.
	registryRelay, tokenRelay, gatewayRelay *relay.Relay
	upstreamRelay                           *relay.Relay // between the gateway and the registry behind it

	dir      string // where the person works
	password string // the login
	// kubeconfig is the administrator's.
	kubeconfig string
	job        []string // environment of a CI job: NAME=value
}

func startSite(t *testing.T) *site {
	t.Helper()
	for _, address := range []string{registryAddress, gatewayAddress} {
		if output, err := exec.CommandContext(t.Context(), "ip", "address", "add", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("ip address add %s: %v: %s", address, err, output)
		}
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s %s %s %s\n%s %s\n", registryAddress, registryName, noProviderName, otherAudienceName, gatewayAddress, gatewayName)
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte(hosts), 0o644))
	testenv.Must(t, os.WriteFile("/etc/resolv.conf", []byte("nameserver 127.0.0.1\n"), 0o644))
	knowNoNames(t)

	s := &site{ca: certs.NewCA(t, "registry-ca"), dir: testenv.Value(os.MkdirTemp("/run", "home-"))(t)}
	s.issuer = issuer.Start(t, s.ca)
	s.config = pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.issuer.URL, Audiences: []string{registryName, gatewayName}, Discovery: pullpass.Discovery{CAFile: s.ca.File},
		}, s.startCluster(t)},
		Policy: policy, Service: registryName, Names: []string{registryName},
	}
	s.proxy = pullpass.StartReady(t, s.ca, s.config)
	s.tokenRelay = relay.Start(t, registryAddress+":8443", s.proxy.Address())
	s.registry = s.startRegistry(t, registry.Config{})
	s.answering = s.registry
	s.registryRelay = relay.Start(t, registryAddress+":443", s.registry.Address())
	s.push(t, "team-a/web", "team-b/app", "shared/base")
	s.startGateway(t)
	s.startNode(t)
	return s
}

// knowNoNames runs a DNS server that answers NXDOMAIN (RFC 1035, section 4.1.1) to each request.
func knowNoNames(t *testing.T) {
	t.Helper()
	conn := testenv.Value(net.ListenPacket("udp", "127.0.0.1:53"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for message := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(message)
			if err != nil {
				return // closed
			}
			message[2], message[3] = message[2]|0x80, 0x83 // an answer; recursion is available; name error
			_, _ = conn.WriteTo(message[:n], from)
		}
	}()
	t.Cleanup(func() {
		testenv.Must(t, conn.Close())
		<-done
	})
}

// startRegistry starts a registry that trusts Pullpass. Fields of config override that.
func (s *site) startRegistry(t *testing.T, config registry.Config) *registry.Registry {
	t.Helper()
	config.Program, config.Issuer = programs.Distribution(t), pullpass.Issuer
	config.Names = []string{registryName, noProviderName, otherAudienceName}
	config.Realm = cmp.Or(config.Realm, "https://"+registryName+":8443/token")
	config.Service = cmp.Or(config.Service, registryName)
	if config.RootCertBundle == nil {
		config.RootCertBundle = s.proxy.Certificates(t)
	}
	return registry.Start(t, s.ca, config)
}

func (s *site) startGateway(t *testing.T) {
	t.Helper()
	behind := upstream.StartBasic(t, s.ca, programs.DockerRegistry(t))
	ref := testenv.Value(name.NewTag(behind.Registry.Host + "/acme/app:v1"))(t)
	testenv.Must(t, remote.Write(ref, testenv.Value(random.Image(64, 1))(t), remote.WithTransport(s.ca.Transport(t)),
		remote.WithAuth(&authn.Basic{Username: upstream.Username, Password: upstream.Password})))
	setting := behind.Setting(upstreamName)
	s.upstreamRelay = relay.Start(t, "127.0.0.1:0", strings.TrimPrefix(strings.Replace(setting.URL, "localhost", "127.0.0.1", 1), "https://"))
	setting.URL = "https://" + s.upstreamRelay.Address
	config := s.config
	config.Service, config.Names, config.Upstreams, config.GatewayURL = gatewayName, []string{gatewayName}, []pullpass.Upstream{setting}, "https://"+gatewayName
	s.gateway = pullpass.Start(t, s.ca, config)
	s.gatewayRelay = relay.Start(t, gatewayAddress+":443", s.gateway.GatewayAddress)
}

// push puts an image into each repository.
func (s *site) push(t *testing.T, repositories ...string) {
	t.Helper()
	for _, repository := range repositories {
		ref := testenv.Value(name.NewTag(registryName + "/" + repository + ":v1"))(t)
		testenv.Must(t, remote.Write(ref, testenv.Value(random.Image(64, 1))(t), remote.WithTransport(s.ca.Transport(t)),
			remote.WithAuth(&authn.Basic{Username: "serviceaccount", Password: s.token(t, registryName, "builders")})))
	}
}

// token is that of a pod in a namespace.
func (s *site) token(t *testing.T, audience, namespace string) string {
	t.Helper()
	token := s.issuer.Token(t, audience, namespace, "web")
	s.proxy.NeverLog(token)
	return token
}

// login has the programs present a password to both registries; empty: none.
func (s *site) login(t *testing.T, password string) {
	t.Helper()
	s.password = password
	config := "{}"
	if password != "" {
		auth := base64.StdEncoding.EncodeToString([]byte("serviceaccount:" + password))
		config = fmt.Sprintf(`{"auths": {%q: {"auth": %q}, %q: {"auth": %q}}}`, registryName, auth, gatewayName, auth)
	}
	testenv.Must(t, os.MkdirAll(filepath.Join(s.dir, ".docker"), 0o700))
	testenv.WriteFile(t, filepath.Join(s.dir, ".docker", "config.json"), config)
}

// run runs a command as a person types it, and returns all that it prints.
func (s *site) run(t *testing.T, command string) string {
	t.Helper()
	if command == "docker logs registry" { // it is a process here
		return s.answering.Log()
	}
	if command == "journalctl --unit kubelet" { // likewise
		return s.kubeletLog(t)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
	cmd.Dir = s.dir
	config := filepath.Join(s.dir, ".docker", "config.json")
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"), "HOME="+s.dir, "SSL_CERT_FILE="+s.ca.File, "NO_COLOR=1",
		"REGISTRY_AUTH_FILE="+config, "HELM_REGISTRY_CONFIG="+config, "DOCKER_BUILDKIT=1", "TOKEN="+s.password, "CONTAINERD_ADDRESS="+containerdSocket, "KUBECONFIG="+s.kubeconfig)
	cmd.Env = append(cmd.Env, s.job...)
	cmd.WaitDelay = 10 * time.Second
	output, _ := cmd.CombinedOutput() // the caller wants a failure
	return string(output)
}
