package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// fetchLimit covers the shortest time between two key fetches that unknown keys cause (about 10 s, with jitter).
const fetchLimit = 60 * time.Second

func clusterConfig(c *cluster.Cluster, discovery pullpass.Discovery) pullpass.Config {
	return pullpass.Config{
		Clusters: []pullpass.Cluster{{Name: "e2e", Issuer: c.Issuer, Audiences: []string{audience}, Discovery: discovery}},
		Policy:   policy,
		Service:  service,
	}
}

// podToken requests what the kubelet does.
func podToken(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	return c.Token(t, cluster.TokenRequest{
		Namespace: namespace, ServiceAccount: puller, Audiences: []string{audience},
		Bound: &cluster.Bound{Kind: "Pod", Name: "scheduled", UID: c.Get(t, pods+"/scheduled").UID()},
	})
}

// TestAPIServerDiscovery reads the keys of a real API server, which by default answers only ServiceAccounts.
func TestAPIServerDiscovery(t *testing.T) {
	c := cluster.Start(t, certs.NewRSAKey(t))
	createWorkload(t, c)
	ca := certs.NewCA(t, "pullpass-ca")
	// The credential that Pullpass, as a pod with a projected token, presents to the API server.
	bearer := c.Token(t, cluster.TokenRequest{Namespace: namespace, ServiceAccount: puller})
	bearerFile := testenv.WriteFile(t, filepath.Join(t.TempDir(), "bearer"), bearer+"\n")
	token := podToken(t, c)

	// Nothing is known about the token then: neither that it is good nor that it is bad.
	unavailable := func(t *testing.T, proxy *pullpass.Proxy) {
		t.Helper()
		answer := proxy.Post(t, service, token, asked...)
		if answer.Status != http.StatusServiceUnavailable || answer.Audit.Reason != "issuer_unavailable" {
			t.Errorf("status %d, reason %q; want 503, issuer_unavailable", answer.Status, answer.Audit.Reason)
		}
		if len(answer.Body.Errors) != 1 || answer.Body.Errors[0].Code != "UNAVAILABLE" || answer.Body.Token != "" {
			t.Errorf("body %+v", answer.Body)
		}
		if answer.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	passes := func(t *testing.T, proxy *pullpass.Proxy) {
		t.Helper()
		if answer := proxy.Post(t, service, token, asked...); answer.Status != http.StatusOK {
			t.Errorf("status %d, audit %+v", answer.Status, answer.Audit)
		}
	}

	waiting := pullpass.Start(t, ca, clusterConfig(c, pullpass.Discovery{CAFile: c.CA.File}))
	t.Run("closed, without a bearer token", func(t *testing.T) { unavailable(t, waiting) })
	t.Run("closed, with a bearer token", func(t *testing.T) {
		passes(t, pullpass.Start(t, ca, clusterConfig(c, pullpass.Discovery{CAFile: c.CA.File, TokenFile: bearerFile})))
	})
	t.Run("with a bearer token that the API server refuses", func(t *testing.T) {
		bad := testenv.WriteFile(t, filepath.Join(t.TempDir(), "bearer"), bearer[:len(bearer)-8]+strings.Repeat("A", 8))
		unavailable(t, pullpass.Start(t, ca, clusterConfig(c, pullpass.Discovery{CAFile: c.CA.File, TokenFile: bad})))
	})

	c.OpenDiscovery(t)
	t.Run("open", func(t *testing.T) {
		passes(t, pullpass.Start(t, ca, clusterConfig(c, pullpass.Discovery{CAFile: c.CA.File})))
	})
	t.Run("open, but another CA", func(t *testing.T) {
		unavailable(t, pullpass.Start(t, ca, clusterConfig(c, pullpass.Discovery{CAFile: ca.File})))
	})
	t.Run("opened while Pullpass ran", func(t *testing.T) {
		testenv.Await(t, fetchLimit, "the key is fetched once the API server shows it", func() bool { return waiting.Post(t, service, token, asked...).Status == http.StatusOK })
	})
}
