package nodeinstall

import "testing"

func TestClusterAPI(t *testing.T) {
	t.Parallel()
	checkGuide(t, "cluster-api", "/etc/containerd/certs.d/ghcr.io/hosts.toml", func(t *testing.T, d map[string]any) string {
		if content := at(t, d, "spec", "template", "spec", "files", 1, "content"); content != testHosts {
			t.Errorf("hosts.toml: %q", content)
		}
		return at(t, d, "spec", "template", "spec", "files", 0, "content").(string)
	})
}
