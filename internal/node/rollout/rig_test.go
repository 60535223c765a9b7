package rollout

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const namespace = "pullpass-nodes"

// fleet is a cluster without the agents: the kubelets of its nodes, and the controller of the
// DaemonSet whose pods try a pull.
type fleet struct {
	t        *testing.T
	api      *kubetest.Server
	root     string
	provider atomic.Value // string, of Desired
	hosts    atomic.Value // string, likewise: hosts.toml; with bad ones, pulls fail
	plugin   atomic.Value // string, likewise
	nodes    map[string]*simulated

	stalled          atomic.Bool  // pods are not removed
	restarting, most atomic.Int32 // kubelets that are not back yet
	mu               sync.Mutex
	order            []string // of the restarts
}

// simulated is a node: its files, its kubelet, and the agent on it.
type simulated struct {
	*fleet
	name       string
	tree       *hostfs.Tree
	agent      *Agent
	end        context.CancelFunc
	ended      chan struct{}
	breaks     atomic.Bool // the kubelet does not become healthy with a new configuration
	undone     atomic.Bool // another program removes the provider whenever the kubelet starts
	silent     atomic.Bool // the node stops reporting, and stays Ready all the same
	lost       atomic.Bool // the node does not become Ready either
	denied     atomic.Bool // pulls fail
	keepsTaint bool
	unprobed   bool        // no pod tries a pull
	isAlone    bool        // it may restart together with others
	unable     atomic.Bool // the kubelet cannot be restarted
	dead       atomic.Bool // the machine has no power
	outlives   bool        // the trial of a configuration goes on when the agent ends
	restarts   atomic.Int32
	log        bytes.Buffer              // of logger
	logger     *slog.Logger              // one, since it orders what agents one after the other write
	failing    func(*http.Request) error // nil: no request of the agent fails
}

// RoundTrip is that of the agent's requests.
func (n *simulated) RoundTrip(r *http.Request) (*http.Response, error) {
	if n.failing != nil {
		if err := n.failing(r); err != nil {
			return nil, err
		}
	}
	return n.api.RoundTrip(r)
}

// in runs a test with its own clock.
func in(t *testing.T, nodes int, test func(*testing.T, *fleet)) {
	t.Helper()
	t.Parallel()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, api: kubetest.NewServer(), root: root, nodes: map[string]*simulated{}}
		f.provider.Store("registry.example.com")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		for i := range nodes {
			f.add(fmt.Sprintf("node-%02d", i), false)
		}
		go func() { f.schedule(ctx); close(done) }()
		test(t, f)
		for _, n := range f.nodes {
			n.halt()
		}
		stop()
		<-done
		for _, n := range f.nodes {
			_ = n.tree.Close()
		}
		time.Sleep(time.Minute) // events that are on their way
	})
}

// add creates a node, whose agent does not run yet.
func (f *fleet) add(name string, tainted bool) *simulated {
	dir := filepath.Join(f.root, name)
	for file, content := range map[string]string{
		"var/lib/kubelet/kubeadm-flags.env":                        "KUBELET_KUBEADM_ARGS=\"\"\n",
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironmentFile=-/etc/default/kubelet\n",
		"etc/containerd/config.toml":                               "version = 3\n[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n",
		"run/systemd/system/.keep":                                 "",
		"etc/default/locale":                                       "LANG=C\n",
		"usr/local/bin/.keep":                                      "",
	} {
		file = filepath.Join(dir, file)
		testkit.Must(f.t, os.MkdirAll(filepath.Dir(file), 0o755))
		testkit.Must(f.t, os.WriteFile(file, []byte(content), 0o644))
	}
	tree, err := hostfs.Open(dir)
	testkit.Must(f.t, err)
	n := &simulated{fleet: f, name: name, tree: tree, isAlone: tainted}
	n.logger = slog.New(slog.NewTextHandler(&n.log, nil))
	taints := []any{kubetest.Object{"key": "example.com/other", "effect": "NoSchedule"}}
	if tainted {
		taints = append(taints, kubetest.Object{"key": progress.Taint, "effect": "NoSchedule"})
	}
	f.api.Put("nodes", kubetest.Object{
		"metadata": kubetest.Object{"name": name, "uid": "uid-" + name, "creationTimestamp": time.Now().UTC().Format(time.RFC3339), "annotations": kubetest.Object{"a": "b"}, "labels": kubetest.Object{"c": "d"}},
		"spec":     kubetest.Object{"taints": taints},
		"status":   kubetest.Object{"nodeInfo": kubetest.Object{"kubeletVersion": "v1.36.2"}},
	})
	n.heartbeat(true)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = n
	return n
}

// start runs the agents of all nodes, or of the named ones.
func (f *fleet) start(names ...string) {
	for name, n := range f.nodes {
		if len(names) == 0 || strings.Contains(strings.Join(names, " "), name) {
			n.start(func(context.Context, string) (nodeinstall.Desired, error) { return f.desired(), nil })
		}
	}
}

func (f *fleet) desired() nodeinstall.Desired {
	plugin, _ := f.plugin.Load().(string)
	hosts := map[string][]byte{}
	if content, ok := f.hosts.Load().(string); ok {
		hosts["registry.example.com"] = []byte(content)
	}
	return nodeinstall.Desired{KubeletVersion: "v1.36.2", Plugin: []byte(cmp.Or(plugin, "the plugin")), Hosts: hosts, Provider: []byte(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: pullpass-credential-provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["` + f.provider.Load().(string) + `"]
  defaultCacheDuration: "0s"
`)}
}

func (n *simulated) start(desired func(context.Context, string) (nodeinstall.Desired, error)) {
	config := n.rest()
	config.Transport = n
	a, err := New(Config{
		REST: config, Logger: n.logger, Namespace: namespace, Node: n.name, Version: "v1",
		Tree: n.tree, Watcher: n, Probe: !n.unprobed, Taint: !n.keepsTaint, Desired: desired,
	})
	testkit.Must(n.t, err)
	ctx, end := context.WithCancel(n.t.Context())
	n.agent, n.end, n.ended = a, end, make(chan struct{})
	go func() { a.Run(ctx); close(n.ended) }()
}

// halt ends the agent without a message to others.
func (n *simulated) halt() {
	if n.end != nil {
		n.end()
		<-n.ended
		n.end = nil
	}
}

// Ready and Watch are those of a nodeinstall.Watcher.
func (n *simulated) Ready(context.Context) error {
	if n.unable.Load() {
		return errors.New("there is no systemd")
	}
	return nil
}

func (n *simulated) Watch(ctx context.Context) error {
	if n.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if !n.outlives {
		return nodeinstall.Watch(ctx, n.tree, n)
	}
	ended := make(chan error, 1)
	go func() { ended <- nodeinstall.Watch(context.WithoutCancel(ctx), n.tree, n) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ended, Restart and Healthy are those of a nodeinstall.Kubelet.
func (n *simulated) Ended(context.Context) (int, error) { return 0, nil }

func (n *simulated) Restart(context.Context) error {
	n.restarts.Add(1)
	n.mu.Lock()
	n.order = append(n.order, n.name)
	n.mu.Unlock()
	if !n.isAlone {
		now := n.restarting.Add(1)
		for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
		}
	}
	if !n.silent.Load() {
		n.heartbeat(false)
	}
	time.Sleep(3 * time.Second)
	if !n.isAlone {
		defer n.restarting.Add(-1)
	}
	if n.breaks.Load() && n.installed() {
		return fmt.Errorf("%w: exit status 1%s", nodeinstall.ErrUnhealthy, strings.Repeat(" and so on", 500))
	}
	if n.undone.Load() {
		const provider = "/etc/pullpass/credential-providers/pullpass.yaml"
		testkit.Must(n.t, n.tree.Remove(provider, look(n.t, n, provider)))
	}
	if !n.lost.Load() && !n.silent.Load() {
		n.heartbeat(true)
	}
	return nil
}

func (n *simulated) Healthy(context.Context) error { return nil }

// restarted returns the nodes whose kubelets were restarted, in that order.
func (f *fleet) restarted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.order)
}

// installed reports whether the kubelet's flags name the provider.
func (n *simulated) installed() bool {
	is, err := n.tree.Exists("/etc/pullpass/credential-providers/pullpass.yaml")
	testkit.Must(n.t, err)
	return is
}

// heartbeat writes the kubelet's report about its node.
func (n *simulated) heartbeat(isReady bool) {
	status := map[bool]string{true: "True", false: "False"}[isReady]
	n.api.Merge("nodes", "", n.name, kubetest.Object{"status": kubetest.Object{"conditions": []any{
		kubetest.Object{"type": "Ready", "status": status, "reason": "KubeletReady", "lastHeartbeatTime": time.Now().UTC().Format(time.RFC3339)},
	}}})
}

// schedule creates and removes the pods of the DaemonSet, and pulls for them.
func (f *fleet) schedule(ctx context.Context) {
	for serial := 0; ; {
		f.mu.Lock()
		nodes := maps.Clone(f.nodes)
		f.mu.Unlock()
		for name, n := range nodes {
			node := f.api.Object("nodes", "", name)
			if node == nil {
				continue
			}
			label := labels(node)[progress.Key]
			pod := f.api.Object("pods", namespace, "probe-"+name)
			switch {
			case label == string(Verifying) && pod == nil:
				serial++
				state := kubetest.Object{"name": "probe", "imageID": "sha256:1"}
				if n.denied.Load() || n.hasHosts("# bad") {
					state = kubetest.Object{"name": "probe", "imageID": "", "state": kubetest.Object{"waiting": kubetest.Object{"reason": "ErrImagePull", "message": "401 Unauthorized"}}}
				}
				f.api.Put("pods", kubetest.Object{
					"metadata": kubetest.Object{"namespace": namespace, "name": "probe-" + name, "uid": fmt.Sprint(serial), "labels": kubetest.Object{probeLabel: "true"}},
					"spec":     kubetest.Object{"nodeName": name},
					"status":   kubetest.Object{"containerStatuses": []any{state}},
				})
			case label != string(Verifying) && pod != nil && !f.stalled.Load():
				f.api.Remove("pods", namespace, "probe-"+name)
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

const hostsFile = "/etc/containerd/certs.d/registry.example.com/hosts.toml"

func (n *simulated) hasHosts(content string) bool {
	found := look(n.t, n, hostsFile)
	return found != nil && string(found.Content) == content
}

func labels(node kubetest.Object) kubetest.Object {
	l, _ := node["metadata"].(kubetest.Object)["labels"].(kubetest.Object)
	return l
}

// record returns the Record on the Node.
func (n *simulated) record() (r Record) {
	n.t.Helper()
	annotations, _ := n.api.Object("nodes", "", n.name)["metadata"].(kubetest.Object)["annotations"].(kubetest.Object)
	if text, ok := annotations[progress.Key].(string); ok {
		testkit.Must(n.t, json.Unmarshal([]byte(text), &r))
		if label := labels(n.api.Object("nodes", "", n.name))[progress.Key]; label != string(r.State) {
			n.t.Errorf("%s: label %v of state %s", n.name, label, r.State)
		}
	}
	return r
}

func (n *simulated) tainted() bool {
	text := fmt.Sprint(n.api.Object("nodes", "", n.name)["spec"])
	if !strings.Contains(text, "example.com/other") {
		n.t.Errorf("%s: the taint of others is gone", n.name)
	}
	return strings.Contains(text, progress.Taint)
}

// count returns how many nodes are in a state.
func (f *fleet) count(s State) (c int) {
	for _, n := range f.nodes {
		if n.record().State == s {
			c++
		}
	}
	return c
}

// stopped returns the Stop of the Lease.
func (f *fleet) stopped() *Stop {
	metadata, _ := f.api.Object("leases", namespace, progress.LeaseName)["metadata"].(kubetest.Object)
	annotations, _ := metadata["annotations"].(kubetest.Object)
	text, _ := annotations[progress.StopKey].(string)
	var s Stop
	if json.Unmarshal([]byte(text), &s) != nil {
		return nil
	}
	return &s
}

// events returns the reasons and messages of events on Nodes.
func (f *fleet) events() (all []string) {
	synctest.Wait()
	for _, e := range f.api.Written() {
		about := e["involvedObject"].(kubetest.Object)
		all = append(all, fmt.Sprintf("%s %s %s: %s", about["kind"], about["name"], e["reason"], e["message"]))
	}
	return all
}

func (f *fleet) rest() *rest.Config {
	return &rest.Config{Host: "http://api.example.com", Transport: f.api, QPS: -1}
}

// look returns a file of the node, or nil.
func look(t *testing.T, n *simulated, name string) *hostfs.File {
	t.Helper()
	found, err := n.tree.Lookup(name, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	testkit.Must(t, err)
	return &found
}

func file(content string) hostfs.File { return hostfs.NewFile(0o644, []byte(content)) }
