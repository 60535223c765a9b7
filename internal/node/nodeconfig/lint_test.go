package nodeconfig

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var updateKubelet = flag.Bool("update-kubelet", false, "write what kubelet-config --lint says into testdata/kubelet")

// testConfig has the proof by certificate, and two audiences.
const testConfig = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {clientCAFile: node-ca.crt}}
clusters:
- name: prod-eu
  issuer: https://oidc.prod-eu.example.com
  audiences: [registry.example.com, push.example.com]
  node: {proof: {mode: enforce, methods: [certificate]}}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`

// gatewayConfig also has a gateway that replaces registries.
var gatewayConfig = strings.Replace(testConfig, "registries: [", "registries: [{service: gateway.example.com, issuer: pullpass.example.com}, ", 1) + `
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}, {name: docker.io}, {name: harbor, url: "https://harbor.example.com:8443"}]
`

// Each file of testdata/kubelet contains files of a node and the output of --lint. A file below
// bin/ is created with the mode in its content, and bin is --plugin-dir. A file mirrors contains
// the values of --mirror, and version that of --kubelet-version.
func TestKubeletLint(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/kubelet/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive := testkit.Value(txtar.ParseFile(name))(t)
			dir := t.TempDir()
			o := Options{Registry: "registry.example.com"}
			var files []string
			for i, file := range archive.Files {
				mode := uint64(0o644)
				switch {
				case file.Name == "findings":
					if i != len(archive.Files)-1 {
						t.Fatal("findings must be the last file")
					}
					continue
				case file.Name == "registry":
					o.Registry = strings.TrimSpace(string(file.Data))
					continue
				case file.Name == "version":
					o.KubeletVersion = strings.TrimSpace(string(file.Data))
					continue
				case file.Name == "mirrors":
					o.Mirrors = strings.Fields(string(file.Data))
					continue
				case strings.HasPrefix(file.Name, "bin/"):
					o.PluginDir = filepath.Join(dir, "bin")
					mode = testkit.Value(strconv.ParseUint(strings.TrimSpace(string(file.Data)), 8, 32))(t)
				default:
					files = append(files, filepath.Join(dir, file.Name))
				}
				testkit.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file.Name)), 0o755))
				testkit.Must(t, os.WriteFile(filepath.Join(dir, file.Name), file.Data, 0o644))
				testkit.Must(t, os.Chmod(filepath.Join(dir, file.Name), os.FileMode(mode)))
			}
			got := lintWith(t, o, files)
			got = strings.ReplaceAll(got, dir+"/", "")
			findings := &archive.Files[len(archive.Files)-1]
			if *updateKubelet {
				findings.Data = []byte(got)
				testkit.Must(t, os.WriteFile(name, txtar.Format(archive), 0o644))
			}
			if want := string(findings.Data); got != want {
				t.Errorf("findings:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// The limit also covers findings from decoding.
func TestFindingsOfADocumentAreBounded(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	for _, test := range []struct {
		name, providers string
		more            int
	}{
		{"as many as may be", "- {" + strings.Repeat("x: y, ", 95) + "}\n", 0},
		{"unknown fields", "- {" + strings.Repeat("x: y, ", 250) + "}\n", 250 + 5 - 100},                                                  // four are missing, and none is for the registry
		{"values", strings.Repeat("- {name: x/y, matchImages: [a], defaultCacheDuration: 0s, apiVersion: v}\n", 80), 2*80 + 79 + 1 - 100}, // name and apiVersion; the name again; none is for the registry
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			name := filepath.Join(t.TempDir(), "provider.yaml")
			testkit.Must(t, os.WriteFile(name, []byte(head+test.providers), 0o600))
			findings, _ := testTarget(t, testConfig, Options{Registry: "registry.example.com"}).Lint(t.Context(), []string{name})
			if want := 100 + min(test.more, 1); len(findings) != want {
				t.Fatalf("%d findings, want %d", len(findings), want)
			}
			if test.more == 0 {
				return
			}
			if want := fmt.Sprintf("%s: has %d more findings in a document; correct those that are named", name, test.more); findings[0].Error() != want {
				t.Errorf("%v, want %s", findings[0], want)
			}
		})
	}
}

// lintWith returns the findings, or the message if there are none.
func lintWith(t *testing.T, o Options, files []string) string {
	t.Helper()
	findings, remarks := testTarget(t, gatewayConfig, o).Lint(t.Context(), files)
	var said strings.Builder
	for _, finding := range findings {
		fmt.Fprintln(&said, finding)
	}
	if len(findings) == 0 {
		fmt.Fprintf(&said, "%d files: no findings\n", len(files))
		for _, remark := range remarks {
			fmt.Fprintln(&said, remark)
		}
	}
	return said.String()
}

func testTarget(t testing.TB, file string, o Options) Target {
	t.Helper()
	cfg := testkit.Value(config.Parse([]byte(file), "pullpass.yaml", "/etc/pullpass"))(t)
	target := testkit.Value(NewTarget(cfg, o))(t)
	return target
}
