package nodeinstall

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestTalos(t *testing.T) {
	t.Parallel()
	checkGuide(t, "talos", `
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: "ghcr.io"
endpoints:
- url: "https://gateway.example.com/v2/ghcr.io"
  overridePath: true
skipFallback: true `, func(t *testing.T, d map[string]any) string {
		if d["apiVersion"] != "v1alpha1" || d["kind"] != "KubeCredentialProviderConfig" || len(d) != 3 {
			t.Errorf("not the document of Talos 1.14: %v", d)
		}
		provider := testkit.Value(yaml.Marshal(at(t, d, "configuration")))(t)
		return string(provider)
	})
}

// Pullpass would refuse every pull of such a node.
func TestTalosPresentsNoCertificate(t *testing.T) {
	t.Parallel()
	for _, platform := range []string{"talos", "talos-1.13"} {
		var b bytes.Buffer
		g := Guidance{Provider: testProvider, Plugin: "p", OnlyCertificate: true}
		if err := g.Write(&b, platform); !errors.Is(err, ErrProfile) || b.Len() > 0 || !strings.Contains(err.Error(), "the containerd of "+platform+" cannot present the kubelet's; add address to methods") {
			t.Errorf("%s: %v, %q", platform, err, &b)
		}
		g.OnlyCertificate = false
		testkit.Must(t, g.Write(&b, platform))
	}
	testkit.Must(t, Guidance{Provider: testProvider, OnlyCertificate: true}.Write(io.Discard, "cluster-api"))
}

func TestTalos113(t *testing.T) {
	t.Parallel()
	checkGuide(t, "talos-1.13", `endpoints: ["https://gateway.example.com/v2/ghcr.io"]`, func(t *testing.T, d map[string]any) string {
		provider := testkit.Value(yaml.Marshal(at(t, d, "machine", "kubelet", "credentialProviderConfig")))(t)
		if at(t, d, "machine", "registries", "mirrors", "ghcr.io", "skipFallback") != true {
			t.Error("the registry itself would be asked, too")
		}
		return string(provider)
	})
}
