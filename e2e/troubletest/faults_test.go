package troubletest

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

func expired(t *testing.T, s *site) {
	s.loginWith(t, func(claims map[string]any) { shift(claims, -2*time.Hour) })
}

func notYetValid(t *testing.T, s *site) {
	s.loginWith(t, func(claims map[string]any) { shift(claims, 5*time.Minute) })
}

// shift makes a token as an issuer with another clock makes it.
func shift(claims map[string]any, by time.Duration) {
	for _, name := range []string{"iat", "nbf", "exp"} {
		claims[name] = claims[name].(int64) + int64(by.Seconds())
	}
}

// notBound makes a token as "kubectl create token" does without a pod.
func notBound(t *testing.T, s *site) {
	s.loginWith(t, func(claims map[string]any) {
		kubernetes := claims["kubernetes.io"].(map[string]any)
		delete(kubernetes, "pod")
		delete(kubernetes, "node")
	})
}

// noNode makes a token as Kubernetes before 1.32 does.
func noNode(t *testing.T, s *site) {
	s.loginWith(t, func(claims map[string]any) { delete(claims["kubernetes.io"].(map[string]any), "node") })
}

// notTheNode has a Pullpass answer to which nodes prove themselves by a certificate. The clients have none.
func notTheNode(t *testing.T, s *site) {
	config := s.config
	config.Clusters = slices.Clone(config.Clusters)
	for i, file := range []string{s.ca.File, s.cluster.CA.File} {
		config.Clusters[i].Node.Proof = pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: file}
	}
	s.endpoint(t, pullpass.StartReady(t, s.ca, config).Address())
}

// noJobToken is a CI job without the permission to have a token.
func noJobToken(t *testing.T, s *site) {
	testenv.WriteFile(t, filepath.Join(s.dir, ".docker", "config.json"), fmt.Sprintf(`{"credHelpers": {%q: "pullpass"}}`, registryName))
	s.job = []string{"GITHUB_ACTIONS=true", "PULLPASS_REGISTRIES=" + registryName}
	t.Cleanup(func() { s.job = nil })
}

func (s *site) loginWith(t *testing.T, change func(claims map[string]any)) {
	t.Helper()
	token := s.issuer.ChangedToken(t, registryName, "team-a", "web", change)
	s.proxy.NeverLog(token)
	s.login(t, token)
}

// limited has a Pullpass answer that lets the ServiceAccount ask once.
func limited(t *testing.T, s *site) {
	config := s.config
	config.PerServiceAccount = pullpass.Limit{Rate: 0.001, Burst: 1}
	proxy := pullpass.Start(t, s.ca, config)
	proxy.Get(t, registryName, s.password, "repository:team-a/web:pull")
	s.endpoint(t, proxy.Address())
}

// otherKey has a registry that trusts another CA than Pullpass's.
func otherKey(t *testing.T, s *site) {
	other := certs.NewCA(t, "other-ca")
	s.atRegistry(t, registry.Config{RootCertBundle: []byte(testenv.ReadFile(t, other.File))})
}

func otherService(t *testing.T, s *site) { s.atRegistry(t, registry.Config{Service: "registry"}) }

func noName(t *testing.T, s *site) {
	s.atRegistry(t, registry.Config{Realm: "https://token.example.com/token"})
}

func noEndpoint(t *testing.T, s *site) {
	s.atRegistry(t, registry.Config{Realm: "https://" + registryName + ":8444/token"})
}

// otherCA has a token endpoint whose certificate the clients do not trust.
func otherCA(t *testing.T, s *site) {
	pair := certs.NewCA(t, "unknown-ca").Server(t, "pullpass", registryName)
	listener := testenv.Value(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context()) // the client ends it
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		testenv.Must(t, listener.Close())
		<-done
	})
	s.endpoint(t, listener.Addr().String())
}

// noIssuer has a Pullpass answer whose cluster is down.
func noIssuer(t *testing.T, s *site) {
	config := s.config
	closed := testenv.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	testenv.Must(t, closed.Close())
	config.Clusters = []pullpass.Cluster{config.Clusters[0]}
	config.Clusters[0].Issuer = "https://" + closed.Addr().String()
	proxy := pullpass.Start(t, s.ca, config)
	s.loginWith(t, func(claims map[string]any) { claims["iss"] = config.Clusters[0].Issuer })
	s.endpoint(t, proxy.Address())
}

func noUpstream(t *testing.T, s *site) {
	s.upstreamRelay.Cut()
	t.Cleanup(s.upstreamRelay.Restore)
}

// endpoint has another server answer at the address of the token endpoint until the test ends.
func (s *site) endpoint(t *testing.T, address string) {
	t.Helper()
	s.tokenRelay.To(address)
	t.Cleanup(func() { s.tokenRelay.To(s.proxy.Address()) })
}

// atRegistry has another registry answer at its address until the test ends.
func (s *site) atRegistry(t *testing.T, config registry.Config) {
	t.Helper()
	config.ReadOnlyStorage = s.registry.Storage
	s.answering = s.startRegistry(t, config)
	s.registryRelay.To(s.answering.Address())
	t.Cleanup(func() {
		s.answering = s.registry
		s.registryRelay.To(s.registry.Address())
	})
}
