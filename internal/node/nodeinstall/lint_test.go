package nodeinstall

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/node/nodeconfig"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The files of every platform have no finding of kubelet-config --lint, at their places on the node.
func TestWrittenFilesHaveNoFindings(t *testing.T) {
	t.Parallel()
	const file = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters: [{name: prod-eu, issuer: "https://oidc.prod-eu.example.com", audiences: [registry.example.com]}]
registries: [{service: gateway.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}]
`
	cfg := testkit.Value(config.Parse([]byte(file), "pullpass.yaml", "/etc/pullpass"))(t)
	target := testkit.Value(nodeconfig.NewTarget(cfg, nodeconfig.Options{Mirrors: []string{"ghcr.io"}, KubeletVersion: "v1.36.2"}))(t)
	d := desired("v1.36.2")
	d.Provider = testkit.Value(target.ProviderFile())(t)
	d.Hosts = testkit.Value(target.HostsFiles(false))(t)
	for _, profile := range Profiles() {
		t.Run(profile, func(t *testing.T) {
			onHost(t, profile, func(t *testing.T, h *host) {
				h.apply(d)
				var files []string
				testkit.Must(t, filepath.WalkDir(h.dir, func(name string, entry fs.DirEntry, err error) error {
					if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(name, filepath.Join(h.dir, stateDir)) {
						return err
					}
					content, err := os.ReadFile(name)
					isFlags := (strings.HasSuffix(name, "/etc/default/kubelet") || filepath.Base(name) == rancherFlagFile) && strings.Contains(string(content), configFlag[2:])
					if base := filepath.Base(name); strings.HasSuffix(name, "/ghcr.io/hosts.toml") || base == "config.toml" || isFlags || strings.Contains(string(content), "serviceAccountTokenAudience") {
						files = append(files, name)
					}
					return err
				}))
				if profile == "eks" { // the setting that its list needs is in an imported file, which is not linted
					files = slices.DeleteFunc(files, func(name string) bool { return filepath.Base(name) == "config.toml" })
				}
				findings, remarks := target.Lint(t.Context(), files)
				if len(findings) > 0 || len(files) < 2 || strings.Contains(strings.Join(remarks, "\n"), "whether containerd reads") {
					t.Errorf("%q: %v; %q", files, findings, remarks)
				}
			})
		})
	}
}
