package nodeinstall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	socket   = "run/containerd/containerd.sock"
	settings = "etc/containerd/config.toml"
	imported = "etc/containerd/conf.d/a.toml"
)

// startContainerd makes the socket anew, with the age that it has since.
func (h *host) startContainerd(socket string, ago time.Duration) {
	h.t.Helper()
	h.put(socket, "")
	h.age(socket, ago)
}

// age changes when a file was modified, which the kernel notes as a change of today.
func (h *host) age(name string, ago time.Duration) {
	h.t.Helper()
	name = filepath.Join(h.dir, name)
	info := testkit.Value(os.Stat(name))(h.t)
	testkit.Must(h.t, os.Chtimes(name, time.Time{}, info.ModTime().Add(-ago)))
}

// later repeats a change of a file until the clock of the files shows that it came after the start of containerd.
func (h *host) later(name string, change func()) {
	h.t.Helper()
	start, _, err := h.tree.Times("/" + socket)
	testkit.Must(h.t, err)
	for {
		change()
		_, changed, err := h.tree.Times("/" + name)
		testkit.Must(h.t, err)
		if changed.After(start) {
			return
		}
	}
}

// A containerd that has not read its configuration of today may send the pods' tokens to the registries.
func TestContainerdThatWasNotRestarted(t *testing.T) {
	t.Parallel()
	imports := func(h *host) {
		h.put(settings, "imports = ['/etc/containerd/conf.d/*.toml']\n"+h.read("/"+settings))
		h.put(imported, "")
	}
	for name, test := range map[string]struct {
		platform string
		set      func(h *host)
		want     string // an error; empty: none
	}{
		"restarted":            {"kubeadm", func(h *host) { h.startContainerd(socket, 0) }, ""},
		"no containerd":        {"kubeadm", func(*host) {}, ""},
		"another containerd":   {"k3s", func(h *host) { h.startContainerd(socket, time.Hour) }, ""},
		"not restarted":        {"kubeadm", func(h *host) { h.startContainerd(socket, time.Hour) }, settings + " was changed at "},
		"an old file, put in":  {"kubeadm", func(h *host) { h.age(settings, 24*time.Hour); h.startContainerd(socket, time.Hour) }, settings},
		"a time in the future": {"kubeadm", func(h *host) { h.age(settings, -time.Hour); h.startContainerd(socket, 0) }, ""},
		"imports, restarted":   {"kubeadm", func(h *host) { imports(h); h.startContainerd(socket, 0) }, ""},
		"an imported file": {"kubeadm", func(h *host) {
			imports(h)
			h.startContainerd(socket, 0)
			h.later(imported, func() { h.put(imported, "") })
		}, imported},
		"a file behind a link": {"kubeadm", func(h *host) {
			behindLink(h)
			h.startContainerd(socket, 0)
			h.later("srv/c.toml", func() { h.put("srv/c.toml", h.read("/srv/c.toml")) })
		}, settings},
		"a link": {"kubeadm", func(h *host) { behindLink(h); h.startContainerd(socket, 0) }, ""},
		"a link to another file": {"kubeadm", func(h *host) {
			behindLink(h)
			h.startContainerd(socket, 0)
			h.later(settings, func() {
				testkit.Remove(h.t, filepath.Join(h.dir, settings))
				h.link(settings, "/srv/c.toml")
			})
		}, settings},
		"a socket behind a link": {"kubeadm", func(h *host) {
			h.link(socket, "../k3s.sock")
			h.startContainerd("run/k3s.sock", time.Hour)
		}, settings},
		"a clock that was set back": {"kubeadm", func(h *host) { h.startContainerd(socket, -time.Hour) }, "; restart containerd"},
		"k3s, set back":             {"k3s", func(h *host) { h.startContainerd("run/k3s/containerd/containerd.sock", -time.Hour) }, "in the future: the clock was set back after containerd started"},

		"kind":     {"kind", func(h *host) { h.startContainerd(socket, time.Hour) }, "; restart containerd"},
		"k3s":      {"k3s", func(h *host) { h.startContainerd("run/k3s/containerd/containerd.sock", time.Hour) }, "; restart k3s"},
		"rke2":     {"rke2", func(h *host) { h.startContainerd("run/k3s/containerd/containerd.sock", time.Hour) }, "; restart rke2"},
		"microk8s": {"microk8s", func(h *host) { h.startContainerd("var/snap/microk8s/common/run/containerd.sock", time.Hour) }, "; restart containerd"},
		"eks":      {"eks", func(h *host) { h.startContainerd(socket, time.Hour) }, "; restart containerd"},
		"aks":      {"aks", func(h *host) { h.startContainerd(socket, time.Hour) }, "; restart containerd"},
		"gke":      {"gke", func(h *host) { h.startContainerd(socket, time.Hour) }, "; restart containerd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, test.platform)
			test.set(h)
			d := desired("v1.36.2")
			if test.want != "" {
				h.untouched(ErrProfile, test.want, func() error { _, err := h.Apply(t.Context(), d); return err })
			} else if _, err := h.Status(d); err != nil {
				t.Error(err)
			}
			d.Hosts = nil // so containerd does not matter
			if _, err := h.Status(d); err != nil {
				t.Errorf("without hosts.toml: %v", err)
			}
		})
	}
}

func behindLink(h *host) {
	h.put("srv/c.toml", h.read("/"+settings))
	testkit.Remove(h.t, filepath.Join(h.dir, settings))
	h.link(settings, "/srv/c.toml")
}

// The containerd of an installed node has read its hosts.toml before, so the node is repaired, and gets new
// versions. Only an additional file has to wait.
func TestInstalledNodeWhoseContainerdWasNotRestarted(t *testing.T) {
	onHost(t, "kubeadm", func(t *testing.T, h *host) {
		d := desired("v1.36.2")
		h.startContainerd(socket, 0)
		h.before = h.files()
		h.apply(d)
		remarks := func() string { return strings.Join(testkit.Value(h.Remarks(d))(t), "\n") }
		if got := remarks(); got != "" {
			t.Errorf("restarted: %q", got)
		}
		h.startContainerd(socket, time.Hour)
		if got := remarks(); !strings.Contains(got, settings+" was changed at ") || !strings.HasSuffix(got, "; restart containerd") {
			t.Errorf("not restarted: %q", got)
		}
		if plan := h.apply(d); len(plan.Changes) > 0 {
			t.Errorf("%q", actions(plan))
		}
		h.startContainerd(socket, -time.Hour)
		if got := remarks(); !strings.Contains(got, "the clock was set back") {
			t.Errorf("set back: %q", got)
		}
		h.startContainerd(socket, time.Hour)
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		if changes := testkit.Value(h.Repair(d))(t); len(changes) != 1 {
			t.Errorf("repaired: %v", changes)
		}
		d.Plugin = []byte("NEW\n")
		if plan := h.apply(d); len(plan.Changes) != 1 {
			t.Errorf("%q", actions(plan))
		}
		testkit.Remove(t, filepath.Join(h.dir, "etc/default/kubelet"))
		h.apply(d)
		more := d
		more.Hosts = map[string][]byte{"ghcr.io": []byte(testHosts), "docker.io": []byte(testHosts)}
		h.untouched(ErrProfile, settings, func() error { _, err := h.Apply(t.Context(), more); return err })
		h.startContainerd(socket, 0)
		h.apply(more)
		h.startContainerd(socket, time.Hour)
		h.expectUninstalled()
	})
}
