package machinetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestPlatforms takes nodes of all platforms through all that an installer does to them.
func TestPlatforms(t *testing.T) {
	s := startSite(t)
	t.Cleanup(func() { t.Log(&s.table) })
	old := func(p platform, kubelet, containerd bool) platform {
		p.oldKubelet, p.oldContainerd = kubelet, containerd
		return p
	}
	t.Run("life", func(t *testing.T) {
		for i, p := range []platform{
			kubeadm(), old(kind(), false, true), rancher("k3s", "k3s-agent.service", true), rancher("rke2", "rke2-server.service", false),
			old(microk8s(), false, true), eks(), old(eks(), true, false), aks(), old(aks(), true, true), old(gke(), false, true), old(kubeadm(), true, false),
		} {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				life(t, s.newHost(t, i+1, p))
			})
		}
		t.Run("printed", func(t *testing.T) {
			t.Parallel()
			printed(t, s)
		})
		t.Run("broken", func(t *testing.T) {
			t.Parallel()
			p := old(kubeadm(), true, false)
			p.gateOff = true
			broken(t, s.newHost(t, 100, p))
		})
	})
}

func life(t *testing.T, h *host) {
	if h.cloudConfig != "" {
		h.runs(t, cloudName)
		h.saw("the platform's own registry, before", "a pod runs")
	}
	bare := h.tree(t)
	output := testenv.Value(h.install(t.Context(), append([]string{"plan"}, h.desired(t, before)...)...))(t)
	same(t, "after plan", h.tree(t), bare)
	first := h.process(t)
	if applied := h.apply(t, before); applied != output || !strings.HasPrefix(applied, h.platform.name+": ") || !strings.Contains(applied, ", with a restart of "+h.unit+"\n") {
		t.Errorf("apply says\n%swhat plan said was\n%s", applied, output)
	}
	second := h.process(t)
	if second == first {
		t.Error("the kubelet was not restarted")
	}
	h.saw("installed", "%s", strings.SplitN(output, "\n", 2)[0])
	h.both(t, "installed")

	installed := h.tree(t)
	if again := h.apply(t, before); again != h.platform.name+": 0 changes\n" {
		t.Errorf("the second apply says %s", again)
	}
	same(t, "after the second apply", h.tree(t), installed)
	if h.process(t) != second {
		t.Error("the second apply restarted the kubelet")
	}
	h.saw("installed again", "nothing was written")

	// A new plugin needs no restart, a new audience does.
	content := testenv.ReadFile(t, h.plugin)
	h.plugin = filepath.Join(t.TempDir(), filepath.Base(h.plugin))
	testenv.Must(t, os.WriteFile(h.plugin, []byte(content+"\n"), 0o755))
	if upgraded := h.apply(t, before); !strings.HasPrefix(upgraded, h.platform.name+": 1 changes\n") || h.process(t) != second {
		t.Errorf("a new plugin: %s", upgraded)
	}
	if upgraded := h.apply(t, registryName); !strings.HasPrefix(upgraded, h.platform.name+": 1 changes, with a restart") || h.process(t) == second {
		t.Errorf("a new audience: %s", upgraded)
	}
	h.saw("upgraded", "the plugin without a restart, the audience with one")
	h.both(t, "upgraded")
	h.drifts(t)
	h.restarts(t)

	testenv.Value(h.install(t.Context(), "uninstall"))(t)
	touched := []string{h.drift, h.cloudConfig}
	for name, text := range installed {
		if bare[name] != text {
			touched = append(touched, name)
		}
	}
	same(t, "after uninstall", withoutTimes(h.tree(t), touched...), withoutTimes(bare, touched...))
	h.saw("uninstalled", "%d files are as they were", len(bare))
	pod := h.start(t, registryName)
	defer func() {
		if t.Failed() {
			t.Logf("events of %s/%s: %+v", pod.Namespace(), pod.Name(), h.Events(t, pod))
		}
	}()
	testenv.Await(t, podLimit, "a pull without the plugin fails", func() bool {
		return slices.ContainsFunc(h.Events(t, pod), func(e cluster.Event) bool {
			return e.Reason == "Failed" && strings.HasPrefix(e.Message, "Failed to pull image")
		})
	})
	if h.cloudConfig != "" {
		h.runs(t, cloudName)
	}
	h.saw("after it", "pulls are anonymous")
}

// both pulls from Pullpass's registry, and from the platform's own.
func (h *host) both(t *testing.T, when string) {
	t.Helper()
	h.runs(t, registryName)
	if h.cloudConfig != "" {
		h.runs(t, cloudName)
	}
	h.saw(when+": pulls by the plugin, and the platform's", "pods run")
}

// restarts switches the machine off and on.
func (h *host) restarts(t *testing.T) {
	t.Helper()
	if h.starts == "" {
		return
	}
	h.PowerOff(t)
	if h.starts == "reset" { // as on COS, whose /etc is in memory
		testenv.Must(t, os.RemoveAll(h.Path("/etc")))
		copyTree(t, h.pristine+"/etc", h.Path("/etc"))
	}
	beat := h.ready(t)
	h.Boot(t)
	testenv.Await(t, podLimit, h.Machine.Name()+" is ready again", func() bool { now := h.ready(t); return now != "" && now != beat })
	applied := h.apply(t, registryName)
	want := map[string]string{"as they were": ": 0 changes\n", "anew": ": 1 changes, with a restart of ", "reset": ": 5 changes, with a restart of "}[h.starts]
	if !strings.HasPrefix(applied, h.platform.name+want) {
		t.Errorf("after a start of the machine: %s, want %s", applied, want)
	}
	h.saw("the machine starts, and its files are "+h.starts, "%s", strings.SplitN(applied, "\n", 2)[0])
	h.both(t, "after it")
}

// drifts undoes what was installed.
func (h *host) drifts(t *testing.T) {
	t.Helper()
	wanted := h.tree(t)
	var lost []string
	for name := range wanted {
		if filepath.Base(name) == "pullpass-credential-provider" || strings.HasSuffix(name, registryName+"/hosts.toml") {
			lost = append(lost, name)
			testenv.Must(t, os.Remove(h.Path(name)))
		}
	}
	if h.flags == nil {
		testenv.Must(t, os.RemoveAll(h.Path(h.drift)))
	} else {
		testenv.Must(t, os.WriteFile(h.Path(h.drift), h.flags, 0o644))
	}
	lost = append(lost, h.drift)
	h.apply(t, registryName)
	lost = append(lost, "/var/lib/pullpass/node-install/state.json")
	same(t, "after drift", withoutTimes(h.tree(t), lost...), withoutTimes(wanted, lost...))
	h.runs(t, registryName)
	h.saw("repaired", "%d files", len(lost)-1)
}
