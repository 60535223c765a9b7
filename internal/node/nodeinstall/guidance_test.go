package nodeinstall

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// checkGuide checks that the output is YAML that has the text, and that every file in it equals the
// file on a node. Without find, the output is only comments.
func checkGuide(t *testing.T, platform, text string, find func(t *testing.T, document map[string]any) (provider string)) {
	t.Helper()
	var b bytes.Buffer
	g := Guidance{Provider: testProvider + "  args: [\"--registry=ghcr.io\", \"--gateway=https://gateway.example.com\"]\n", Plugin: "pullpass-credential-provider", Gateway: "https://gateway.example.com", Hosts: map[string]string{"ghcr.io": testHosts}}
	if platform == "openshift" { // its nodes have CRI-O
		g.Hosts["ghcr.io"] = "# ADDRESS ghcr.io\n"
	}
	testkit.Must(t, g.Write(&b, platform))
	var document map[string]any
	testkit.Must(t, yaml.Unmarshal(b.Bytes(), &document))
	if !strings.Contains(b.String(), text) {
		t.Errorf("%s is not in\n%s", text, &b)
	}
	if find == nil {
		if document != nil {
			t.Error(document)
		}
		return
	}
	provider := find(t, document)
	f, err := parseProviders([]byte(provider))
	if err != nil || f.names[0] != "pullpass-credential-provider" || !strings.Contains(b.String(), "pullpass-credential-provider\n") {
		t.Errorf("%q, %v\n%s", provider, err, &b)
	}
	// The kubelet of Talos cannot see containerd's files.
	if got := strings.Contains(provider, "--gateway="); got == strings.HasPrefix(platform, "talos") || !strings.Contains(provider, "--registry=ghcr.io") {
		t.Errorf("the plugin is told the gateway: %v\n%s", got, provider)
	}
}

func TestGuides(t *testing.T) {
	t.Parallel()
	names := testkit.Value(filepath.Glob("*_test.go"))(t)
	var tests strings.Builder
	for _, name := range names {
		content := testkit.Value(os.ReadFile(name))(t)
		tests.Write(content)
	}
	for _, platform := range GuidedPlatforms() {
		if !strings.Contains(tests.String(), "checkGuide(t, "+strconv.Quote(platform)) {
			t.Errorf("%s has no test", platform)
		}
	}
	if !slices.IsSorted(GuidedPlatforms()) {
		t.Errorf("%q are not sorted", GuidedPlatforms())
	}
}

func TestPlatformsWithoutAGuide(t *testing.T) {
	t.Parallel()
	for platform, want := range map[string]string{"eks": `--profile "eks" is changed by pullpass node-install apply`, "x": `--profile "x" is not known; print knows bottlerocket`} {
		if err := (Guidance{}).Write(&bytes.Buffer{}, platform); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", platform, err)
		}
	}
}

// Kubelets of EKS have no certificate, so no hosts.toml for them may name one.
func TestGuideWithoutACertificate(t *testing.T) {
	t.Parallel()
	hosts := map[string]string{"ghcr.io": "client = \"/kubelet.pem\"\n"}
	for name, test := range map[string]struct {
		platform, client string
		hosts            map[string]string
		refused          bool
	}{
		"named":             {"karpenter", "/kubelet.pem", hosts, true},
		"not named":         {"karpenter", "/other.pem", hosts, false},
		"no mirror":         {"karpenter", "/kubelet.pem", nil, false},
		"by address":        {"karpenter", "", map[string]string{"ghcr.io": "server = \"\"\n"}, false},
		"of other kubelets": {"cluster-api", "/kubelet.pem", hosts, false},
	} {
		g := Guidance{Provider: testProvider, Plugin: "p", Hosts: test.hosts, Client: test.client}
		if err := g.Write(&bytes.Buffer{}, test.platform); errors.Is(err, ErrProfile) != test.refused || !test.refused && err != nil {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := (Guidance{Provider: "kind: Secret\n"}).Write(&bytes.Buffer{}, "talos"); !errors.Is(err, ErrProvider) {
		t.Errorf("another kind: error %v", err)
	}
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
