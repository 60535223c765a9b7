package nodetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestGatewayNodes lets pods with unchanged image names pull from registries that know nothing of Pullpass, on a node with each
// containerd, and looks for credentials that left the nodes.
func TestGatewayNodes(t *testing.T) {
	start := time.Now()
	s := startGatewaySite(t)
	for _, at := range []string{usersRegistry, tokenRegistry, redirectRegistry} {
		s.publish(t, at, "acme/app")
	}
	s.publish(t, hubRegistry, "library/acmehello")
	for _, repository := range []string{"acme/secret", "acme/server", "acme/model", "others/model", "acme/later", "acme/back", "acme/spegel"} { // what one pull brings, another does not ask for
		s.publish(t, usersRegistry, repository)
	}
	nodes := s.startGatewayNodes(t)
	s.lint(t, nodes)
	s.table.add(0, "all", "the cluster with its two nodes is ready", "", time.Since(start))
	t.Run("together", func(t *testing.T) {
		for _, n := range nodes {
			for i, scenario := range []struct {
				name, namespace string
				run             func(*testing.T, *gatewayWork)
			}{
				{"granted", "acme-web", testGatewayGranted},
				{"denied", "other", testGatewayDenied},
				{"volume", "acme-volume", testGatewayImageVolume},
				{"revoked", "acme-left", testGatewayRevoked},
				{"down", "acme-down", testUpstreamDown},
			} {
				t.Run(n.Name()+"/"+scenario.name, func(t *testing.T) {
					t.Parallel()
					w := &gatewayWork{&work{site: s.site, node: n, order: i + 1, namespace: scenario.namespace + "-" + n.Name(), since: time.Now()}, s}
					w.account(t, "puller", nil)
					scenario.run(t, w)
				})
			}
		}
	})
	t.Run("the gateway is down", func(t *testing.T) { s.testGatewayDown(t, nodes) })
	t.Run("what left the nodes", func(t *testing.T) { s.checkLeft(t, nodes) })
	t.Run("hosts.toml is rewritten", func(t *testing.T) { s.testHostsRewritten(t, nodes) })
	for _, e := range s.proxy.Replays(t) {
		t.Errorf("a replay: %+v, %+v", e, e.Replay)
	}
	s.table.add(10, "all", "all of it", "", time.Since(start))
	t.Log(s.table)
}

// lint has Pullpass judge the files that are on the nodes.
func (s *gatewaySite) lint(t *testing.T, nodes []*node.Node) {
	t.Helper()
	for _, n := range nodes {
		files := []string{n.Path("/etc/pullpass/credential-provider.yaml")}
		for _, mirror := range mirrors() {
			files = append(files, n.Path("/etc/containerd/certs.d/"+mirror+"/hosts.toml"))
		}
		args := append(mirrorFlags(), "--lint")
		if said := s.proxy.Command(t, "kubelet-config", append(args, files...)...); !strings.Contains(said, fmt.Sprintf("%d files: no findings\n", len(files))) {
			t.Errorf("%s: %s", n.Name(), said)
		}
	}
}

// gatewayWork is a scenario on a node.
type gatewayWork struct {
	*work
	gate *gatewaySite
}

// A pod runs from each kind of registry with nothing but its ServiceAccount, and the audit log says who pulled what from where. So containerd
// gives the credential that the kubelet has for a registry to the server of hosts.toml, and does not ask that registry: its maintainers have not
// decided to keep it so (containerd/containerd#13706, #13949), and a release that does otherwise fails here.
func testGatewayGranted(t *testing.T, w *gatewayWork) {
	for i, c := range []struct{ image, upstream, repository string }{
		{usersRegistry + "/acme/app:v1", usersRegistry, "acme/app"},
		{tokenRegistry + "/acme/app:v1", tokenRegistry, "acme/app"},
		{redirectRegistry + "/acme/app:v1", redirectRegistry, "acme/app"},
		{"acmehello:v1", hubRegistry, "library/acmehello"},
	} {
		web := w.start(t, pod{name: fmt.Sprintf("web-%d", i), image: c.image})
		w.saw("from "+c.image, "runs %s after it was created", w.awaitRunning(t, web))
		w.checkAudit(t, web, "puller", c.upstream, c.repository)
	}
	for name, times := range w.gate.trap.caught() {
		t.Errorf("containerd asked %s %d times", name, times)
	}
}

// checkAudit holds what was written about the first pull of a pod that runs.
func (w *gatewayWork) checkAudit(t *testing.T, pod cluster.Object, account, at, repository string) {
	t.Helper()
	own := at + "/" + repository
	var lines []pullpass.Event
	blobs := func() (n int) {
		lines = slices.DeleteFunc(w.proxy.Audit(t), func(e pullpass.Event) bool { return e.Pod.UID != pod.UID() })
		for _, e := range lines {
			if e.Gateway != nil && e.Gateway.Kind == "blob" {
				n++
			}
		}
		return n
	}
	// The pod may run before the last line is written: a line follows its answer.
	testenv.Await(t, podLimit, "audit lines of a configuration and a layer", func() bool { return blobs() >= 2 })
	issued, done := map[string]bool{}, map[string]int{}
	for _, e := range lines {
		if e.Gateway == nil {
			issued[e.IssuedID] = true
		}
	}
	for _, e := range lines {
		if e.Service != gatewayName || e.Result != "granted" || e.Cluster != "prod-eu" || e.Namespace != w.namespace || e.ServiceAccount.Name != account ||
			e.Pod.Name != pod.Name() || e.Node.Name != w.node.Name() || !strings.HasPrefix(e.Client, "containerd/") {
			t.Errorf("another result, or it does not say who: %+v %+v", e, e.Gateway)
		}
		g := e.Gateway
		if g == nil {
			done["token"]++
			// containerd asks for the name without the registry, too.
			if !slices.Equal(e.Granted, []string{"repository:" + own + ":pull"}) || e.Rule != "acme" || e.Proof == nil || !e.Proof.Passed || e.Proof.Method != "certificate" {
				t.Errorf("a token for more, or less: %+v with the proof %+v", e, e.Proof)
			}
			continue
		}
		done[g.Kind]++
		if g.Upstream != at || g.Repository != own || !issued[g.TokenID] || g.UpstreamStatus != e.Status {
			t.Errorf("it does not say what: %+v %+v", e, *g)
		}
		status, host := http.StatusOK, ""
		if at == redirectRegistry && g.Kind == "blob" {
			status, host = http.StatusTemporaryRedirect, storageName
		}
		if e.Status != status || g.RedirectHost != host || g.Method == http.MethodGet && (g.Sent == 0) != (host != "") {
			t.Errorf("another answer, or bytes that are not counted: %+v %+v", e, *g)
		}
	}
	if done["token"] == 0 || done["manifest"] == 0 || len(done) != 3 {
		t.Errorf("audit lines %v", done)
	}
}

// A ServiceAccount that may not pull is told so, where people look.
func testGatewayDenied(t *testing.T, w *gatewayWork) {
	web := w.start(t, pod{name: "web", image: usersRegistry + "/acme/secret:v1"})
	w.awaitEvent(t, web, "Failed", "kubelet", "Error: ErrImagePull")
	kubelet := w.awaitEvent(t, web, "Failed", "kubelet", "insufficient_scope")
	denied := w.awaitEvent(t, web, "ImagePullDenied", "pullpass", usersRegistry+"/acme/secret", "pull", "no rule", "Remedy:")
	w.saw("may not pull: the kubelet's event", "%s", lastWords(kubelet))
	w.saw("may not pull: Pullpass's event", "%s", denied)
	if running, _ := w.running(t, web); running {
		t.Error("the pod runs")
	}
}

// A revoked ServiceAccount pulls no more, with any of its tokens.
func testGatewayRevoked(t *testing.T, w *gatewayWork) {
	w.account(t, "leaver", nil)
	const image = usersRegistry + "/acme/later:v1"
	before := w.start(t, pod{name: "before", image: image, account: "leaver"})
	w.awaitRunning(t, before)
	const scope = "repository:" + usersRegistry + "/acme/later:pull"
	held := given(t, w.node)[before.UID()]
	if status, body := w.gate.exchange(t, pullpass.From{}, held, scope); status != http.StatusForbidden || body.Token != "" {
		t.Errorf("the gateway's token endpoint takes a pod's token without the certificate of its node: %d %+v", status, body)
	}
	status, answer := w.gate.exchange(t, w.asNode(t, w.node.Name()), held, scope)
	token := answer.Token
	if status != http.StatusOK || token == "" {
		t.Fatalf("no token for the gateway: %d %+v", status, answer)
	}
	manifest := "/v2/" + usersRegistry + "/acme/later/manifests/v1"
	if status, body := w.gate.get(t, manifest, token); status != http.StatusOK {
		t.Fatalf("with a token: %d %s", status, body)
	}

	const reason = "left the company"
	w.proxy.Command(t, "revoke", "--service-account=prod-eu/"+w.namespace+"/leaver", "--reason="+reason)
	revoked := time.Now()
	var body string
	took := testenv.Await(t, podLimit, "the token opens nothing", func() bool {
		status, body = w.gate.get(t, manifest, token)
		return status == http.StatusForbidden
	})
	w.saw("revoked: a token for the gateway that lives", "403 %s after that: %s", milliseconds(took), strings.TrimSpace(body))
	if took > 5*time.Second || !strings.Contains(body, reason) { // a second, on a machine that is not busy
		t.Errorf("the token was refused after %v: %s", took, body)
	}

	after := w.start(t, pod{name: "after", image: image, account: "leaver"})
	w.awaitEvent(t, after, "Failed", "kubelet", "Error: ErrImagePull")
	message := w.awaitEvent(t, after, "ImagePullDenied", "pullpass", "revoked", reason)
	w.saw("revoked: the next pod", "%s after that: %s", milliseconds(time.Since(revoked)), message)
	other := w.start(t, pod{name: "other", image: image})
	w.saw("revoked: another ServiceAccount of the namespace", "runs %s after it was created", w.awaitRunning(t, other))
	if running, _ := w.running(t, after); running {
		t.Error("the pod of who is revoked runs")
	}
}

// A registry that is down is named on the pod. When it is back, the same pod runs.
func testUpstreamDown(t *testing.T, w *gatewayWork) {
	at := downRegistry(w.node.Name())
	web := w.start(t, pod{name: "web", image: at + "/acme/back:v1"})
	kubelet := w.awaitEvent(t, web, "Failed", "kubelet", "502 Bad Gateway")
	message := w.awaitEvent(t, web, "ImagePullDenied", "pullpass", at+"/acme/back", at+": it cannot be reached")
	if strings.Contains(message, "->") {
		t.Errorf("the event holds what is another each time, and cannot be counted: %s", message)
	}
	w.saw("the registry is down: the kubelet's event", "%s", lastWords(kubelet))
	w.saw("the registry is down: Pullpass's event", "%s", message)
	w.gate.down[at].Restore()
	w.saw("the registry is back: the same pod at its next back-off", "runs %s after that", w.awaitRunning(t, web))
}

// testGatewayDown stops the gateway: nodes ask no other server then, since that would receive the pod's token.
func (s *gatewaySite) testGatewayDown(t *testing.T, nodes []*node.Node) {
	s.gateway.Cut()
	for _, n := range nodes {
		w := &work{site: s.site, node: n, order: 8, namespace: "acme-alone-" + n.Name(), since: time.Now()}
		w.account(t, "puller", nil)
		web := w.start(t, pod{name: "web", image: usersRegistry + "/acme/app:v1"})
		hub := w.start(t, pod{name: "hub", image: "acmehello:v1"})
		w.awaitEvent(t, hub, "Failed", "kubelet", "Error: ErrImagePull")
		kubelet := w.awaitEvent(t, web, "Failed", "kubelet", gatewayName)
		w.saw("the gateway is down: the kubelet's event", "%s", lastWords(kubelet))
	}
	s.gateway.Restore()
}

// With the file that Spegel writes in place of hosts.toml, containerd asks the registry itself. The plugin gives it no token then.
func (s *gatewaySite) testHostsRewritten(t *testing.T, nodes []*node.Node) {
	for _, n := range nodes {
		w := &work{site: s.site, node: n, order: 8, namespace: "acme-spegel-" + n.Name(), since: time.Now()}
		w.account(t, "puller", nil)
		hosts := n.Path("/etc/containerd/certs.d/" + usersRegistry + "/hosts.toml")
		ours := testenv.ReadFile(t, hosts)
		testenv.Must(t, os.WriteFile(hosts, []byte("server = 'https://"+usersRegistry+"'\n[host.'http://"+trapAddress+":30020']\ncapabilities = ['pull', 'resolve']\n"), 0o644))
		before := s.trap.caught()[usersRegistry]
		web := w.start(t, pod{name: "web", image: usersRegistry + "/acme/spegel:v1"})
		testenv.Await(t, podLimit, "containerd asks the registry", func() bool { return s.trap.caught()[usersRegistry] > before })
		if log := n.Log(); !strings.Contains(log, "hosts.toml of the image's registry: does not have the gateway as its server") {
			t.Errorf("%s: the plugin gave the token, or does not say why not", n.Name())
		}
		testenv.Must(t, os.WriteFile(hosts, []byte(ours), 0o644))
		w.saw("Spegel has rewritten hosts.toml: the plugin gives no token; when it is back", "runs %s after it was created", w.awaitRunning(t, web))
	}
}

// podOf is the UID of the pod that a token is for.
func podOf(t testing.TB, token string) string {
	t.Helper()
	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	testenv.Must(t, json.Unmarshal(testenv.TokenPart(t, token, 1), &claims))
	return claims.Kubernetes.Pod.UID
}
