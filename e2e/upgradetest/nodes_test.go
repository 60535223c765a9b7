package upgradetest

import (
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// nodeConfig is what the installer reads, with a registry and an upstream.
const nodeConfig = `apiVersion: VERSION
kind: ProxyConfiguration
clusters: [{name: prod, issuer: "https://issuer.example.com", audiences: [gateway.example.com]}]
registries: [{service: gateway.example.com, issuer: pullpass.example.com}]
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}]
policyFiles: [policy.yaml]
`

// machine is a node that kubeadm made, in a directory. Its kubelet is simulated.
type machine struct {
	dir, files string
	restarts   atomic.Int32
}

// TestNodes has one release install on a node, and the other take that over and away. Then the node is as it was.
func TestNodes(t *testing.T) {
	healthz := testenv.Value(net.Listen("tcp", "127.0.0.1:10248"))(t)
	kubelet := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = kubelet.Serve(healthz) }()
	t.Cleanup(func() { _ = kubelet.Close() })
	former := programs.FormerRelease(t)
	before, after := installer{former.Program, formerVersion}, installer{programs.Pullpass(t), currentVersion}
	for name, way := range map[string]struct{ first, then installer }{
		"upgrade":   {before, after},
		"downgrade": {after, before},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMachine(t)
			bare := m.tree(t)
			if said := m.apply(t, way.first, "the plugin"); !strings.Contains(said, ", with a restart of kubelet.service\n") || m.restarts.Load() != 1 {
				t.Fatalf("%d restarts: %s", m.restarts.Load(), said)
			}
			installed := m.tree(t)
			if said := m.apply(t, way.then, "the plugin"); said != "kubeadm: 0 changes\n" || !maps.Equal(m.tree(t), installed) {
				t.Errorf("the other release changes what is installed: %s", said)
			}
			if said := m.apply(t, way.then, "another plugin"); !strings.HasPrefix(said, "kubeadm: 1 changes\n") {
				t.Errorf("another plugin: %s", said)
			}
			if said := m.apply(t, way.first, "another plugin"); said != "kubeadm: 0 changes\n" || m.restarts.Load() != 1 {
				t.Errorf("the first release again, after %d restarts: %s", m.restarts.Load(), said)
			}
			m.run(t, way.then, "uninstall")
			if left := m.tree(t); !maps.Equal(left, bare) || m.restarts.Load() != 2 {
				t.Errorf("%d restarts, and what is left is\n%v, before there was\n%v", m.restarts.Load(), left, bare)
			}
		})
	}
}

type installer struct{ program, version string }

func startMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir(), files: t.TempDir()}
	systemd := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/restart/") {
			m.restarts.Add(1)
		}
	}))
	t.Cleanup(systemd.Close)
	for file, content := range map[string]string{
		"etc/simulated-kubelet":                                    systemd.URL,
		"etc/containerd/config.toml":                               "version = 3\n[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n",
		"var/lib/kubelet/kubeadm-flags.env":                        "KUBELET_KUBEADM_ARGS=\"\"\n",
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nEnvironmentFile=-/etc/default/kubelet\n",
		"usr/bin/systemctl":                                        testenv.ReadFile(t, programs.SimulatedSystemd(t)),
		"usr/bin/systemd-run":                                      testenv.ReadFile(t, programs.SimulatedSystemd(t)),
		"run/systemd/system/other":                                 "",
		"proc/other":                                               "",
		"dev/null":                                                 "",
	} {
		file = filepath.Join(m.dir, file)
		testenv.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		testenv.Must(t, os.WriteFile(file, []byte(content), 0o755))
	}
	proc := filepath.Join(m.dir, "proc")
	testenv.Must(t, syscall.Mount("/proc", proc, "", syscall.MS_BIND|syscall.MS_REC, ""))
	t.Cleanup(func() { testenv.Must(t, syscall.Unmount(proc, syscall.MNT_DETACH)) })
	return m
}

func (m *machine) apply(t *testing.T, by installer, plugin string) string {
	t.Helper()
	config := testenv.WriteFile(t, filepath.Join(m.files, "pullpass.yaml"), strings.Replace(nodeConfig, "VERSION", by.version, 1))
	file := testenv.WriteFile(t, filepath.Join(m.files, "plugin"), plugin)
	return m.run(t, by, "apply", "--config="+config, "--mirror=ghcr.io", "--plugin="+file, "--kubelet-version=v1.36.2")
}

func (m *machine) run(t *testing.T, by installer, command string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), by.program, append([]string{"node-install", command, "--host-root=" + m.dir}, args...)...)
	var stderr strings.Builder
	c.Stderr = &stderr
	output, err := c.Output()
	if err != nil {
		t.Fatalf("node-install %s: %v: %s%s", command, err, output, &stderr)
	}
	return string(output)
}

// tree is all of the node but what the kernel has there.
func (m *machine) tree(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	testenv.Must(t, filepath.WalkDir(m.dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == filepath.Join(m.dir, "proc"):
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if info.Mode().IsRegular() && !strings.Contains(name, "/usr/bin/") {
			text += " " + testenv.ReadFile(t, name)
		}
		all[strings.TrimPrefix(name, m.dir)] = text
		return nil
	}))
	return all
}
