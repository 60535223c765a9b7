package server

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// reconfigure changes the configuration and waits until it is in use.
func (p *proxy) reconfigure(t *testing.T, old, new string) {
	t.Helper()
	before := p.service.current.Load().cfg
	p.Configure(t, old, new)
	testkit.Eventually(t, "the new configuration is in use", func() bool { return p.service.current.Load().cfg != before })
}

// The label of the reload metrics has the names of all groups.
func TestMetricsDocumentNamesTheFileGroups(t *testing.T) {
	t.Parallel()
	_, line, _ := strings.Cut(testkit.Read(t, "../../docs/reference/metrics.md"), "\n- `name`: ")
	line, _, _ = strings.Cut(line, "\n")
	names := func(pattern, text string) []string {
		var all []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		return slices.Sorted(slices.Values(all))
	}
	groups, documented := names(`\w+Group += "(.+?)"`, testkit.Read(t, "reload.go")), names("`(.+?)`", line)
	if len(groups) == 0 || !slices.Equal(groups, documented) {
		t.Errorf("reload.go has %q, metrics.md %q", groups, documented)
	}
}

// Every setting that may change while the proxy runs does so, and what did not
// change goes on: nothing is listed, fetched or verified again.
func TestConfigurationReload(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\nlimits: {perServiceAccount: {rate: 50, burst: 200}}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	testkit.Eventually(t, "everything is watched", func() bool { _, watches := api.Traffic(); return watches == 3 })
	raw := kubetest.Token(t, "https://issuer.example.com")
	first := p.Expect(t, raw, http.StatusOK, "")
	lists, watches := api.Traffic()
	before := p.service.current.Load()
	fetches := before.verifier.Status()[0].Fetches

	p.reconfigure(t, "rate: 50, burst: 200", "rate: 0.001, burst: 2")
	if e := p.Expect(t, raw, http.StatusOK, ""); !e.Reused || e.IssuedID != first.IssuedID {
		t.Errorf("the issued token was forgotten: %+v", e)
	}
	p.Expect(t, raw, http.StatusOK, "")
	p.Expect(t, raw, http.StatusTooManyRequests, "limited_service_account")
	p.reconfigure(t, "rate: 0.001, burst: 2", "rate: 1000, burst: 10000") // from empty buckets on
	testkit.Eventually(t, "the new limit counts", func() bool { return p.Status(t, raw) == http.StatusOK })
	p.reconfigure(t, "server: {", "server: {trustedProxies: [127.0.0.1/32], ")
	if e := p.Expect(t, raw, http.StatusOK, ""); e.Caller != "127.0.0.1" {
		t.Errorf("caller %s", e.Caller)
	}
	if got := p.service.current.Load().cfg.Server.TrustedProxies; !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}) {
		t.Errorf("trusted proxies %v", got)
	}
	p.reconfigure(t, proxytest.PolicyInUse, "state: {replay: audit}\n"+proxytest.PolicyInUse)
	if e := p.Expect(t, raw, http.StatusOK, ""); e.Replay == nil || e.Replay.Reason != exchange.ReplayCallerUnknown {
		t.Errorf("replay %+v", e.Replay)
	}
	p.reconfigure(t, "admin: {", "admin: {pprof: true, ")
	if status, _ := p.Fetch(t, "http://"+p.Admin+"/debug/pprof/cmdline"); status != http.StatusOK {
		t.Errorf("profiles: %d", status)
	}
	p.reconfigure(t, "issuer: pullpass.example.com", "issuer: other.example.com")
	if e := p.Expect(t, raw, http.StatusOK, ""); e.Reused {
		t.Error("a token of the issuer that is not configured any more was issued")
	}
	p.reconfigure(t, "audiences: [registry.example.com]", "audiences: [vault]")
	p.Expect(t, raw, http.StatusUnauthorized, "token_audience")
	p.reconfigure(t, "audiences: [vault]", "audiences: [registry.example.com]")
	p.Expect(t, raw, http.StatusOK, "")

	if l, w := api.Traffic(); l != lists || w != watches {
		t.Errorf("%d lists and %d watches, and before %d and %d", l, w, lists, watches)
	}
	after := p.service.current.Load()
	if after.objects.Connected[0] != before.objects.Connected[0] || after.tls != before.tls || after.keys["registry.example.com"] != before.keys["registry.example.com"] {
		t.Error("a part was made anew, and nothing about it was changed")
	}
	// Twice the audiences were changed, and with them what Run fetches for.
	if s := after.verifier.Status()[0]; s.Fetches > fetches+3 || s.Keys != 1 {
		t.Errorf("keys were fetched %d times, before %d times", s.Fetches, fetches)
	}
	p.Metric(t, `pullpass_exchanges_total{cluster="prod",grant_type="basic",reason="",result="granted",service="registry.example.com"} 8`)

	p.reconfigure(t, "- name: prod", "- name: renamed")
	testkit.Eventually(t, "the cluster has its new name", func() bool { return p.Status(t, raw) == http.StatusOK })
	if e := p.LastEvent(t); e.Reused || e.Cluster != "renamed" {
		t.Errorf("a token of the cluster's former name was issued: %+v", e)
	}
}

// A cluster that comes counts when everything is known of it, and one that goes
// counts for nothing from then on.
func TestClustersComeAndGo(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := startServiceWith(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", map[string]string{"kubeconfig": api.Kubeconfig(), "policy.yaml": proxytest.PolicyFor("{namespace}/**") + proxytest.AnnotationRule})
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	first, second := kubetest.Token(t, "https://issuer.example.com"), kubetest.Token(t, "https://second.example.com")
	p.Expect(t, first, http.StatusOK, "")
	p.Expect(t, second, http.StatusUnauthorized, "token_unknown_issuer")

	p.reconfigure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\nregistries:")
	p.Expect(t, second, http.StatusOK, "")
	if c := p.service.current.Load().objects.Connected[0]; !kubernetesCheck("", c.Status()).Healthy {
		t.Errorf("it counts before it is known: %+v", c.Status())
	}
	if gets := p.service.current.Load().objects.Connected[0].Status().Gets; gets.Found != 0 {
		t.Errorf("%d objects were asked for", gets.Found)
	}
	// A kind counts once it is listed; its watch opens after that.
	testkit.Eventually(t, "the three kinds are watched", func() bool { _, watches := api.Traffic(); return watches == 3 })
	p.Metric(t, `pullpass_kubernetes_synced{cluster="second",resource="pods"} 1`)
	p.Metric(t, `pullpass_issuer_keys{cluster="second"} 1`)
	testkit.Eventually(t, "the file is watched", func() bool { // some time after the configuration counts
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		return strings.Contains(metrics, `pullpass_reloads_total{name="kubeconfig/second",result="success"} 1`)
	})

	p.reconfigure(t, proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\n", "")
	p.Expect(t, second, http.StatusUnauthorized, "token_unknown_issuer")
	p.Expect(t, first, http.StatusOK, "")
	testkit.Eventually(t, "the API server is left alone", func() bool { _, watches := api.Traffic(); return watches == 0 })
	_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
	if strings.Contains(metrics, `second"`) {
		t.Errorf("/metrics still tells of the cluster:\n%s", metrics)
	}
	p.Metric(t, `pullpass_exchanges_total{cluster="prod",grant_type="basic",reason="",result="granted",service="registry.example.com"} 2`)
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); strings.Contains(body, `second"`) {
		t.Errorf("/readyz: %s", body)
	}
}

// A cluster that is new may be down: its own trouble. One that works must not
// stop to because of what the new configuration says.
func TestAReloadTakesNothingAway(t *testing.T) {
	t.Parallel()
	api, down := kubetest.NewAPIServer(t), kubetest.NewAPIServer(t)
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": api.Kubeconfig(), "down": down.Kubeconfig(), "gone": down.Kubeconfig()})
	p.service.settleTimeout = 200 * time.Millisecond
	p.start(t)
	down.Close()
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	testkit.Eventually(t, "everything is watched", func() bool { _, watches := api.Traffic(); return watches == 3 })
	first, second := kubetest.Token(t, "https://issuer.example.com"), kubetest.Token(t, "https://second.example.com")

	p.reconfigure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: gone}\nregistries:")
	p.Expect(t, second, http.StatusServiceUnavailable, "kubernetes_unavailable")
	p.Expect(t, first, http.StatusOK, "")

	for _, change := range []struct{ old, new, fault string }{
		{"kubeconfigFile: kubeconfig}", "kubeconfigFile: down}", "kubernetes: prod works as it is, and would not with what is new: "},
		{"discovery: {jwksFile: issuer.json}\n  kubernetes: {kubeconfigFile: kubeconfig}", "discovery: {jwksFile: missing.json}\n  kubernetes: {kubeconfigFile: kubeconfig}", "issuers: prod works as it is"},
	} {
		p.Configure(t, change.old, change.new)
		p.Refuses(t, "config", change.fault)
		p.Expect(t, first, http.StatusOK, "")
		p.Configure(t, change.new, change.old)
		p.Accepts(t, "config")
	}
	if _, watches := api.Traffic(); watches != 3 {
		t.Errorf("%d watches", watches)
	}
}

// The users of one namespace can make the list of RepositoryAccess objects slow. Like a start, a reload takes it up
// nevertheless. A list that fails is a loss, and so is one of AccessPolicies, which may have denials.
func TestAReloadWithObjectsThatAreNotListed(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	const one, other = "objects: {policies: true, requests: true, within: ['team-a/**']}", "objects: {policies: true, requests: true, within: ['team-b/**']}"
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig, "+one+"}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	p.service.settleTimeout = time.Second
	p.start(t)
	testkit.Eventually(t, "everything is listed", func() bool { return p.service.current.Load().checkClusters()[0].Healthy })
	slow := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	forbidden := kubetest.Status(http.StatusForbidden, "Forbidden", "no")

	for _, refused := range []struct {
		resource string
		answer   http.HandlerFunc
	}{{"repositoryaccesses", forbidden}, {"accesspolicies", forbidden}, {"accesspolicies", slow}} {
		for _, verb := range []string{"list ", "watch "} {
			api.Fail(verb+refused.resource, refused.answer)
		}
		p.Configure(t, one, other)
		p.Refuses(t, "config", refused.resource+": ")
		p.Configure(t, other, one)
		p.Accepts(t, "config")
		for _, verb := range []string{"list ", "watch "} {
			api.Fail(verb+refused.resource, nil)
		}
	}
	api.Fail("list repositoryaccesses", slow)
	api.Fail("watch repositoryaccesses", slow)
	p.reconfigure(t, one, other)
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
}

// A configuration that does not load changes nothing, whatever is wrong with it.
func TestABadConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	testkit.Write(t, p.Dir, "bad.yaml", "nonsense")
	for _, change := range []struct{ old, new, fault string }{
		{"server: {", "server: {unknown: 1, ", "server.unknown"},
		{"audiences: [registry.example.com]", "audiences: []", "clusters[0].audiences"},
		{"keyFile: tls.key}", "keyFile: tls.key, clientCAFile: missing.crt}", "missing.crt"},
		{proxytest.PolicyInUse, "policyFiles: [bad.yaml]", "bad.yaml"},
		{"manifestFiles: [serviceaccounts.yaml]", "manifestFiles: [missing.yaml]", "missing.yaml"},
		{"issuer: pullpass.example.com}", "issuer: pullpass.example.com, signing: {trust: jwks, keyFile: missing.key}}", "missing.key"},
		{"kubernetes: {manifestFiles: [serviceaccounts.yaml]}", "kubernetes: {kubeconfigFile: bad.yaml}", "bad.yaml"},
	} {
		p.Configure(t, change.old, change.new)
		p.Refuses(t, "config", change.fault)
		p.Expect(t, raw, http.StatusOK, "")
		p.Configure(t, change.new, change.old)
		p.Accepts(t, "config")
	}
	if p.service.current.Load().cfg != p.service.started {
		t.Error("another configuration is in use")
	}
}

// A configuration counts together with the policy that is there with it: a cluster that is new must
// not get what the rules before allow, also while the policy that belongs to it is invalid.
func TestAConfigurationComesWithItsPolicy(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	first, second := kubetest.Token(t, "https://issuer.example.com"), kubetest.Token(t, "https://second.example.com")
	testkit.Write(t, p.Dir, "policy.yaml", "nonsense")
	p.Configure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\nregistries:")
	p.Refuses(t, "config", "policy.yaml")
	p.Expect(t, first, http.StatusOK, "")
	p.Expect(t, second, http.StatusUnauthorized, "token_unknown_issuer")

	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**")+"deny:\n- {name: not-yet, subjects: [{clusters: [second]}]}\n")
	testkit.Eventually(t, "the denial counts, and nothing before it", func() bool {
		status := p.Status(t, second)
		if status != http.StatusUnauthorized && status != http.StatusForbidden {
			t.Errorf("the new cluster gets %d", status)
		}
		return status == http.StatusForbidden
	})
	p.Expect(t, first, http.StatusOK, "")
	p.Accepts(t, "config")
	for _, g := range p.service.watched(p.service.current.Load()) {
		if g.Name == configGroup && !slices.Contains(g.Paths, filepath.Join(p.Dir, "policy.yaml")) {
			t.Error("a policy that is corrected waits for a poll")
		}
	}
}

// A policy is judged with the identities of the configuration, as at the start.
func TestAPolicyIsReadForNewIdentities(t *testing.T) {
	t.Parallel()
	p := newTestService(t, ciIdentity, map[string]string{"policy.yaml": proxytest.PolicyFor("{namespace}/**") + `- name: jobs
  subjects: [{identities: [ci]}]
  allow: [{repositories: ["{claims.repository}/**"], actions: [pull]}]
`})
	p.reconcile(t)
	p.Configure(t, "profile: github", "profile: gitlab")
	if err := p.service.reloadConfig(); err == nil || !strings.Contains(err.Error(), "{claims.repository} is not a path in the tokens of identity \"ci\"") {
		t.Errorf("a profile without the claim of a rule: %v", err)
	}
}

// The rules of a policy that changes while a configuration gets ready count with that configuration,
// its denials at once.
func TestAPolicyChangesWhileAConfigurationGetsReady(t *testing.T) {
	t.Parallel()
	p, api := settling(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)
	p.Configure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\nregistries:")
	before := p.service.current.Load().policy
	deny := "deny:\n- {name: quarantine, subjects: [{namespaces: [team-a]}]}\n"
	for _, corrupt := range []bool{true, false} {
		testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("before/**"))
		ended := listing(t, api, p.service.reloadConfig)
		testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("next/**")+deny)
		testkit.Must(t, p.service.reloadPolicy())
		next := testkit.Value(setup.LoadPolicy(p.service.current.Load().cfg))(t)
		onlyDenials := func() bool {
			return p.service.current.Load().exchanger.Policy().Revision() == before.AndDenials(next).Revision()
		}
		if !onlyDenials() {
			t.Error("more than denials, or less")
		}
		if corrupt {
			testkit.Write(t, p.Dir, "policy.yaml", "nonsense")
		}
		api.FailLists(nil)
		switch err := <-ended; {
		case (err != nil) != corrupt:
			t.Errorf("a policy that is corrupt (%t): %v", corrupt, err)
		case corrupt && !onlyDenials():
			t.Error("more than denials, or less, after the configuration was refused")
		case !corrupt:
			p.serves(t, proxytest.PolicyFor("next/**")+deny, 2)
		}
	}
}

// The rules of a policy wait while the configuration is invalid, and count when it is the one in use again.
func TestAPolicyWaitsForAValidConfiguration(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	p.displace(t, "pullpass.yaml", func(t *testing.T, name string) { testkit.Put(t, name, "nonsense") })
	p.Refuses(t, configGroup, "pullpass.yaml")
	testkit.Put(t, filepath.Join(p.Dir, "policy.yaml"), proxytest.PolicyFor("elsewhere/**"))
	testkit.Eventually(t, "it was read", func() bool { return p.service.current.Load().pending != nil })
	testkit.Eventually(t, "that it waits is said", func() bool {
		_, report := p.Fetch(t, "http://"+p.Admin+"/readyz")
		return strings.Contains(report, "only its denials apply")
	})
	p.Expect(t, raw, http.StatusOK, "")
	p.restore(t, "pullpass.yaml")
	testkit.Eventually(t, "its rules count", func() bool { return len(p.Exchange(t, "/token", raw, "repository:team-a/web:pull")) == 0 })
	if p.service.current.Load().pending != nil {
		t.Error("it waits, and serves")
	}
}

// A configuration that was changed again, or withdrawn, while it got ready does not come into use, and
// the policy that is there by then does not count with it.
func TestAConfigurationChangesAgainWhileItGetsReady(t *testing.T) {
	t.Parallel()
	p, api := settling(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)
	before := p.service.current.Load()
	first := string(testkit.Value(os.ReadFile(before.cfg.File))(t))
	for name, again := range map[string]string{"an invalid one": "nonsense", "a third one": strings.Replace(first, "registries:", proxytest.SecondCluster+"registries:", 1), "the former one": first} {
		testkit.Write(t, p.Dir, "pullpass.yaml", first)
		p.Configure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\nregistries:")
		ended := listing(t, api, p.service.reloadConfig)
		testkit.Write(t, p.Dir, "pullpass.yaml", again)
		testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("next/**"))
		testkit.Must(t, p.service.reloadPolicy())
		api.FailLists(nil)
		if err := <-ended; !errors.Is(err, errChangedAgain) {
			t.Errorf("%s: %v", name, err)
		}
		now := p.service.current.Load()
		if waits := again != first; now.cfg != before.cfg || waits != (now.policy.Revision() == before.policy.Revision()) {
			t.Errorf("%s: %d clusters, policy %s", name, len(now.cfg.Clusters), now.policy.Revision())
		}
		testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**"))
		testkit.Must(t, p.service.reloadPolicy())
	}
}

// The CA of an upstream and a trial that are replaced while a configuration gets ready are in use with it.
func TestOtherFilesChangeWhileAConfigurationGetsReady(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	registry := registrytest.NewRegistry(t, "")
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), map[string]string{"kubeconfig": api.Kubeconfig(), "trial.yaml": proxytest.PolicyFor("before/**")})
	ca := filepath.Join(g.Dir, "upstream-ca.pem")
	testkit.Put(t, ca, testkit.Value(os.ReadFile(registry.CAFile))(t))
	g.reconfigure(t, fmt.Sprintf("caFile: %q", registry.CAFile), fmt.Sprintf("caFile: %q", ca))
	g.reconfigure(t, "policyFiles:", "policyTrial: {files: [trial.yaml]}\npolicyFiles:")
	g.Configure(t, fmt.Sprintf("caFile: %q", ca), fmt.Sprintf("actions: [pull, push], caFile: %q", ca))
	asked := make(chan bool)
	api.FailLists(sync.OnceFunc(func() { close(asked) }))
	g.Configure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\n"+ciIdentity+"registries:")
	<-asked // by the watch
	testkit.Put(t, ca, testkit.Value(os.ReadFile(filepath.Join(g.Dir, "tls.crt")))(t))
	testkit.Put(t, filepath.Join(g.Dir, "trial.yaml"), proxytest.PolicyFor("next/**"))
	testkit.Eventually(t, "both were read", func() bool {
		now := g.service.current.Load()
		u := now.upstreams["ghcr.io"]
		return u.Content == setup.CAContent(&u.Settings) && now.trial.Revision() == testkit.Value(setup.LoadTrial(now.cfg))(t).Revision()
	})
	api.FailLists(nil)
	testkit.Eventually(t, "the configuration is in use", func() bool { return len(g.service.current.Load().cfg.Clusters) == 2 })
	now := g.service.current.Load()
	if u := now.upstreams["ghcr.io"]; u.Content != setup.CAContent(&u.Settings) {
		t.Error("a CA that was withdrawn is in use")
	}
	if want := testkit.Value(setup.LoadTrial(now.cfg))(t); now.trial.Revision() != want.Revision() {
		t.Error("a trial that was replaced is in use")
	}
}

// A certificate that changes while a configuration gets ready counts, also if that changes how it is used.
func TestACertificateChangesWhileAConfigurationGetsReady(t *testing.T) {
	t.Parallel()
	p, api := settling(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", nil)
	p.Configure(t, "registries:", proxytest.SecondCluster+"  kubernetes: {kubeconfigFile: kubeconfig}\nregistries:")
	p.Configure(t, "keyFile: tls.key", "keyFile: tls.key, postQuantum: true")
	ended := listing(t, api, p.service.reloadConfig)
	proxytest.WriteServingCertificate(t, p.Dir, 4711)
	testkit.Must(t, p.service.reloadTLS())
	api.FailLists(nil)
	testkit.Must(t, <-ended)
	if got := p.service.current.Load().tls.config.Certificates[0].Leaf.SerialNumber.Int64(); got != 4711 {
		t.Errorf("certificate %d", got)
	}
}

// A configuration that comes while a policy waits for annotations brings the policy that is there then.
func TestAConfigurationChangesWhileAPolicyGetsReady(t *testing.T) {
	t.Parallel()
	p, api := settling(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", nil)
	p.listEverything(t)
	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule)
	ended := listing(t, api, p.service.reloadPolicy)
	next := proxytest.PolicyFor("elsewhere/**")
	testkit.Write(t, p.Dir, "policy.yaml", next)
	p.Configure(t, "registries:", proxytest.SecondCluster+"registries:")
	testkit.Must(t, p.service.reloadConfig())
	p.serves(t, next, 2)
	api.FailLists(nil)
	testkit.Must(t, <-ended)
	p.serves(t, next, 2)
}

// settling is a service that makes changes, and can reach an API server with the file kubeconfig.
func settling(t *testing.T, kubernetes string, files map[string]string) (*proxy, *kubetest.Server) {
	t.Helper()
	api := kubetest.NewAPIServer(t)
	all := map[string]string{"kubeconfig": api.Kubeconfig()}
	maps.Copy(all, files)
	p := newTestService(t, kubernetes, all)
	p.service.settleTimeout = time.Minute
	p.reconcile(t)
	return p, api
}

// listEverything lets the connection to the API server work, and waits for its lists.
func (p *proxy) listEverything(t *testing.T) {
	t.Helper()
	connection := p.service.current.Load().objects.Connected[0]
	go connection.Run(t.Context())
	testkit.Eventually(t, "everything is listed", func() bool { return kubernetesCheck("", connection.Status()).Healthy })
}

// listing begins a reload, and returns when it waits for a list that fails.
func listing(t *testing.T, api *kubetest.Server, reload func() error) (ended chan error) {
	t.Helper()
	asked := make(chan bool)
	api.FailLists(sync.OnceFunc(func() { close(asked) }))
	ended = make(chan error)
	go func() { ended <- reload() }()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatalf("the reload ended without a list: %v", err)
	}
	return ended
}

func (p *proxy) serves(t *testing.T, file string, clusters int) {
	t.Helper()
	g := p.service.current.Load()
	want := testkit.Value(setup.ParsePolicy(g.cfg, policy.File{Name: filepath.Join(p.Dir, "policy.yaml"), Data: []byte(file)}))(t)
	if got := g.exchanger.Policy().Revision(); got != want.Revision() || len(g.cfg.Clusters) != clusters {
		t.Errorf("policy %s of %d clusters, want %s of %d", got, len(g.cfg.Clusters), want.Revision(), clusters)
	}
}

// Settings that take effect only after a restart are named.
func TestSettingsThatNeedARestart(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	for _, change := range []struct{ old, new string }{
		{"admin: {address: ", "admin: {pprof: true, address: "},
		{fmt.Sprintf("admin: {pprof: true, address: %q}", p.Admin), `admin: {pprof: true, address: "127.0.0.1:1"}`},
		{fmt.Sprintf("server: {address: %q", p.Address), `server: {address: "127.0.0.1:2"`},
		{proxytest.PolicyInUse, proxytest.PolicyInUse + "\naudit: {file: audit.log}"},
		{proxytest.PolicyInUse, `state: {redis: {addresses: ["127.0.0.1:1"]}}` + "\n" + proxytest.PolicyInUse},
	} {
		p.reconfigure(t, change.old, change.new)
	}
	p.Accepts(t, "config")
	const fields = "server.address, admin.address, state.redis, audit.file"
	if c := p.Reading(t, "config"); c.Message != "some settings count only after a restart: "+fields {
		t.Errorf("readyz says %+v", c)
	}
	testkit.Eventually(t, "the log says so", func() bool {
		return strings.Contains(p.Log.String(), `"fields":["server.address","admin.address","state.redis","audit.file"]`)
	})
	if strings.Count(p.Log.String(), "only after a restart") != 4 {
		t.Errorf("the first change needed none:\n%s", p.Log)
	}
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
}

// A kubeconfig that changes connects anew, and until that connection knows
// everything, the old one answers.
func TestKubeconfigReload(t *testing.T) {
	t.Parallel()
	old, next, down := kubetest.NewAPIServer(t), kubetest.NewAPIServer(t), kubetest.NewAPIServer(t)
	down.Close()
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": old.Kubeconfig()})
	p.service.settleTimeout = time.Second
	p.start(t)
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	raw := kubetest.Token(t, "https://issuer.example.com")
	testkit.Eventually(t, "everything is watched", func() bool { _, watches := old.Traffic(); return watches == 3 })
	p.Expect(t, raw, http.StatusOK, "")
	lists, watches := old.Traffic()
	testkit.Must(t, p.service.reloadKubeconfig("prod"))
	testkit.Must(t, p.service.reloadKubeconfig("no such cluster"))

	for content, fault := range map[string]string{"nonsense": "is not a kubeconfig", down.Kubeconfig(): "kubernetes: prod works as it is"} {
		p.Put(t, "kubeconfig", content)
		p.Refuses(t, "kubeconfig/prod", fault)
		if _, later := errors.AsType[filewatch.RetryLater](p.service.reloadKubeconfig("prod")); later != (content != "nonsense") {
			t.Errorf("of %q, tried again later: %v", fault, later)
		}
		p.Expect(t, raw, http.StatusOK, "")
		p.Put(t, "kubeconfig", old.Kubeconfig())
		p.Accepts(t, "kubeconfig/prod")
	}
	if l, w := old.Traffic(); l != lists || w != watches {
		t.Errorf("%d lists and %d watches, and before %d and %d", l, w, lists, watches)
	}

	next.Set("pods", "web-0", "spec", kubetest.Object{})
	next.Rename("pods", "web-0", "web-1") // it was deleted
	p.Put(t, "kubeconfig", next.Kubeconfig())
	testkit.Eventually(t, "the new API server counts", func() bool { return p.Status(t, raw) == http.StatusForbidden })
	if e := p.LastEvent(t); e.Reason != "pod_gone" {
		t.Errorf("event %+v", e)
	}
	testkit.Eventually(t, "the old one is left alone", func() bool { _, watches := old.Traffic(); return watches == 0 })
	p.Expect(t, kubetest.TokenWith(t, func(k kubetest.Object) { k["serviceaccount"] = kubetest.Object{"name": "web", "uid": "uid-old"} }), http.StatusForbidden, "service_account_gone")
	testkit.Eventually(t, "pods are told by the new one", func() bool { return len(next.Written()) > 0 })
}

// Denials count at once, also while the rules beside them wait for annotations.
func TestDenialsDoNotWait(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	p.start(t)
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	raw := kubetest.Token(t, "https://issuer.example.com")
	p.Expect(t, raw, http.StatusOK, "")
	asked := make(chan bool)
	api.FailLists(func() {
		select {
		case asked <- true:
		default:
		}
	})
	deny := "deny:\n- {name: quarantine, subjects: [{namespaces: [team-a]}]}\n"
	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule+deny)
	testkit.Eventually(t, "the denial counts", func() bool { return p.Status(t, raw) == http.StatusForbidden })
	<-asked // it is still waiting for the annotations
	if p.service.current.Load().pending == nil {
		t.Error("the rules do not wait")
	}
	p.Expect(t, raw, http.StatusForbidden, "subject_denied")
	// Removing the denial before the annotations are known does not wait.
	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule)
	api.FailLists(nil)
	testkit.Eventually(t, "the new policy counts", func() bool { return p.Status(t, raw) == http.StatusOK })
	testkit.Eventually(t, "its rules count", func() bool {
		g := p.service.current.Load()
		return g.pending == nil && len(g.exchanger.Policy().AnnotationKeys()) == 1
	})
}

// A policy that waits for annotations makes no newer one wait.
func TestANewerPolicyDoesNotWait(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	p.service.settleTimeout = time.Hour
	p.start(t)
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	raw := kubetest.Token(t, "https://issuer.example.com")
	api.FailLists(func() {})
	testkit.Put(t, filepath.Join(p.Dir, "policy.yaml"), proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule)
	testkit.Eventually(t, "it waits", func() bool { return p.service.current.Load().pending != nil })
	testkit.Put(t, filepath.Join(p.Dir, "policy.yaml"), proxytest.PolicyFor("{namespace}/**")+"deny:\n- {name: quarantine, subjects: [{namespaces: [team-a]}]}\n")
	testkit.Eventually(t, "the denial counts", func() bool { return p.Status(t, raw) == http.StatusForbidden })
	if p.service.current.Load().pending != nil {
		t.Error("the older one waits")
	}
}

// A policy and a trial that each read a new annotation come into use.
func TestAPolicyAndATrialWaitTogether(t *testing.T) {
	t.Parallel()
	p, api := settling(t, "  kubernetes: {kubeconfigFile: kubeconfig}\npolicyTrial: {files: [next.yaml]}\n", map[string]string{"next.yaml": proxytest.PolicyFor("before/**")})
	p.listEverything(t)
	policy := proxytest.PolicyFor("{namespace}/**") + proxytest.AnnotationRule
	testkit.Write(t, p.Dir, "policy.yaml", policy)
	testkit.Write(t, p.Dir, "next.yaml", strings.ReplaceAll(policy, "annotation: ", "annotation: other."))
	first := listing(t, api, p.service.reloadPolicy)
	second := make(chan error, 1)
	go func() { second <- p.service.reloadTrial() }()
	time.Sleep(100 * time.Millisecond)
	before, _ := api.Traffic()
	api.FailLists(nil)
	for _, ended := range []chan error{first, second} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if lists, _ := api.Traffic(); lists-before > 2 {
		t.Errorf("%d lists", lists-before)
	}
	p.serves(t, policy, 1)
}

// A trial is read like the policy, with the annotations that it needs. One that cannot be read
// keeps nothing from serving.
func TestTrialIsReloaded(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\npolicyTrial: {files: [next.yaml]}\n", map[string]string{"kubeconfig": api.Kubeconfig(), "next.yaml": "nonsense"})
	p.start(t)
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	raw := kubetest.Token(t, "https://issuer.example.com")
	p.expectTrial(t, raw, "nonsense", "")
	p.expectTrial(t, raw, proxytest.PolicyFor("elsewhere/**"), exchange.ResultNone)
	p.expectTrial(t, raw, proxytest.PolicyFor("{namespace}/**")+proxytest.AnnotationRule, "")
	if !p.service.current.Load().objects.KeepsAnnotations([]string{"pullpass.dev/repositories"}) {
		t.Error("the annotations that the trial reads are not kept")
	}
	testkit.Write(t, p.Dir, "next.yaml", "nonsense")
	p.Refuses(t, "policy-trial", "next.yaml")
	p.reconfigure(t, "policyTrial: {files: [next.yaml]}\n", "")
	p.expectTrial(t, raw, proxytest.PolicyFor("elsewhere/**"), "")
	p.reconfigure(t, proxytest.PolicyInUse, proxytest.PolicyInUse+"\npolicyTrial: {files: [next.yaml]}")
	p.expectTrial(t, raw, proxytest.PolicyFor("elsewhere/**"), exchange.ResultNone)
}

// expectTrial writes a trial and waits for its result; empty: it does not differ.
func (p *proxy) expectTrial(t *testing.T, raw, trial string, want exchange.Result) {
	t.Helper()
	testkit.Write(t, p.Dir, "next.yaml", trial)
	testkit.Eventually(t, "the trial says "+string(want), func() bool {
		p.Exchange(t, "/token", raw, "repository:team-a/web:pull")
		e := p.LastEvent(t)
		return e.Trial == nil && want == "" || e.Trial != nil && e.Trial.Result == want
	})
}

// Signing keys that are not configured any more stay published until their last
// token has ended.
func TestReplacedKeysStayPublished(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	jwks := func() string {
		t.Helper()
		_, body := p.Fetch(t, "https://"+p.Address+"/.well-known/jwks.json")
		return body
	}
	before := jwks()
	p.reconfigure(t, "issuer: pullpass.example.com}", "issuer: pullpass.example.com, tokenLifetime: 1m, signing: {managedDir: other}}")
	both := jwks()
	if strings.Count(before, `"kid"`) != 1 || strings.Count(both, `"kid"`) != 2 {
		t.Errorf("before\n%s\nand then\n%s", before, both)
	}
	if access := p.Exchange(t, "/token", kubetest.Token(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("access %v", access)
	}
	g := p.service.current.Load()
	until := g.replaced[0].until
	if left := time.Until(until); left < 5*time.Minute || left > 6*time.Minute {
		t.Errorf("published for %s", left)
	}
	if left := g.stillPublished(g.keys, until); len(left) != 0 {
		t.Errorf("%d keys are published for ever", len(left))
	}
	p.reconfigure(t, "managedDir: other", "managedDir: other, algorithm: EdDSA")
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
	if all := jwks(); strings.Count(all, `"kid"`) != 3 || strings.Count(all, `"EdDSA"`) != 1 {
		t.Errorf("with another algorithm\n%s", all)
	}
}

// TLS files of other names, and CAs of nodes that come with the configuration.
func TestTLSFilesOfAnotherName(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	testkit.Must(t, os.Mkdir(filepath.Join(p.Dir, "next"), 0o700))
	pool := proxytest.WriteServingCertificate(t, filepath.Join(p.Dir, "next"), 7)
	p.reconfigure(t, "certFile: tls.crt, keyFile: tls.key", "certFile: next/tls.crt, keyFile: next/tls.key")
	p.Client.Transport.(*http.Transport).TLSClientConfig.RootCAs = pool
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
	// The new files are watched, too.
	p.Client.Transport.(*http.Transport).TLSClientConfig.RootCAs = proxytest.WriteServingCertificate(t, filepath.Join(p.Dir, "next"), 8)
	testkit.Eventually(t, "the next certificate is served", func() bool {
		response, err := p.Client.Get("https://" + p.Address + "/certificates.pem")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.TLS.PeerCertificates[0].SerialNumber.Int64() == 8
	})
	testkit.Write(t, p.Dir, "nodes.crt", pkitest.NewAuthority(t, "nodes").Pem())
	p.reconfigure(t, "  discovery: {jwksFile: issuer.json}", "  discovery: {jwksFile: issuer.json}\n  node: {proof: {mode: enforce, methods: [certificate], clientCAFile: nodes.crt}}")
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusForbidden, "caller_not_node")
}

// SIGHUP reads everything again, whether it has changed or not.
func TestServeReadsEverythingAtSIGHUP(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n"+proxytest.SecondCluster+"  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	groups := []string{"config", "policy", "manifests", "tls", "kubeconfig/prod", "signing-keys/registry.example.com"}
	counts := func() map[string]string {
		all := map[string]string{}
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		for line := range strings.Lines(metrics) {
			if rest, ok := strings.CutPrefix(line, `pullpass_reloads_total{name="`); ok {
				if name, count, ok := strings.Cut(rest, `",result="success"} `); ok {
					all[name] = count
				}
			}
		}
		return all
	}
	testkit.Eventually(t, "everything was read once", func() bool {
		read := slices.DeleteFunc(slices.Collect(maps.Values(counts())), func(count string) bool { return count == "0" })
		_, watches := api.Traffic()
		return len(read) == len(groups) && watches == 3
	})
	before, fetches := counts(), p.service.current.Load().verifier.Status()[0].Fetches
	lists, _ := api.Traffic()
	testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	for _, group := range groups {
		testkit.Eventually(t, group+" is read again", func() bool { return counts()[group] != before[group] })
	}
	testkit.Eventually(t, "keys are fetched again", func() bool { return p.service.current.Load().verifier.Status()[0].Fetches > fetches })
	if l, _ := api.Traffic(); l != lists {
		t.Errorf("%d lists, before %d", l, lists)
	}
}
