package nodeinstall

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Without hosts.toml, containerd sends pods' tokens to the registry behind the gateway.
func TestRepair(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		if changes, err := h.Repair(desired("v1.36.2")); len(changes) > 0 || err != nil || len(h.Repairable()) > 0 {
			t.Errorf("nothing is installed: %v, %v, %q", changes, err, h.Repairable())
		}
		h.apply(desired("v1.36.2"))
		wanted := h.files()
		if got, want := h.Repairable(), []string{filepath.Join(h.dir, hostsTOML), filepath.Join(h.dir, eksPlugin)}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		repair := func(d Desired, want ...string) {
			t.Helper()
			changes := testkit.Value(h.Repair(d))(t)
			if got := actions(&Plan{Changes: changes}); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		repair(desired("v1.36.2"))

		// As Spegel does: it removes the whole directory and writes its own.
		testkit.Remove(t, filepath.Join(h.dir, "etc/containerd/certs.d/ghcr.io"))
		repair(desired("v1.36.2"), "create /etc/containerd/certs.d/ghcr.io/hosts.toml: hosts.toml of ghcr.io was removed by another program")
		h.put(hostsTOML, "server = 'https://ghcr.io'\n")
		testkit.Must(t, os.Chmod(filepath.Join(h.dir, eksPlugin), 0o644))
		repair(desired("v1.36.2"),
			"replace /etc/containerd/certs.d/ghcr.io/hosts.toml: hosts.toml of ghcr.io was changed by another program",
			"replace /etc/eks/image-credential-provider/pullpass-credential-provider: the plugin was changed by another program")
		if got := h.files(); !sameFiles(got, wanted) || h.kubelet.restarts != 1 {
			t.Errorf("%d restarts, %v", h.kubelet.restarts, got)
		}

		// Files that the kubelet reads when it starts wait for their turn, and so does a different
		// version, unless the node has none that works.
		flags := h.read(eksFlags)
		h.put(eksFlags, "NODEADM_KUBELET_ARGS=--node-labels=e=f\n")
		next := desired("v1.36.2")
		next.Hosts = map[string][]byte{"ghcr.io": []byte("ANOTHER\n"), "quay.io": []byte("NEW\n")}
		repair(next)
		h.put(hostsTOML, "server = 'https://ghcr.io'\n")
		repair(next, "replace /etc/containerd/certs.d/ghcr.io/hosts.toml: hosts.toml of ghcr.io was changed by another program")
		if got := h.read(hostsTOML); got != "ANOTHER\n" {
			t.Errorf("%s", got)
		}
		h.put(hostsTOML, "server = 'https://ghcr.io'\n")
		repair(desired("v1.36.2"), "replace /etc/containerd/certs.d/ghcr.io/hosts.toml: hosts.toml of ghcr.io was changed by another program")
		if got := h.read(eksFlags); got == flags || h.read(hostsTOML) != testHosts {
			t.Errorf("%s, %s", got, h.read(hostsTOML))
		}
		h.put(eksFlags, flags)
		testkit.Remove(t, filepath.Join(h.dir, ownProvider)) // the same version, and the kubelet reads it
		without := desired("v1.36.2")
		without.Hosts = nil // the hosts.toml is not wanted any more
		repair(without)
		h.put(ownProvider, testProvider)

		testkit.Must(t, os.RemoveAll(filepath.Join(h.dir, "etc/containerd/certs.d")))
		if _, err := h.Uninstall(t.Context()); err != nil {
			t.Fatal(err)
		}
		repair(desired("v1.36.2"))
	})
}

// sameFiles compares all files except the state, which may name recreated directories.
func sameFiles(a, b map[string]string) bool {
	for _, pair := range [][2]map[string]string{{a, b}, {b, a}} {
		for name, content := range pair[0] {
			if strings.HasPrefix(name, stateDir) {
				continue
			}
			if pair[1][name] != content {
				return false
			}
		}
	}
	return true
}
