package nodeinstall

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The output is YAML, and every file in it equals the file on a node.
func TestGuidance(t *testing.T) {
	t.Parallel()
	for platform, test := range map[string]struct {
		find  func(t *testing.T, document map[string]any) (provider string)
		hosts string // number of occurrences, as text
	}{
		"talos": {func(t *testing.T, d map[string]any) string {
			if d["apiVersion"] != "v1alpha1" || d["kind"] != "KubeCredentialProviderConfig" || len(d) != 3 {
				t.Errorf("not the document of Talos 1.14: %v", d)
			}
			provider, err := yaml.Marshal(at(t, d, "configuration"))
			testkit.Must(t, err)
			return string(provider)
		}, `
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: "ghcr.io"
endpoints:
- url: "https://gateway.example.com/v2/ghcr.io"
  overridePath: true
skipFallback: true `},
		"talos-1.13": {func(t *testing.T, d map[string]any) string {
			provider, err := yaml.Marshal(at(t, d, "machine", "kubelet", "credentialProviderConfig"))
			testkit.Must(t, err)
			if at(t, d, "machine", "registries", "mirrors", "ghcr.io", "skipFallback") != true {
				t.Error("the registry itself would be asked, too")
			}
			return string(provider)
		}, `endpoints: ["https://gateway.example.com/v2/ghcr.io"]`},
		"openshift": {func(t *testing.T, d map[string]any) string {
			source := at(t, d, "spec", "config", "storage", "files", 0, "contents", "source").(string)
			provider, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(source, "data:text/plain;charset=utf-8;base64,"))
			testkit.Must(t, err)
			return string(provider)
		}, "images have to name the gateway"},
		"karpenter": {func(t *testing.T, d map[string]any) string {
			_, rest, _ := strings.Cut(at(t, d, "spec", "userData").(string), "/pullpass.yaml <<'EOF'\n")
			provider, _, _ := strings.Cut(rest, "EOF\n")
			return provider
		}, "    cat >/etc/containerd/certs.d/ghcr.io/hosts.toml <<'EOF'\n    HOSTS\n    EOF\n"},
		"cluster-api": {func(t *testing.T, d map[string]any) string {
			if content := at(t, d, "spec", "template", "spec", "files", 1, "content"); content != testHosts {
				t.Errorf("hosts.toml: %q", content)
			}
			return at(t, d, "spec", "template", "spec", "files", 0, "content").(string)
		}, "/etc/containerd/certs.d/ghcr.io/hosts.toml"},
		"bottlerocket": {nil, "not possible"},
	} {
		t.Run(platform, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			g := Guidance{Provider: testProvider + "  args: [\"--registry=ghcr.io\", \"--gateway=https://gateway.example.com\"]\n", Plugin: "pullpass-credential-provider", Gateway: "https://gateway.example.com", Hosts: map[string]string{"ghcr.io": testHosts}}
			testkit.Must(t, g.Write(&b, platform))
			var document map[string]any
			testkit.Must(t, yaml.Unmarshal(b.Bytes(), &document))
			if !strings.Contains(b.String(), test.hosts) {
				t.Errorf("%s is not in\n%s", test.hosts, &b)
			}
			if test.find == nil {
				if document != nil {
					t.Error(document)
				}
				return
			}
			provider := test.find(t, document)
			f, err := parseProviders([]byte(provider))
			if err != nil || f.names[0] != "pullpass-credential-provider" || !strings.Contains(b.String(), "pullpass-credential-provider\n") {
				t.Errorf("%q, %v\n%s", provider, err, &b)
			}
			// The kubelet of Talos cannot see containerd's files.
			if got := strings.Contains(provider, "--gateway="); got == strings.HasPrefix(platform, "talos") || !strings.Contains(provider, "--registry=ghcr.io") {
				t.Errorf("the plugin is told the gateway: %v\n%s", got, provider)
			}
		})
	}
	if len(GuidedPlatforms()) != 6 {
		t.Errorf("%q are not all tested", GuidedPlatforms())
	}
	for platform, want := range map[string]string{"eks": `--profile "eks" is changed by pullpass node-install apply`, "x": `--profile "x" is not known; print knows bottlerocket`} {
		if err := (Guidance{}).Write(&bytes.Buffer{}, platform); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", platform, err)
		}
	}
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

// at follows the keys and indexes of a document.
func at(t *testing.T, value any, way ...any) any {
	t.Helper()
	for _, step := range way {
		switch step := step.(type) {
		case string:
			object, _ := value.(map[string]any)
			value = object[step]
		case int:
			list, _ := value.([]any)
			if step >= len(list) {
				t.Fatalf("no %v of %v", step, way)
			}
			value = list[step]
		}
	}
	if value == nil {
		t.Fatalf("no %v", way)
	}
	return value
}
