package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A thousand reloads, of all kinds and at the same time, and not one request
// fails because of them: not those on old connections, nor those on new ones.
func TestNoRequestFailsInAThousandReloads(t *testing.T) {
	t.Parallel()
	apis := [2]*kubetest.Server{kubetest.NewAPIServer(t), kubetest.NewAPIServer(t)}
	ca := pkitest.NewAuthority(t, "signing")
	files := map[string]string{"kubeconfig": apis[0].Kubeconfig(), "signing-ca.crt": ca.Pem()}
	files["signing.crt"], files["signing.key"] = ca.Leaf(t, "signing", -time.Hour, time.Hour)
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	serving := pkitest.NewAuthority(t, "serving")
	file := p.Client.Transport.(*http.Transport).TLSClientConfig
	file.RootCAs, file.ServerName = serving.Pool(), "localhost"
	putPair := func(authority pkitest.Authority, name string) {
		cert, key := authority.Leaf(t, "localhost", -time.Hour, time.Hour)
		p.Put(t, name+".crt", cert)
		p.Put(t, name+".key", key)
	}
	putPair(serving, "tls")
	p.Configure(t, "issuer: pullpass.example.com}", "issuer: pullpass.example.com, signing: {certFile: signing.crt, keyFile: signing.key, caFile: signing-ca.crt}}")
	p.Configure(t, proxytest.PolicyInUse, proxytest.PolicyInUse+"\nlimits: {perServiceAccount: {rate: 100000, burst: 100000}}")
	p.start(t)
	testkit.Must(t, p.service.reloadConfig())
	testkit.Must(t, p.service.reloadTLS())
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })

	settings := [][2]string{
		{"burst: 100000", "burst: 90000"},
		{"server: {", "server: {trustedProxies: [192.0.2.0/24], "},
		{"audiences: [registry.example.com]", "audiences: [registry.example.com, vault]"},
		{"registries:\n", "registries:\n- {service: another.example.com, issuer: pullpass.example.com}\n"},
		{"registries:\n", proxytest.SecondCluster + "  kubernetes: {kubeconfigFile: kubeconfig}\nregistries:\n"},
		{"caFile: signing-ca.crt}", "caFile: signing-ca.crt}, tokenLifetime: 10m"},
		{proxytest.PolicyInUse, "state: {replay: enforce}\n" + proxytest.PolicyInUse},
	}
	// A reader of half of a pair fails, and tries again later. This test does not cover that.
	var pair sync.Mutex
	reload := map[string]struct {
		times int
		once  func(i int) error
	}{
		"config": {150, func(i int) error {
			change := settings[i/2%len(settings)]
			p.Configure(t, change[i%2], change[1-i%2])
			pair.Lock()
			defer pair.Unlock()
			return p.service.reloadConfig()
		}},
		"policy": {300, func(i int) error {
			rules := proxytest.PolicyFor("{namespace}/**") + strings.ReplaceAll(proxytest.AnnotationRule, "pullpass.dev/repositories", fmt.Sprintf("example.com/%d", i/30))
			p.Put(t, "policy.yaml", rules+fmt.Sprintf("deny:\n- {name: n%d, subjects: [{namespaces: [old]}]}\n", i))
			return p.service.reloadPolicy()
		}},
		"kubeconfig": {50, func(i int) error {
			p.Put(t, "kubeconfig", apis[1-i%2].Kubeconfig())
			return p.service.reloadKubeconfig("prod")
		}},
		"tls": {250, func(int) error {
			putPair(serving, "tls")
			return p.service.reloadTLS()
		}},
		"keys": {250, func(int) error {
			pair.Lock()
			putPair(ca, "signing")
			pair.Unlock()
			return p.service.current.Load().keys["registry.example.com"].Reload()
		}},
	}
	var reloading, loading sync.WaitGroup
	var done atomic.Bool
	var requests, reloaded atomic.Int64
	raw := kubetest.Token(t, "https://issuer.example.com")
	for n := range 4 {
		client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
			TLSClientConfig: file.Clone(), DisableKeepAlives: n == 0, ForceAttemptHTTP2: n == 1,
		}}
		t.Cleanup(client.CloseIdleConnections)
		loading.Go(func() {
			for !done.Load() {
				if err := exchangeOnce(client, p.Address, raw); err != nil {
					t.Errorf("after %d requests: %v", requests.Load(), err)
					return
				}
				requests.Add(1)
			}
		})
	}
	for name, kind := range reload {
		reloading.Go(func() {
			for i := range kind.times {
				if err := kind.once(i); err != nil {
					t.Errorf("%s, reload %d: %v", name, i, err)
					return
				}
				reloaded.Add(1)
			}
		})
	}
	reloading.Wait()
	done.Store(true)
	loading.Wait()
	if n := reloaded.Load(); n != 1000 {
		t.Errorf("%d reloads", n)
	}
	if requests.Load() < 100 {
		t.Errorf("only %d requests in the meantime", requests.Load())
	}
	t.Logf("%d reloads, %d requests", reloaded.Load(), requests.Load())

	// In the end, the last contents are in use, and nothing of the earlier ones is left.
	testkit.Eventually(t, "only what is in use works in the background", func() bool {
		_, first := apis[0].Traffic()
		_, second := apis[1].Traffic()
		return first == 3 && second == 0
	})
	for _, group := range p.service.watched(p.service.current.Load()) {
		p.Accepts(t, group.Name)
	}
	if access := p.Exchange(t, "/token", raw, "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("access %v", access)
	}
	p.Metric(t, fmt.Sprintf(`pullpass_exchanges_total{cluster="prod",grant_type="basic",reason="",result="granted",service="registry.example.com"} %d`, requests.Load()+1))
	if cfg, err := config.Load(filepath.Join(p.Dir, "pullpass.yaml")); err != nil || len(p.service.current.Load().cfg.Clusters) != len(cfg.Clusters) {
		t.Errorf("clusters %+v, %v", p.service.current.Load().cfg.Clusters, err)
	}
}

// exchangeOnce expects a token that opens something.
func exchangeOnce(client *http.Client, address, raw string) error {
	query := url.Values{"service": {"registry.example.com"}, "scope": {"repository:team-a/web:pull"}}
	request, err := http.NewRequest(http.MethodGet, "https://"+address+"/token?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth("serviceaccount", raw)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Token  string
		Errors []struct{ Message string }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || answer.Token == "" {
		return fmt.Errorf("%s: %+v", response.Status, answer.Errors)
	}
	return nil
}
