package machinetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/machine"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// host is a machine of a platform, a node of the cluster.
type host struct {
	*machine.Machine
	*site
	platform
	program  string // pullpass
	plugin   string // file that is installed
	pristine string // directory with a copy of /etc, for a platform that resets it
	flags    []byte // what the platform has in the file that may drift; nil: there is none
	pods     int
	since    time.Time
}

// newHost makes a node as its platform leaves it, and waits until it is ready.
func (s *site) newHost(t *testing.T, number int, p platform) *host {
	t.Helper()
	name := p.name
	if p.oldKubelet {
		name += "-1-33"
	}
	if p.gateOff {
		name += "-broken"
	}
	dirs := []string{filepath.Dir(programs.Pullpass(t)), filepath.Dir(programs.Kubelet(t)), filepath.Dir(programs.OldKubelet(t)), filepath.Dir(programs.Containerd(t)), os.TempDir()}
	h := &host{site: s, platform: p, program: programs.Pullpass(t), plugin: programs.CredentialProvider(t), since: time.Now()}
	h.Machine = machine.New(t, machine.Config{
		Name: name, Number: number, Programs: dirs,
		Hosts: map[string]string{registryName: isolate.Addresses()[0], cloudName: isolate.Addresses()[1]},
	})
	h.configure(t)
	if content, err := os.ReadFile(h.Path(p.drift)); err == nil {
		h.flags = content
	}
	if p.starts == "reset" {
		h.pristine = t.TempDir()
		copyTree(t, h.Path("/etc"), h.pristine+"/etc")
	}
	s.CreateNamespace(t, name, nil)
	s.CreateServiceAccount(t, name, "puller", nil)
	h.Boot(t)
	h.importSandbox(t)
	h.awaitReady(t)
	h.saw("a node as the platform leaves it", "kubelet %s, containerd %s", h.version(t), h.containerdVersion(t))
	return h
}

// saw adds a line to the table, with the time since the last.
func (h *host) saw(what, format string, args ...any) {
	h.table.add(h.Name(), what, time.Since(h.since), format, args...)
	h.since = time.Now()
}

// configure writes what the platform has.
func (h *host) configure(t *testing.T) {
	t.Helper()
	data := cmp.Or(h.data, "/var/lib/kubelet")
	etc := cmp.Or(h.etc, "/etc/containerd")
	flags := []string{"--config=" + data + "/config.yaml", "--kubeconfig=" + data + "/kubeconfig", "--hostname-override=" + h.Name(), "--node-ip=" + h.Address()}
	values := strings.NewReplacer("@WORDS@", strings.ReplaceAll(strings.Join(flags, " "), "--", ""), "@CONTAINERD@", h.containerd(t),
		"@FLAGS@", strings.Join(flags, " "), "@CONFIG@", data+"/config.yaml", "@NAME@", h.Name(), "@ADDRESS@", h.Address())
	for name, content := range h.files {
		h.Write(t, name, values.Replace(content), 0o644)
	}
	for _, unit := range h.enabled {
		h.Link(t, "/etc/systemd/system/multi-user.target.wants/"+unit, "/etc/systemd/system/"+unit)
	}
	kubelet := programs.Kubelet(t)
	if h.oldKubelet {
		kubelet = programs.OldKubelet(t)
	}
	h.Link(t, "/usr/bin/kubelet", kubelet)
	if h.name == "k3s" || h.name == "rke2" {
		h.Link(t, "/usr/local/bin/"+h.name, programs.Rancher(t))
	}

	h.Write(t, data+"/config.yaml", h.kubeletConfig(h.Address()), 0o644)
	pair := h.CA.Client(t, "system:node:"+h.Name(), "system:nodes")
	certificate, key, ca := testenv.ReadFile(t, pair.CertFile), testenv.ReadFile(t, pair.KeyFile), testenv.ReadFile(t, h.CA.File)
	client, clientKey := cmp.Or(h.client, "/etc/sign-in.pem"), cmp.Or(h.key, h.client, "/etc/sign-in.pem")
	if client == clientKey {
		h.Write(t, client, certificate+key, 0o600)
	} else {
		h.Write(t, client, certificate, 0o644)
		h.Write(t, clientKey, key, 0o600)
	}
	h.Write(t, data+"/pki/ca.crt", ca, 0o644)
	h.Write(t, data+"/kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://10.96.0.1", certificate-authority: %s/pki/ca.crt}}]
users: [{name: e2e, user: {client-certificate: %s, client-key: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
current-context: e2e
`, data, client, clientKey), 0o600)

	config := etc + "/config.toml"
	if h.name == "microk8s" {
		config = etc + "/containerd-template.toml"
		h.Link(t, "/var/snap/microk8s/current", "8120")
	}
	h.Write(t, config, h.containerdConfig(h.Address()), 0o644)
	h.Write(t, etc+"/cni/10-e2e.conflist", node.NoNetwork, 0o644)
	h.Write(t, h.certs()+"/"+cloudName+"/hosts.toml", "server = \"https://"+cloudName+"\"\nca = \"ca.crt\"\n[host]\n", 0o644)
	h.Write(t, h.certs()+"/"+cloudName+"/ca.crt", testenv.ReadFile(t, h.ca.File), 0o644)
	if h.cloudConfig != "" {
		h.Write(t, h.cloudConfig, cloudProvider(h.cloudConfig), 0o600)
		h.Write(t, h.cloudBin+"/"+cloudPlugin, cloudProgram, 0o755)
	}
	if strings.HasPrefix(h.unit, "k3s") || strings.HasPrefix(h.unit, "rke2") {
		return // they run containerd themselves
	}
	prepare := ""
	if h.name == "microk8s" {
		prepare = fmt.Sprintf("ExecStartPre=/bin/sh -c \"sed 's|$${SNAP_DATA}|/var/snap/microk8s/current|' %s >%s/containerd.toml\"\n", config, etc)
		config = etc + "/containerd.toml"
	}
	h.Write(t, "/etc/systemd/system/containerd.service", fmt.Sprintf(`[Service]
%sEnvironment=PATH=%s:/usr/sbin:/usr/bin
ExecStart=%s --config=%s
Type=notify
Delegate=yes
KillMode=process
Restart=always
`, prepare, path.Dir(h.containerd(t)), h.containerd(t), config), 0o644)
	h.Link(t, "/etc/systemd/system/multi-user.target.wants/containerd.service", "/etc/systemd/system/containerd.service")
}

func (h *host) containerd(t *testing.T) string {
	t.Helper()
	if h.oldContainerd {
		return programs.OldContainerd(t)
	}
	return programs.Containerd(t)
}

func (h *host) ctr(ctx context.Context, t *testing.T, args ...string) (string, error) {
	t.Helper()
	return h.Run(ctx, path.Dir(h.containerd(t))+"/ctr", append([]string{"--address=" + cmp.Or(h.runtime, "/run/containerd") + "/containerd.sock", "--namespace=k8s.io"}, args...)...)
}

func (h *host) importSandbox(t *testing.T) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "pause.tar")
	node.SaveImage(t, archive, node.SandboxImage)
	testenv.Await(t, podLimit, "containerd of "+h.Name()+" answers", func() bool { _, err := h.ctr(t.Context(), t, "version"); return err == nil })
	for _, args := range [][]string{
		{"images", "import", archive},
		{"images", "label", node.SandboxImage, "io.cri-containerd.image=managed", "io.cri-containerd.pinned=pinned"},
	} {
		testenv.Value(h.ctr(t.Context(), t, args...))(t)
	}
}

func (h *host) containerdVersion(t *testing.T) string {
	t.Helper()
	version := testenv.Value(h.ctr(t.Context(), t, "version"))(t)
	_, server, _ := strings.Cut(version, "Server:")
	_, version, _ = strings.Cut(server, "Version:")
	version, _, _ = strings.Cut(strings.TrimSpace(version), "\n")
	return version
}

// version is that of the kubelet, as the Node has it.
func (h *host) version(t *testing.T) string {
	t.Helper()
	return h.Get(t, "/api/v1/nodes/"+h.Name()).Text("status", "nodeInfo", "kubeletVersion")
}

// ready is since when the Node is, and empty if it is not.
func (h *host) ready(t *testing.T) (heartbeat string) {
	t.Helper()
	object, err := h.Try(t.Context(), "GET", "/api/v1/nodes/"+h.Name(), nil)
	if err != nil {
		return ""
	}
	status, _ := object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, condition := range conditions {
		if c := cluster.Object(condition.(map[string]any)); c.Text("type") == "Ready" && c.Text("status") == "True" {
			return c.Text("lastHeartbeatTime")
		}
	}
	return ""
}

func (h *host) awaitReady(t *testing.T) {
	t.Helper()
	testenv.Await(t, podLimit, h.Name()+" is ready", func() bool { return h.ready(t) != "" })
}

// install runs "pullpass node-install" as in a pod: in a root directory of its own, where the host's is /host, with hostPID.
func (h *host) install(ctx context.Context, args ...string) (string, error) {
	const script = `pod=/run/installer.$$
mkdir "$pod"
mount -t tmpfs tmpfs "$pod"
cd "$pod"
mkdir host proc dev
mount --rbind / host
mount --rbind /dev dev
mount -t proc proc proc
while [ "$1" != -- ]; do
	mkdir -p "./$1"
	mount --bind "$1" "./$1"
	shift
done
shift
exec chroot . "$@"
`
	shell := []string{"--mount", "sh", "-euc", script, "sh", filepath.Dir(h.program), os.TempDir(), "--", h.program, "node-install"}
	output, err := h.Run(ctx, "unshare", append(append(shell, args...), "--host-root=/host")...)
	// Each run warns about kubelets of 1.33.
	for strings.HasPrefix(output, "warning: kubelet 1.33") {
		_, output, _ = strings.Cut(output, "\n")
	}
	return output, err
}

// desired are the arguments of apply and plan.
func (h *host) desired(t *testing.T, audience string) []string {
	t.Helper()
	return []string{
		"--config=" + h.config(t, audience, h.client != ""), "--registry=" + registryName, "--plugin=" + h.plugin, "--ca=" + h.ca.File, "--kubelet-version=" + h.version(t),
	}
}

// apply expects changes, and says whether the kubelet was restarted.
func (h *host) apply(t *testing.T, audience string) (output string) {
	t.Helper()
	output = testenv.Value(h.install(t.Context(), append([]string{"apply"}, h.desired(t, audience)...)...))(t)
	return output
}

// process tells a start of the kubelet from another.
func (h *host) process(t *testing.T) string {
	t.Helper()
	id := testenv.Value(h.Run(t.Context(), "systemctl", "show", "--property=InvocationID", "--value", h.unit))(t)
	return id
}

// start creates a pod with an image that was never pulled.
func (h *host) start(t *testing.T, registry string) cluster.Object {
	t.Helper()
	h.pods++
	repository := fmt.Sprintf("%s/web-%d", h.Machine.Name(), h.pods)
	image := h.push(t, registry, repository)
	return h.Create(t, "/api/v1/namespaces/"+h.Machine.Name()+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": fmt.Sprintf("web-%d", h.pods)},
		"spec": cluster.Object{
			"nodeName": h.Machine.Name(), "serviceAccountName": "puller", "hostNetwork": true, "terminationGracePeriodSeconds": 0,
			"containers": []cluster.Object{{"name": "c", "image": image, "imagePullPolicy": "Always"}},
		},
	})
}

// runs starts a pod, and waits until it runs.
func (h *host) runs(t *testing.T, registry string) {
	t.Helper()
	pod := h.start(t, registry)
	defer func() {
		if t.Failed() {
			t.Logf("events of %s/%s: %+v", pod.Namespace(), pod.Name(), h.Events(t, pod))
		}
	}()
	testenv.Await(t, podLimit, "pod "+pod.Namespace()+"/"+pod.Name()+" runs", func() bool {
		return h.Get(t, cluster.PodPath(pod)).Text("status", "phase") == "Running"
	})
	if registry == registryName {
		h.judge(t, pod)
	}
}

// judge looks at what Pullpass says of a pod's pull.
func (h *host) judge(t *testing.T, pod cluster.Object) {
	t.Helper()
	seen := h.proxy.AwaitAudit(t, 0, "pod "+pod.Name()+", granted", func(e pullpass.Event) bool { return e.Pod.UID == pod.UID() && e.Result == "granted" })
	if proven := seen.Proof != nil && seen.Proof.Passed; proven != (h.client != "") {
		t.Errorf("%s: the proof of the node is %+v", h.Name(), seen.Proof)
	}
}

// tree is all files of the machine except those that its kubelet, containerd and systemd write while they run.
func (h *host) tree(t *testing.T) map[string]string {
	t.Helper()
	data := cmp.Or(h.data, "/var/lib/kubelet")
	return h.Tree(t, func(name string) bool {
		switch {
		case name == "/var/log" || name == "/var/lib/containerd" || name == "/var/lib/systemd" || name == "/var/lib/cni" || name == h.runtime:
			return true
		case path.Dir(name) == data:
			base := path.Base(name)
			return !strings.Contains(base, "config") && !strings.Contains(base, "flags") && !strings.HasPrefix(base, "credential-provider")
		}
		return false
	})
}

// same compares trees.
func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: %s: %q, want %q", what, name, got[name], text)
		}
	}
	for name, text := range got {
		if _, wanted := want[name]; !wanted {
			t.Errorf("%s: %s: %q is new", what, name, text)
		}
	}
}

// withoutTimes is a tree without the times of some files.
func withoutTimes(tree map[string]string, names ...string) map[string]string {
	all := maps.Clone(tree)
	for _, name := range names {
		if fields := strings.Fields(all[name]); len(fields) > 3 {
			all[name] = strings.Join([]string{fields[0], fields[1], fields[len(fields)-1]}, " ")
		}
	}
	return all
}

// copyTree copies a directory with all that the kernel knows of its files.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, output)
	}
}
