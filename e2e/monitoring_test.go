package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const monitoringDir = "../deploy/monitoring/"

// TestAlertRules lets promtool judge the rules, and make each of them fire and be silent.
func TestAlertRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), programs.Promtool(t), args...)
		cmd.Dir = monitoringDir
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}

// TestDashboard lets a real Prometheus scrape Pullpass, with and without native histograms, and answer what the dashboard asks.
func TestDashboard(t *testing.T) {
	w := &world{ca: certs.NewCA(t, "registry-ca")}
	w.issuer = issuer.Start(t, w.ca)
	w.proxy = pullpass.Start(t, w.ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "e2e", Issuer: w.issuer.URL, Audiences: []string{audience}, Discovery: pullpass.Discovery{CAFile: w.ca.File},
		}},
		Policy: clientPolicy, Service: service, Signing: pullpass.Signing{Trust: "certificate"},
		State: pullpass.State{Redis: pullpass.Redis{Addresses: []string{redis.Start(t).Address}}, Replay: "audit"},
	})
	ask := func() {
		w.proxy.Get(t, service, w.token(t, namespace), "repository:team-a/app:pull")
		w.proxy.Get(t, service, w.issuer.Token(t, "another.audience", namespace, puller), "repository:team-a/app:pull")
	}
	for name, flags := range map[string][]string{"classic histograms": nil, "native histograms": {"--enable-feature=native-histograms"}} {
		t.Run(name, func(t *testing.T) {
			p := startPrometheus(t, w.proxy, flags...)
			// A rate needs two scrapes, and something between them.
			shows := func(expr string) bool {
				return testenv.Poll(time.Minute, func() bool { ask(); return p.query(t, expr) > 0 })
			}
			if !shows(`sum(rate(pullpass_exchanges_total[1m])) > 0`) {
				t.Fatal("nothing is scraped")
			}
			for _, panel := range dashboardPanels(t) {
				for _, target := range panel.Targets {
					if p.query(t, target.Expr) == 0 && !emptyPanels[panel.Title] && !shows(target.Expr) {
						t.Errorf("panel %q is empty: %s", panel.Title, target.Expr)
					}
				}
			}
			if rules := p.rules(t); rules < 20 {
				t.Errorf("%d rules are loaded", rules)
			}
		})
	}
}

// emptyPanels have nothing to show while nothing is wrong, or without a connection to an API server, a gateway, or the controller of
// pull secrets.
var emptyPanels = map[string]bool{
	"Limited": true, "Callers that are not the node of their token": true, "Replays": true, "Without a token, or with a secret-based one": true,
	"Silence of API servers": true, "Objects asked for by name": true, "Ends in": true, "Readings of files that failed": true,
	"Audit log and events on pods":         true,
	"Requests at the gateway, by upstream": true, "Not passed on, or not to the end": true, "State of the upstreams": true, "Bytes through the gateway": true,
	"Time at the gateway, 90 %": true, "Silence of upstreams": true, "Token endpoints of upstreams": true,
	"Pull secrets": true, "What is written for pull secrets": true, "Status of policy objects": true,
}

type dashboardPanel struct {
	Title   string
	Targets []struct{ Expr string }
}

func dashboardPanels(t *testing.T) []dashboardPanel {
	t.Helper()
	content := testenv.ReadFile(t, monitoringDir+"dashboard.json")
	var dashboard struct{ Panels []dashboardPanel }
	testenv.Must(t, json.Unmarshal([]byte(content), &dashboard))
	if len(dashboard.Panels) < 20 {
		t.Fatalf("%d panels", len(dashboard.Panels))
	}
	return dashboard.Panels
}

type prometheus struct {
	url    string
	client *http.Client
}

// startPrometheus scrapes Pullpass each second, with the alert rules.
func startPrometheus(t *testing.T, proxy *pullpass.Proxy, flags ...string) *prometheus {
	t.Helper()
	dir, address := t.TempDir(), process.FreeAddress(t)
	rules := testenv.Value(filepath.Abs(monitoringDir + "alerts.yaml"))(t)
	file := filepath.Join(dir, "prometheus.yaml")
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
- job_name: pullpass
  static_configs: [{targets: [%q]}]
`, rules, proxy.AdminAddress())
	testenv.WriteFile(t, file, config)
	server := process.Start(t, exec.Command(programs.Prometheus(t), append([]string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address,
	}, flags...)...))
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	p := &prometheus{url: "http://" + address, client: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
	server.Await(t, 2*time.Minute, func(ctx context.Context) error { return p.get(ctx, "/-/ready", nil) })
	return p
}

// query returns how many series answer an expression of the dashboard.
func (p *prometheus) query(t *testing.T, expr string) int {
	t.Helper()
	expr = strings.NewReplacer("$__rate_interval", "1m", "$cluster", ".*", "$service", ".*").Replace(expr)
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	if err := p.get(t.Context(), "/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return len(answer.Data.Result)
}

func (p *prometheus) rules(t *testing.T) (rules int) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct{ Rules []json.RawMessage }
		}
	}
	testenv.Must(t, p.get(t.Context(), "/api/v1/rules", &answer))
	for _, g := range answer.Data.Groups {
		rules += len(g.Rules)
	}
	return rules
}

func (p *prometheus) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
