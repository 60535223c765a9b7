package rollouttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	namespace  = "pullpass-nodes"
	key        = "pullpass.dev/node-install"
	taint      = "pullpass.dev/not-ready"
	pollPeriod = 200 * time.Millisecond
)

// fleet is a cluster whose nodes are simulated.
type fleet struct {
	*cluster.Cluster
	kubeconfig string
	values     string // file
	plugin     string // file
	nodes      map[string]*host
	kubelets   *httptest.Server
	configs    int

	mu         sync.Mutex
	restarts   []string            // names of nodes, in order
	restarting map[string]bool     // whose kubelet is not back yet
	most       int                 // of them at a time
	pulls      []string            // "POD: result", of pods that are not ours
	failures   map[string]struct{} // nodes whose kubelet does not come up with what is new
}

// host is a node.
type host struct {
	name, dir string
	pod       string // UID of the installer's pod whose program runs
	installer *process.Process
	loaded    string // what the kubelet has read when it was started; under the fleet's lock
	verified  bool   // a pod that tries a pull has pulled; likewise
}

func startFleet(t testing.TB, values string) *fleet {
	t.Helper()
	testenv.Must(t, serveHealthz())
	signing := certs.NewRSAKey(t)
	f := &fleet{Cluster: cluster.Start(t, signing), nodes: map[string]*host{}, restarting: map[string]bool{}, failures: map[string]struct{}{}}
	f.StartControllers(t, signing, "daemonset-controller")
	f.StartScheduler(t)
	dir := t.TempDir()
	f.kubeconfig, f.values, f.plugin = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "values.yaml"), filepath.Join(dir, "plugin")
	f.Kubeconfig(t, f.kubeconfig, f.Admin.CertFile, f.Admin.KeyFile)
	testenv.WriteFile(t, f.plugin, "the plugin")
	f.kubelets = httptest.NewServer(http.HandlerFunc(f.restart))
	t.Cleanup(f.kubelets.Close)
	f.apply(t, values)
	return f
}

// serveHealthz answers for the kubelets of all tests, until these have ended: that of a host is asked only after it was started.
var serveHealthz = sync.OnceValue(func() error {
	listener, err := net.Listen("tcp", "127.0.0.1:10248")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
	return nil
})

// apply does with the installer's objects what helm upgrade would.
func (f *fleet) apply(t testing.TB, values string) {
	t.Helper()
	testenv.WriteFile(t, f.values, values)
	chart := filepath.Join(programs.Checkout(t), "deploy", "helm", "pullpass")
	rendered, err := f.run(t, "", programs.Helm(t), "template", "pullpass", chart, "--namespace=pullpass", "--values="+f.values, "--show-only=templates/nodes.yaml")
	testenv.Must(t, err)
	_, err = f.run(t, rendered, programs.Kubectl(t), "apply", "--server-side", "--filename=-")
	testenv.Must(t, err)
}

func (f *fleet) run(t testing.TB, input, program string, args ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Env = append(programs.HelmEnvironment(t), "KUBECONFIG="+f.kubeconfig)
	command.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", program, args, err, stderr.String())
	}
	return string(output), nil
}

// add makes a node: the files of one that kubeadm made, and a Node.
func (f *fleet) add(t testing.TB, name string, tainted bool) {
	t.Helper()
	h := &host{name: name, dir: filepath.Join(t.TempDir(), name)}
	for file, content := range map[string]string{
		"etc/simulated-kubelet":                                    f.kubelets.URL + "/" + name,
		"etc/default/locale":                                       "LANG=C\n",
		"etc/containerd/config.toml":                               "version = 3\n[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n",
		"var/lib/kubelet/kubeadm-flags.env":                        "KUBELET_KUBEADM_ARGS=\"\"\n",
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironmentFile=-/etc/default/kubelet\n",
		"usr/local/bin/other":                                      "",
		"run/systemd/system/other":                                 "",
		"proc/other":                                               "",
		"dev/null":                                                 "",
	} {
		file = filepath.Join(h.dir, file)
		testenv.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		testenv.Must(t, os.WriteFile(file, []byte(content), 0o644))
	}
	testenv.Must(t, os.MkdirAll(filepath.Join(h.dir, "usr/bin"), 0o755))
	for _, program := range []string{"systemctl", "systemd-run"} {
		testenv.Must(t, os.Link(f.systemd(t), filepath.Join(h.dir, "usr/bin", program)))
	}
	proc := filepath.Join(h.dir, "proc")
	testenv.Must(t, syscall.Mount("/proc", proc, "", syscall.MS_BIND|syscall.MS_REC, ""))
	t.Cleanup(func() { testenv.Must(t, syscall.Unmount(proc, syscall.MNT_DETACH)) })
	f.mu.Lock()
	f.nodes[name] = h
	f.mu.Unlock()
	taints := []cluster.Object{}
	if tainted {
		taints = append(taints, cluster.Object{"key": taint, "effect": "NoSchedule"})
	}
	f.Create(t, "/api/v1/nodes", cluster.Object{
		"metadata": cluster.Object{"name": name, "labels": cluster.Object{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
		"spec":     cluster.Object{"taints": taints},
	})
	f.Patch(t, "/api/v1/nodes/"+name, cluster.Object{"spec": cluster.Object{"taints": taints}}) // without node.kubernetes.io/not-ready, with which each begins
	f.Patch(t, "/api/v1/nodes/"+name+"/status", cluster.Object{"status": cluster.Object{
		"allocatable": cluster.Object{"cpu": "4", "memory": "8Gi", "pods": "110"},
		"nodeInfo": cluster.Object{"kubeletVersion": "v1.36.2", "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeProxyVersion": "",
			"operatingSystem": "linux", "architecture": "amd64"},
	}})
	testenv.Must(t, f.heartbeat(t.Context(), name, true))
}

// systemd is a copy of the program on the file system of the hosts, once.
func (f *fleet) systemd(t testing.TB) string {
	t.Helper()
	file := filepath.Join(filepath.Dir(f.kubeconfig), "systemd")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		testenv.Must(t, os.WriteFile(file, []byte(testenv.ReadFile(t, programs.SimulatedSystemd(t))), 0o755))
	}
	return file
}

// heartbeat is what the kubelet says of its node.
func (f *fleet) heartbeat(ctx context.Context, name string, ready bool) error {
	status := map[bool]string{true: "True", false: "False"}[ready]
	now := time.Now().UTC().Format(time.RFC3339)
	_, err := f.Try(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", cluster.Object{"status": cluster.Object{"conditions": []cluster.Object{
		{"type": "Ready", "status": status, "reason": "Simulated", "lastHeartbeatTime": now, "lastTransitionTime": now},
	}}})
	return err
}

// restart is a restart of a kubelet: /NODE/restart/kubelet.service.
func (f *fleet) restart(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	if parts[2] != "restart" {
		return // what else is asked of systemctl concerns no kubelet
	}
	name := parts[1]
	f.mu.Lock()
	h := f.nodes[name]
	f.restarts = append(f.restarts, name)
	f.restarting[name] = true
	f.most = max(f.most, len(f.restarting))
	_, fails := f.failures[name]
	f.mu.Unlock()
	err := f.heartbeat(r.Context(), name, false)
	time.Sleep(1100 * time.Millisecond) // its heartbeats are in seconds
	loaded := h.provider()
	f.mu.Lock()
	fails = fails && loaded != h.loaded
	if !fails {
		h.loaded = loaded
	}
	f.mu.Unlock()
	if !fails {
		err = errors.Join(err, f.heartbeat(r.Context(), name, true))
	}
	f.mu.Lock()
	delete(f.restarting, name)
	f.mu.Unlock()
	if err != nil || fails {
		http.Error(w, fmt.Sprint(err), http.StatusInternalServerError)
	}
}

// provider is the provider configuration that the flags lead to; "" if they lead to none.
func (h *host) provider() string {
	flags, _ := os.ReadFile(filepath.Join(h.dir, "etc/default/kubelet"))
	if !strings.Contains(string(flags), "--image-credential-provider-config=/etc/pullpass/credential-providers") {
		return ""
	}
	content, _ := os.ReadFile(filepath.Join(h.dir, "etc/pullpass/credential-providers/pullpass.yaml"))
	return string(content)
}

// pod is what the kubelets know of one.
type pod struct {
	Metadata struct {
		Name, Namespace, UID string
		DeletionTimestamp    string
		Labels               map[string]string
	}
	Spec struct {
		NodeName   string
		Containers []struct {
			Name, Image string
			Args        []string
		}
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct{ ImageID string }
	}
}

func (p pod) path() string {
	return "/api/v1/namespaces/" + p.Metadata.Namespace + "/pods/" + p.Metadata.Name
}

// step does what the kubelets have to do with their pods.
func (f *fleet) step(t testing.TB) {
	t.Helper()
	var list struct{ Items []pod }
	f.Get(t, "/api/v1/pods").Decode(t, &list)
	for _, p := range list.Items {
		h := f.nodes[p.Spec.NodeName]
		isInstaller := p.Metadata.Labels["app.kubernetes.io/name"] == "pullpass-node-install"
		switch {
		case h == nil:
		case p.Metadata.DeletionTimestamp != "":
			if h.pod == p.Metadata.UID {
				h.stop(t)
			}
			f.Delete(t, p.path())
		case isInstaller && h.pod == "":
			f.install(t, h, p)
		case !isInstaller && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].ImageID == ""):
			f.pull(t, h, p)
		}
	}
}

func (h *host) stop(t testing.TB) {
	t.Helper()
	if err := h.installer.Stop(); err != nil {
		t.Errorf("the installer on %s: %v\n%s", h.name, err, h.installer.Output())
	}
	h.pod, h.installer = "", nil
}

// install runs what the pod's container runs, with a token of the pod.
func (f *fleet) install(t testing.TB, h *host, p pod) {
	t.Helper()
	f.configs++
	dir := filepath.Join(filepath.Dir(f.kubeconfig), fmt.Sprint(f.configs))
	testenv.Must(t, os.Mkdir(dir, 0o700))
	config := f.Get(t, "/api/v1/namespaces/"+namespace+"/configmaps/pullpass-node-install")
	testenv.WriteFile(t, filepath.Join(dir, "pullpass.yaml"), config.Text("data", "pullpass.yaml"))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	f.TokenKubeconfig(t, kubeconfig, f.token(t, p))
	arguments := strings.NewReplacer("$(NODE_NAME)", h.name, "=/host", "="+h.dir, "=/etc/pullpass/config/", "="+dir+"/", "=/pullpass-credential-provider", "="+f.plugin,
		"--admin-address=:9091", "--kubeconfig="+kubeconfig)
	var args []string
	for _, argument := range p.Spec.Containers[0].Args {
		args = append(args, arguments.Replace(argument))
	}
	h.installer, h.pod = process.Start(t, exec.Command(programs.Pullpass(t), args...)), p.Metadata.UID
	f.status(t, p, "sha256:installer")
}

func (f *fleet) token(t testing.TB, p pod) string {
	t.Helper()
	return f.Token(t, cluster.TokenRequest{
		Namespace: namespace, ServiceAccount: "pullpass-node-install", Bound: &cluster.Bound{Kind: "Pod", Name: p.Metadata.Name, UID: p.Metadata.UID},
	})
}

// pull succeeds where the kubelet has read the provider configuration.
func (f *fleet) pull(t testing.TB, h *host, p pod) {
	t.Helper()
	registry, _, _ := strings.Cut(p.Spec.Containers[0].Image, "/")
	f.mu.Lock()
	works := strings.Contains(h.loaded, registry)
	if p.Metadata.Labels["pullpass.dev/node-probe"] == "true" {
		h.verified = h.verified || works
	} else {
		f.pulls = append(f.pulls, fmt.Sprintf("%s on a verified node: %t, works: %t", p.Metadata.Name, h.verified, works))
	}
	f.mu.Unlock()
	if works {
		f.status(t, p, "sha256:pulled")
		return
	}
	f.Patch(t, p.path()+"/status", cluster.Object{"status": cluster.Object{"containerStatuses": []cluster.Object{{
		"name": p.Spec.Containers[0].Name, "image": p.Spec.Containers[0].Image, "imageID": "", "ready": false, "restartCount": 0,
		"state": cluster.Object{"waiting": cluster.Object{"reason": "ErrImagePull", "message": "401 Unauthorized"}},
	}}}})
}

// status says that the pod's container runs.
func (f *fleet) status(t testing.TB, p pod, imageID string) {
	t.Helper()
	f.Patch(t, p.path()+"/status", cluster.Object{"status": cluster.Object{
		"phase": "Running", "conditions": []cluster.Object{{"type": "Ready", "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}},
		"containerStatuses": []cluster.Object{{
			"name": p.Spec.Containers[0].Name, "image": p.Spec.Containers[0].Image, "imageID": imageID, "ready": true, "restartCount": 0,
			"state": cluster.Object{"running": cluster.Object{"startedAt": time.Now().UTC().Format(time.RFC3339)}},
		}},
	}})
}

// record is what a Node says.
type record struct{ State, Revision, Reason string }

func (f *fleet) records(t testing.TB) map[string]record {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name                string
				Annotations, Labels map[string]string
			}
		}
	}
	f.Get(t, "/api/v1/nodes").Decode(t, &list)
	all := map[string]record{}
	for _, n := range list.Items {
		var r record
		if text := n.Metadata.Annotations[key]; text != "" {
			testenv.Must(t, json.Unmarshal([]byte(text), &r))
		}
		if r.State != n.Metadata.Labels[key] {
			t.Errorf("%s: label %q, record %+v", n.Metadata.Name, n.Metadata.Labels[key], r)
		}
		all[n.Metadata.Name] = r
	}
	return all
}

// until has the kubelets work until something holds of the nodes.
func (f *fleet) until(t testing.TB, what string, limit time.Duration, holds func(map[string]record) bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !t.Failed(); time.Sleep(pollPeriod) {
		f.step(t)
		now := f.records(t)
		if holds(now) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %+v", what, limit, now)
		}
	}
}

// are counts the nodes in a state.
func are(all map[string]record, state string) (n int) {
	for _, r := range all {
		if r.State == state {
			n++
		}
	}
	return n
}
