package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/nodeconfig"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const gatewayConfig = `apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters: [{name: prod, issuer: "https://issuer.example.com", audiences: [gateway.example.com]}]
registries: [{service: gateway.example.com, issuer: pullpass.example.com}]
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}]
policyFiles: [policy.yaml]
`

// spegelNode is a node whose hosts.toml is put back.
type spegelNode struct {
	hosts   string
	repairs atomic.Int32
	fights  atomic.Bool // the next repair is undone before it ends
	empty   atomic.Bool // nothing is installed yet
	applied chan struct{}
}

func (n *spegelNode) Files() []string {
	if n.empty.Load() {
		return nil
	}
	return []string{n.hosts}
}

func (n *spegelNode) Applied() <-chan struct{} { return n.applied }

func (n *spegelNode) Repair(context.Context) error {
	n.repairs.Add(1)
	if text, err := os.ReadFile(n.hosts); err == nil && string(text) == "ours" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(n.hosts), 0o755); err != nil {
		return err
	}
	err := os.WriteFile(n.hosts, []byte("ours"), 0o600)
	if n.fights.CompareAndSwap(true, false) {
		err = errors.Join(err, os.WriteFile(n.hosts, []byte("theirs"), 0o600))
	}
	return err
}

// A program that clears containerd's directory, as Spegel does, is noticed by file events: the next poll is a minute
// away, and the next pass of the agent five.
func TestFilesOfTheNodeArePutBackAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := &spegelNode{hosts: filepath.Join(dir, "certs.d", "ghcr.io", "hosts.toml")}
	testkit.Must(t, n.Repair(t.Context()))
	testkit.Write(t, dir, "pullpass.yaml", "a")
	ctx, stop := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		watchNode(ctx, testkit.QuietLogger(), []string{filepath.Join(dir, "pullpass.yaml")}, changed, n)
	}()
	defer func() { stop(); <-ended }() // a repair that goes on would write into the directory while it is removed
	testkit.Eventually(t, "it watches", func() bool { return n.repairs.Load() == 2 })
	<-changed
	start := time.Now()
	for _, spoil := range []func() error{
		// A new name is given at once; to remove a directory while its file is put back fails.
		func() error { return os.Rename(filepath.Dir(n.hosts), filepath.Join(dir, "gone")) },
		func() error { return os.WriteFile(n.hosts, []byte("server = 'https://ghcr.io'"), 0o600) },
		func() error { return os.Rename(filepath.Join(dir, "certs.d"), filepath.Join(dir, "gone too")) },
		func() error { n.fights.Store(true); return os.WriteFile(n.hosts, []byte("theirs"), 0o600) },
	} {
		testkit.Must(t, spoil())
		testkit.Eventually(t, "the file is back", func() bool { text, err := os.ReadFile(n.hosts); return err == nil && string(text) == "ours" })
	}
	if took := time.Since(start); took > 50*time.Second {
		t.Errorf("it took %v: a poll has seen it, not an event", took)
	}
	testkit.Write(t, dir, "pullpass.yaml", "b")
	<-changed
}

// The files of a node's first installation are watched as soon as they are there, and no pass begins for that.
func TestFilesOfTheFirstInstallation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := &spegelNode{hosts: filepath.Join(dir, "certs.d", "ghcr.io", "hosts.toml"), applied: make(chan struct{}, 1)}
	n.empty.Store(true)
	config := filepath.Join(t.TempDir(), "pullpass.yaml")
	testkit.Put(t, config, "a")
	ctx, stop := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		watchNode(ctx, testkit.QuietLogger(), []string{config}, changed, n)
	}()
	defer func() { stop(); <-ended }()
	<-changed
	start := time.Now()
	n.empty.Store(false)
	n.applied <- struct{}{}
	isThere := func() bool { text, err := os.ReadFile(n.hosts); return err == nil && string(text) == "ours" }
	testkit.Eventually(t, "the file is there", isThere)
	testkit.Must(t, os.Remove(n.hosts))
	testkit.Eventually(t, "the file is back", isThere)
	if took := time.Since(start); took > 50*time.Second {
		t.Errorf("it took %v: a poll has seen it", took)
	}
	select {
	case <-changed:
		t.Error("a pass begins")
	default:
	}
}

// runningNode is a node of kubeadm with "node-install run" on it.
type runningNode struct {
	t         *testing.T
	api       *kubetest.Server
	dir       string // has the root of the host, and the files that are given to the program
	address   string // of the admin listener
	arguments []string
}

func newRunningNode(t *testing.T) *runningNode {
	t.Helper()
	n := &runningNode{t: t, api: kubetest.NewAPIServer(t), dir: t.TempDir(), address: testkit.FreeAddress(t)}
	n.api.Set("nodes", "node1", "status", kubetest.Object{
		"nodeInfo":   kubetest.Object{"kubeletVersion": "v1.36.2"},
		"conditions": []any{kubetest.Object{"type": "Ready", "status": "True"}},
	})
	testkit.Write(t, n.dir, "kubeconfig", n.api.Kubeconfig())
	testkit.Write(t, n.dir, "pullpass.yaml", gatewayConfig)
	testkit.Write(t, n.dir, "plugin", "the program")
	for name, content := range map[string]string{
		"var/lib/kubelet/kubeadm-flags.env":                        `KUBELET_KUBEADM_ARGS=""`,
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironmentFile=-/etc/default/kubelet\n",
		"etc/default/other":                                        "",
		"run/other":                                                "",
	} {
		testkit.Must(t, os.MkdirAll(filepath.Join(n.dir, "host", filepath.Dir(name)), 0o755))
		testkit.Put(t, filepath.Join(n.dir, "host", name), content)
	}
	n.arguments = []string{"--config", filepath.Join(n.dir, "pullpass.yaml"), "--registry", "registry.example.com", "--service", "gateway.example.com", "--plugin", filepath.Join(n.dir, "plugin")}
	return n
}

// start runs the program. end ends it, and returns what it wrote.
func (n *runningNode) start() (end func() string) {
	n.t.Helper()
	ctx, stop := context.WithCancel(n.t.Context())
	n.t.Cleanup(stop)
	var stderr testkit.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"node-install", "run", "--node", "node1", "--namespace", "pullpass-nodes", "--host-root", filepath.Join(n.dir, "host"),
			"--kubeconfig", filepath.Join(n.dir, "kubeconfig"), "--admin-address", n.address}, n.arguments...), nil, io.Discard, &stderr)
	}()
	testkit.Eventually(n.t, "the agent has looked at its node", func() bool { return n.get("/readyz") == "ok\n" })
	return func() string {
		stop()
		if code := <-ended; code != 0 {
			n.t.Errorf("exit code %d: %s", code, stderr.String())
		}
		return stderr.String()
	}
}

func (n *runningNode) get(path string) (body string) {
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://"+n.address+path, nil)
	testkit.Must(n.t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	testkit.Must(n.t, err)
	return string(text)
}

func (n *runningNode) hasMetric(line string) bool {
	return strings.Contains(n.get("/metrics"), line+"\n")
}

// healthyKubelet is one that comes up with whatever is there.
type healthyKubelet struct{ tree *hostfs.Tree }

func (k healthyKubelet) Ready(context.Context) error        { return nil }
func (k healthyKubelet) Watch(ctx context.Context) error    { return nodeinstall.Watch(ctx, k.tree, k) }
func (k healthyKubelet) Restart(context.Context) error      { return nil }
func (k healthyKubelet) Healthy(context.Context) error      { return nil }
func (k healthyKubelet) Ended(context.Context) (int, error) { return 0, nil }

// The agent's metrics count its repairs, for the alert on programs that change files again and again.
func TestRepairsAreCounted(t *testing.T) {
	t.Parallel()
	n := newRunningNode(t)
	tree := testkit.Value(hostfs.Open(filepath.Join(n.dir, "host")))(t)
	defer tree.Close()
	o := nodeOptions{config: filepath.Join(n.dir, "pullpass.yaml"), plugin: filepath.Join(n.dir, "plugin"), target: nodeconfig.Options{Registry: "registry.example.com", Service: "gateway.example.com"}}
	desired := testkit.Value(o.desired(t.Context(), "v1.36.2"))(t)
	testkit.Value(nodeinstall.New(nodeinstall.Config{Tree: tree, Watcher: healthyKubelet{tree}}).Apply(t.Context(), desired))(t)

	end := n.start()
	testkit.Eventually(t, "the node is ready", func() bool { return n.hasMetric(`pullpass_node_install_state{node="node1",state="ready"} 1`) })
	const plugin = "/usr/local/libexec/pullpass/pullpass-credential-provider"
	file := filepath.Join(n.dir, "host", plugin)
	spoilt := 0
	var last time.Time
	testkit.Eventually(t, "the repair is in the metrics", func() bool {
		// The first changes may come before the agent watches.
		if time.Since(last) > 2*time.Second {
			spoilt++
			testkit.Put(t, file, strings.Repeat("of another owner ", spoilt))
			last = time.Now()
		}
		_, count, is := strings.Cut(n.get("/metrics"), `pullpass_node_install_repairs_total{node="node1"} `)
		return is && !strings.HasPrefix(count, "0\n")
	})
	testkit.Eventually(t, "the file is back", func() bool { text, err := os.ReadFile(file); return err == nil && string(text) == "the program" })
	if log := end(); !strings.Contains(log, "another program changed files of the node") || !strings.Contains(log, plugin) {
		t.Error(log)
	}
}

// A pass that has failed is not repeated at once: it may have restarted the kubelet.
func TestAPassIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	n := newRunningNode(t)
	end := n.start()
	testkit.Eventually(t, "the node has failed", func() bool { return n.hasMetric(`pullpass_node_install_state{node="node1",state="failed"} 1`) })
	testkit.Write(t, n.dir, "next.yaml", "kind: Nothing\n")
	testkit.Must(t, os.Rename(filepath.Join(n.dir, "next.yaml"), filepath.Join(n.dir, "pullpass.yaml"))) // one event
	testkit.Eventually(t, "the new file is read", func() bool { return strings.Contains(fmt.Sprint(n.api.Object("nodes", "", "node1")), "Nothing") })
	if passes := n.api.Count("get nodes"); passes != 2 {
		t.Errorf("%d passes, want 2: at the start, and for the new file", passes)
	}
	end()
}

// The kubelet is not healthy either while containerd does not answer, so the text must not blame the configuration alone.
func TestARejectedPlanNamesBothCauses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	testkit.Must(t, writePlan(&out, &nodeinstall.Plan{Profile: "kubeadm", Rejected: true}, nil, false))
	if want := "kubeadm: 0 changes, rejected: the kubelet was not healthy with this configuration, or containerd did not answer it\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if err := nodeinstall.ErrRejected; !strings.Contains(err.Error(), "whether containerd answered") {
		t.Error(err)
	}
}

// The agent says on the Node, in its metrics and to "status" what keeps the node from being installed.
func TestNodeInstallRunAndStatus(t *testing.T) {
	t.Parallel()
	n := newRunningNode(t)
	api, end := n.api, n.start()
	testkit.Eventually(t, "the state is in the metrics", func() bool { return n.hasMetric(`pullpass_node_install_state{node="node1",state="failed"} 1`) })

	status := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"node-install", "status", "--kubeconfig", filepath.Join(n.dir, "kubeconfig")}, args...), nil, &stdout, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr.String())
		}
		return stdout.String()
	}
	text := status()
	for _, want := range []string{"NODE ", "node1   failed ", " v1.36.2 ", "systemd does not run the host", "node2   - ", "\n0 of 2 nodes are ready\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if text := status("-o", "json"); !strings.Contains(text, `"state": "failed"`) {
		t.Error(text)
	}

	api.Put("leases", kubetest.Object{
		"metadata": kubetest.Object{"namespace": "pullpass-nodes", "name": "pullpass-node-install", "uid": "u", "annotations": kubetest.Object{
			"pullpass.dev/stopped": `{"node":"node2","uid":"uid-4","revision":"abc","reason":"\u001b[2J"}`,
		}},
		"spec": kubetest.Object{"holderIdentity": "node1/uid-3"},
	})
	api.Set("nodes", "node2", "annotations", kubetest.Object{"pullpass.dev/node-install": `{"state":"ready","profile":"k3s","revision":"\u001b[2J","since":"2026-01-02T03:04:05Z"}`})
	text = status()
	for _, want := range []string{"node2   ready    2026-01-02T03:04:05Z ", " k3s ", "\n1 of 2 nodes are ready; it is the turn of node1\n", `the roll-out of abc is stopped, because of the node node2: \x1b[2J`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("an escape sequence of an object is printed:\n%q", text)
	}
	end()
}
