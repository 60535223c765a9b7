package e2e

import (
	"bytes"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	// regionDelay is how long an answer takes from one region to another.
	regionDelay = 150 * time.Millisecond
	// revokedLimit is that of docs/how-to/redis.md, of the command that writes to three regions, and of a busy machine.
	revokedLimit = 10 * time.Second
)

// region is one of three: Pullpass with a Redis and a key of its own.
type region struct {
	name  string
	proxy *pullpass.Proxy
	redis *redis.Server
	// far is the way to its Redis from where the administrator is.
	far *relay.Relay
	// administrator is the configuration with which Redis is called from there.
	administrator string
}

// testRegions has one cluster, in the first region, and a registry that trusts one CA, whose keys no region shares.
func testRegions(t *testing.T, s *site) {
	ca := certs.NewCA(t, "token-ca")
	access, toCluster := s.access, s.Relay(t)
	toCluster.Slow(regionDelay)
	var all []*region
	for i, name := range []string{"eu", "us", "ap"} {
		r := &region{name: name, redis: redis.Start(t)}
		r.far = relay.Start(t, "127.0.0.1:0", r.redis.Address)
		if i > 0 {
			access = s.AccessThrough(t, toCluster)
			r.far.Slow(regionDelay)
		}
		key := ca.Signer(t, "key-"+name)
		r.proxy = s.pullpass(t, pullpass.Config{
			Clusters: []pullpass.Cluster{s.cluster("e2e", access)}, Policy: livePolicy, Service: service,
			Signing: pullpass.Signing{CertFile: key.CertFile, KeyFile: key.KeyFile, CAFile: ca.File},
			State:   pullpass.State{Redis: pullpass.Redis{Addresses: []string{r.redis.Address}}},
		})
		content := strings.ReplaceAll(testenv.ReadFile(t, r.proxy.ConfigFile), r.redis.Address, r.far.Address)
		r.administrator = testenv.WriteFile(t, strings.TrimSuffix(r.proxy.ConfigFile, ".yaml")+"-from-afar.yaml", content)
		all = append(all, r)
	}
	images := registry.Start(t, s.ca, registry.Config{
		Program: programs.Distribution(t), Realm: all[0].proxy.URL + "/token", Service: service, Issuer: pullpass.Issuer, RootCertBundle: []byte(testenv.ReadFile(t, ca.File)),
	})

	s.CreateNode(t, "region-1", nil)
	token := s.proofWorkload(t, "regions", "region-1")
	client := &http.Client{Transport: s.ca.Transport(t)}
	for _, r := range all {
		answer := r.proxy.Get(t, service, token, own("regions"))
		expect(t, r.name, answer, own("regions"))
		req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+images.Host+"/v2/regions/web/tags/list", nil))(t)
		req.Header.Set("Authorization", "Bearer "+answer.Body.Token)
		resp := testenv.Value(client.Do(req))(t)
		if resp.Body.Close(); resp.StatusCode != http.StatusNotFound { // accepted, and nothing was pushed
			t.Errorf("%s: the registry answers %s", r.name, resp.Status)
		}
	}

	configs := func() (args []string) {
		for _, r := range all {
			args = append(args, "--config", r.administrator)
		}
		return args
	}()
	target := []string{"--service-account", "e2e/regions/" + puller}
	command(t, append(append([]string{"revoke", "--reason", "found in a log"}, target...), configs...)...)
	for _, r := range all {
		within(t, revokedLimit, r.name+" refuses", func() bool { return outcome(r.proxy.Get(t, service, token, own("regions"))) == "403 revoked" })
	}
	command(t, append(append([]string{"revoke", "undo"}, target...), configs...)...)
	for _, r := range all {
		within(t, revokedLimit, r.name+" grants again", func() bool { return outcome(r.proxy.Get(t, service, token, own("regions"))) == own("regions") })
	}

	// A region that cannot be reached is named, and the others are told.
	all[1].far.Cut()
	revoke := exec.CommandContext(t.Context(), programs.Pullpass(t), append(append([]string{"revoke", "--reason", "found in a log"}, target...), configs...)...)
	var stderr bytes.Buffer
	revoke.Stderr = &stderr
	if err := revoke.Run(); err == nil || !strings.Contains(stderr.String(), all[1].administrator+": ") || strings.Contains(stderr.String(), all[2].administrator+": ") {
		t.Errorf("%v: %s", err, &stderr)
	}
	for _, r := range []*region{all[0], all[2]} {
		within(t, revokedLimit, r.name+" refuses", func() bool { return outcome(r.proxy.Get(t, service, token, own("regions"))) == "403 revoked" })
	}
	expect(t, "the region that was not told", all[1].proxy.Get(t, service, token, own("regions")), own("regions"))

	// Changes of the cluster come from afar, and count everywhere.
	s.Delete(t, "/api/v1/namespaces/regions/pods/web")
	within(t, reconnectLimit, "a deleted pod is refused in another region", func() bool {
		return outcome(all[1].proxy.Get(t, service, token, own("regions"))) == "403 pod_gone"
	})
}
