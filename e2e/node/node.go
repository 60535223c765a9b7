// Package node runs nodes of a cluster: containerd and the kubelet, configured with what "pullpass kubelet-config" prints, at
// the paths of the documentation. The tests have to run inside namespaces of package isolate.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	startLimit = 2 * time.Minute

	certsDir     = "/etc/containerd/certs.d"
	providerFile = "/etc/pullpass/credential-provider.yaml"
	pluginDir    = "/usr/local/libexec/pullpass"
	manifestDir  = "/var/lib/kubelet/manifests"
	clientFile   = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// Config configures a node.
type Config struct {
	Name, Address string
	// OldContainerd runs Debian's containerd 1 instead of version 2.
	OldContainerd bool
	// CRIO runs CRI-O in place of containerd.
	CRIO bool
	// Aliases of short names are CRI-O's [aliases] in registries.conf.
	Aliases string
	Cluster *cluster.Cluster
	// Pullpass prints the configuration of the node.
	Pullpass *pullpass.Proxy
	// Registry is its host, as in the names of images, and CA signed its certificate and that of Pullpass.
	Registry string
	CA       *certs.CA
	// Mirrors are registries that Pullpass's gateway stands in for, in place of Registry. CA signed the certificate of the gateway then.
	Mirrors []string
	// PodNetwork is the network of its pods; empty: they must have hostNetwork.
	PodNetwork string
	// Providers are more entries of providers in the CredentialProviderConfig.
	Providers string
	// Plugins are more files in the directory of plugins, or take the place of Pullpass's.
	Plugins []Plugin
	// Hosts are more hosts.toml, by the host.
	Hosts map[string]string
	// Traces is the environment that makes containerd 2 send traces; empty: it sends none.
	Traces []string
}

// Plugin is a file in the directory of plugins.
type Plugin struct {
	Name    string
	Content string // empty: that of Pullpass's plugin
}

// Node is a running node.
type Node struct {
	config  Config
	dir     string
	bin     string // directory of containerd
	view    *view
	kubelet *process.Process
}

// Start runs a node until the test ends, and waits until it is ready.
func Start(t testing.TB, config Config) *Node {
	t.Helper()
	n := StartRuntime(t, config)
	n.startKubelet(t)
	return n
}

// StartRuntime is Start without the kubelet: the node needs no cluster.
func StartRuntime(t testing.TB, config Config) *Node {
	t.Helper()
	dir := t.TempDir()
	n := &Node{config: config, dir: dir, view: newView(t, filepath.Join(dir, "view"))}
	if config.CRIO {
		n.startCRIO(t)
	} else {
		n.startContainerd(t)
	}
	n.configure(t)
	return n
}

func (n *Node) startContainerd(t testing.TB) {
	t.Helper()
	n.view.write(t, "/etc/containerd/config.toml", n.containerdConfig(), 0o644)
	n.view.write(t, "/etc/containerd/cni/10-e2e.conflist", n.networkConfig(), 0o644)
	program := programs.Containerd(t)
	if n.config.OldContainerd {
		program = programs.OldContainerd(t)
	}
	cmd := n.view.command(program, "--config=/etc/containerd/config.toml")
	// containerd finds its shim through PATH; those of different versions do not fit.
	n.bin = filepath.Dir(program)
	cmd.Env = append(append(os.Environ(), n.config.Traces...), "PATH="+n.bin+":"+os.Getenv("PATH"))
	containerd := process.Start(t, cmd)
	containerd.Await(t, startLimit, func(ctx context.Context) error { return n.ctr(ctx, "version") })
	archive := filepath.Join(n.dir, "pause.tar")
	SaveImage(t, archive, sandboxImage)
	n.ImportImage(t, archive, sandboxImage)
	testenv.Must(t, n.ctr(t.Context(), "images", "label", sandboxImage, "io.cri-containerd.pinned=pinned"))
}

// ImportImage puts the image of an archive on the node, as if it had been pulled.
func (n *Node) ImportImage(t testing.TB, archive, name string) {
	t.Helper()
	testenv.Must(t, n.ctr(t.Context(), "images", "import", archive))
	testenv.Must(t, n.ctr(t.Context(), "images", "label", name, "io.cri-containerd.image=managed"))
}

// Pull lets containerd pull an image with a pod's token, as the kubelet does with what the plugin gives it.
func (n *Node) Pull(t testing.TB, image, token string) {
	t.Helper()
	testenv.Must(t, n.ctr(t.Context(), "images", "pull", "--hosts-dir="+certsDir, "--user=serviceaccount:"+token, image))
}

// PullOnce lets containerd pull an image of which the node has nothing, with a user and password (user:password), and removes it. It
// returns how long the pull took. CRI knows nothing of it: CRI would keep the image by its digest.
func (n *Node) PullOnce(t testing.TB, image, login string) time.Duration {
	t.Helper()
	took := testenv.Value(n.TryPullOnce(t.Context(), image, login))(t)
	return took
}

// TryPullOnce is PullOnce for goroutines, which must not end a test.
func (n *Node) TryPullOnce(ctx context.Context, image, login string) (time.Duration, error) {
	const alone = "--namespace=once"
	begin := time.Now()
	if err := n.ctr(ctx, alone, "images", "pull", "--hosts-dir="+certsDir, "--user="+login, image); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, n.ctr(ctx, alone, "images", "remove", "--sync", image)
}

func (n *Node) ctr(ctx context.Context, args ...string) error {
	cmd := n.view.command(filepath.Join(n.bin, "ctr"), append([]string{"--address=/run/containerd/containerd.sock", "--namespace=k8s.io"}, args...)...)
	if output, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n") // before the last one, it says how far it is
		return fmt.Errorf("ctr %v: %w: %s", args, err, lines[len(lines)-1])
	}
	return ctx.Err()
}

// configure does what docs/how-to/kubelet.md says, with what Pullpass prints.
func (n *Node) configure(t testing.TB) {
	t.Helper()
	ca := testenv.ReadFile(t, n.config.CA.File)
	hosts := map[string]string{}
	for host, flag := range n.registries() {
		if !n.config.CRIO {
			hosts[host] = n.print(t, "hosts", flag)
			continue
		}
		dir := "/etc/containers/certs.d/" + host
		n.view.write(t, dir+"/ca.crt", ca, 0o644)
		for _, name := range []string{"client.cert", "client.key"} {
			testenv.Must(t, os.Symlink(clientFile, n.view.path(dir+"/"+name)))
		}
	}
	maps.Copy(hosts, n.config.Hosts)
	for host, content := range hosts {
		n.view.write(t, filepath.Join(certsDir, host, "hosts.toml"), uncomment(content, "ca = "), 0o644)
		n.view.write(t, filepath.Join(certsDir, host, "ca.crt"), ca, 0o644)
	}
	n.view.write(t, providerFile, n.print(t, "provider", slices.Collect(maps.Values(n.registries()))...)+n.config.Providers, 0o644)
	program := testenv.ReadFile(t, programs.CredentialProvider(t))
	own := Plugin{Name: filepath.Base(programs.CredentialProvider(t))}
	for _, plugin := range append([]Plugin{own}, n.config.Plugins...) {
		plugin.Content = cmp.Or(plugin.Content, program)
		n.view.write(t, filepath.Join(pluginDir, plugin.Name), plugin.Content, 0o755)
	}
}

// Trust replaces the CA that containerd trusts for a registry that Pullpass's gateway stands in for.
func (n *Node) Trust(t testing.TB, registry, ca string) {
	t.Helper()
	n.view.write(t, filepath.Join(certsDir, registry, "ca.crt"), ca, 0o644)
}

// registries are the hosts whose images the node pulls by Pullpass, each with the flag of "pullpass kubelet-config" for it.
func (n *Node) registries() map[string]string {
	if len(n.config.Mirrors) == 0 {
		return map[string]string{n.config.Registry: "--registry=" + n.config.Registry}
	}
	flags := map[string]string{}
	for _, mirror := range n.config.Mirrors {
		flags[mirror] = "--mirror=" + mirror
	}
	return flags
}

// print is a part of what "pullpass kubelet-config" prints for registries.
func (n *Node) print(t testing.TB, part string, registries ...string) string {
	t.Helper()
	if n.config.CRIO {
		registries = append(registries, "--cri-o")
	}
	return n.config.Pullpass.Command(t, "kubelet-config", append(registries, "--part="+part)...)
}

// uncomment takes the # from the line that begins so.
func uncomment(text, line string) string {
	return strings.Replace(text, "\n# "+line, "\n"+line, 1)
}

func (n *Node) startKubelet(t testing.TB) {
	t.Helper()
	group := testenv.Value(isolate.MakeCgroup(n.config.Name))(t)
	pair := n.config.Cluster.CA.Client(t, "system:node:"+n.config.Name, "system:nodes")
	var pem []byte
	for _, file := range []string{pair.CertFile, pair.KeyFile} {
		pem = append(pem, testenv.ReadFile(t, file)...)
	}
	n.view.write(t, clientFile, string(pem), 0o600)
	ca := testenv.ReadFile(t, n.config.Cluster.CA.File)
	n.view.write(t, "/var/lib/kubelet/pki/ca.crt", ca, 0o644)
	config := KubeletConfig(n.config.Address, group)
	if n.config.CRIO {
		config = strings.Replace(config, "/run/containerd/containerd.sock", crioSocket, 1)
	}
	n.view.write(t, "/var/lib/kubelet/config.yaml", config, 0o644)
	testenv.Must(t, os.MkdirAll(n.view.path(manifestDir), 0o755))
	n.config.Cluster.Kubeconfig(t, n.view.path("/var/lib/kubelet/kubeconfig"), clientFile, clientFile)

	flags := n.print(t, "flags", slices.Collect(maps.Values(n.registries()))...)
	_, flags, _ = strings.Cut(flags, `KUBELET_EXTRA_ARGS="`)
	flags, _, found := strings.Cut(flags, `"`)
	if !found {
		t.Fatalf("no flags of the kubelet in %q", flags)
	}
	args := append([]string{
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig=/var/lib/kubelet/kubeconfig",
		"--hostname-override=" + n.config.Name, "--node-ip=" + n.config.Address,
	}, strings.Fields(flags)...)
	n.kubelet = process.Start(t, n.view.command(programs.Kubelet(t), args...))
	n.kubelet.Await(t, startLimit, func(ctx context.Context) error {
		node, err := n.config.Cluster.Try(ctx, "GET", "/api/v1/nodes/"+n.config.Name, nil)
		if err != nil {
			return err
		}
		return ready(node)
	})
}

func ready(node cluster.Object) error {
	status, _ := node["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, condition := range conditions {
		c := cluster.Object(condition.(map[string]any))
		if c.Text("type") == "Ready" {
			if c.Text("status") == "True" {
				return nil
			}
			return errors.New(c.Text("message"))
		}
	}
	return errors.New("the kubelet has not said whether the node is ready")
}

// Name is the name of the Node.
func (n *Node) Name() string { return n.config.Name }

// Log is what the kubelet wrote.
func (n *Node) Log() string { return n.kubelet.Output() }

// Path is where the tests find what the node sees at a path.
func (n *Node) Path(place string) string { return n.view.path(place) }

// Command is a program that runs on the node and sees its files.
func (n *Node) Command(program string, args ...string) *exec.Cmd {
	return n.view.command(program, args...)
}

// StaticPod lets the kubelet run a pod from a file.
func (n *Node) StaticPod(t testing.TB, name, manifest string) {
	t.Helper()
	n.view.write(t, filepath.Join(manifestDir, name+".yaml"), manifest, 0o644)
}
