package nodeinstall

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestKarpenter(t *testing.T) {
	t.Parallel()
	checkGuide(t, "karpenter", "    cat >/etc/containerd/certs.d/ghcr.io/hosts.toml <<'EOF'\n    HOSTS\n    EOF\n", func(t *testing.T, d map[string]any) string {
		_, rest, _ := strings.Cut(at(t, d, "spec", "userData").(string), "/pullpass.yaml <<'EOF'\n")
		provider, _, _ := strings.Cut(rest, "EOF\n")
		return provider
	})
}

// containerd would fail every pull.
func TestGuidanceForKubeletsWithoutACertificate(t *testing.T) {
	t.Parallel()
	g := Guidance{Provider: testProvider, Client: "/client.pem", Hosts: map[string]string{"ghcr.io": testHosts, "quay.io": "client = \"/client.pem\"\n"}}
	if err := g.Write(io.Discard, "karpenter"); !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "kubelets of eks have none") {
		t.Errorf("error %v", err)
	}
	testkit.Must(t, g.Write(io.Discard, "cluster-api"))
	delete(g.Hosts, "quay.io")
	testkit.Must(t, g.Write(io.Discard, "karpenter"))
}
