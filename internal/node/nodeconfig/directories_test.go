package nodeconfig

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestDirectoriesOfHostsFiles(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, dir    string
		isIn, placed bool
	}{
		{"/etc/containerd/certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", true, true},
		{"/etc/containerd/certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d//", true, true},
		{"/etc/containerd/certs.d/_default/hosts.toml", "/etc/certs.d", false, true},
		{"/host/etc/containerd/certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", true, true},
		{"/etc/containerd/certs.d/docker.io/hosts.toml", "/etc/certs.d", false, false},
		{"/etc/containerd/certs.d/ghcr.io/ghcr.io.toml", "/etc/certs.d", false, false},
		{"certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", true, false},
		{"s.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", false, false},
		{"/certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", false, false},
		{"/srv/certs.d/ghcr.io/hosts.toml", "/etc/containerd/certs.d", false, false},
		{"ghcr.io/hosts.toml", "/etc/containerd/certs.d", false, false},
		{"hosts.toml", "/etc/containerd/certs.d", false, false},
	} {
		h := &hostsFile{name: test.name, registry: "ghcr.io"}
		if isIn, placed := h.isIn(test.dir), h.isPlaced(); isIn != test.isIn || placed != test.placed {
			t.Errorf("%s in %s: %t, placed: %t", test.name, test.dir, isIn, placed)
		}
	}
}

// On a node, one directory may be a link to the other.
func TestDirectoriesThatAreLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
	testkit.Must(t, os.Mkdir(filepath.Join(root, "b"), 0o755))
	testkit.Must(t, os.Symlink("a", filepath.Join(root, "link")))
	for dir, want := range map[string]bool{"a": true, "link": true, "b": false, "none": false} {
		if got := isSame(filepath.Join(root, dir), filepath.Join(root, "a")); got != want {
			t.Errorf("%s: %t", dir, got)
		}
		if got := isAt(filepath.Join(root, dir), filepath.Join(root, "a")); got != want {
			t.Errorf("at %s: %t", dir, got)
		}
	}
}
