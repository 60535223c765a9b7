package nodeconfig

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestMirrorsThatNodesCannotHave(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, config string
		o            Options
		want         string
	}{
		{
			"no gateway", testConfig, Options{Mirrors: []string{"ghcr.io"}},
			`--mirror "ghcr.io" needs gateway, which is not configured; write gateway: {url: https://gateway.example.com, service: gateway.example.com} and upstreams: [{name: ghcr.io}]`,
		},
		{
			"no upstream", gatewayConfig, Options{Mirrors: []string{"ghcr.io", "quay.io"}},
			`--mirror "quay.io" is not configured; upstreams[].name are: ["ghcr.io" "docker.io" "harbor"]`,
		},
		{
			"another name of Docker Hub", gatewayConfig, Options{Mirrors: []string{"index.docker.io"}},
			`--mirror "index.docker.io" is not configured; upstreams[].name are: ["ghcr.io" "docker.io" "harbor"]`,
		},
		{
			"an alias", gatewayConfig, Options{Mirrors: []string{"harbor"}},
			`--mirror "harbor" is not a registry's host, and nodes take it for a repository of docker.io; write gateway.example.com/harbor/ at the beginning of images' names, and here --registry gateway.example.com`,
		},
		{
			"an upstream as registry", gatewayConfig, Options{Registry: "ghcr.io"},
			`--registry ghcr.io is one of upstreams[].name: its own token endpoint would be sent the pods' tokens; write --mirror ghcr.io`,
		},
		{
			"no cluster", gatewayConfig, Options{Mirrors: []string{"ghcr.io"}, Cluster: "dev"},
			`--cluster "dev" is not configured; clusters[].name are: ["prod-eu"]`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := testkit.Value(config.Parse([]byte(test.config), "pullpass.yaml", "/etc/pullpass"))(t)
			if _, err := NewTarget(cfg, test.o); err == nil || err.Error() != test.want {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
	// A registry that also has a token endpoint at Pullpass may be asked directly.
	both := strings.Replace(gatewayConfig, "{name: ghcr.io}", "{name: registry.example.com}", 1)
	if got := testTarget(t, both, Options{Registry: "registry.example.com"}).Gateway; got != "" {
		t.Errorf("asked of %s", got)
	}
}

func TestMirrorConfigIsItsOwnBestExample(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://gateway.example.com", "https://gateway.example.com:8444/", "http://127.0.0.1:8444", "https://[2001:db8::1]:443"} {
		for _, mirrors := range [][]string{{"ghcr.io"}, {"docker.io", "ghcr.io", "docker.io"}} {
			config := strings.Replace(gatewayConfig, "https://gateway.example.com", `"`+url+`"`, 1)
			target := testTarget(t, config, Options{Mirrors: mirrors})
			dir := t.TempDir()
			const containerd = "etc/containerd/config.toml"
			testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc/containerd"), 0o755))
			testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc/default"), 0o755))
			testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc/pullpass"), 0o755))
			testkit.Write(t, dir, containerd, "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = '/etc/containerd/certs.d'\n")
			files := []string{filepath.Join(dir, containerd)}
			for part, name := range map[string]string{"provider": "etc/pullpass/credential-provider.yaml", "rbac": "rbac.yaml", "flags": "etc/default/kubelet", "kubelet": "config.yaml"} {
				testkit.Write(t, dir, name, string(printed(t, target, part)))
				files = append(files, filepath.Join(dir, name))
			}
			for _, registry := range target.Registries {
				own := filepath.Join(dir, "etc/containerd/certs.d", registry)
				testkit.Must(t, os.MkdirAll(own, 0o755))
				testkit.Write(t, own, "hosts.toml", string(printed(t, testTarget(t, config, Options{Mirrors: []string{registry}}), "hosts")))
				files = append(files, filepath.Join(own, "hosts.toml"))
			}
			target.Kubelet = 34
			if findings, remarks := target.Lint(t.Context(), files); len(findings) > 0 || len(remarks) > 0 {
				t.Errorf("%s, %s: %v; %q", url, mirrors, findings, remarks)
			}
		}
	}
}

// The kubelet gets the names in images, and containerd gets the gateway.
func TestMirrorConfig(t *testing.T) {
	t.Parallel()
	const audiences = "audiences: [registry.example.com, push.example.com"
	for _, test := range []struct {
		name, config string
		o            Options
		audience     string
	}{
		{"the gateway's audience", strings.Replace(gatewayConfig, audiences, audiences+", gateway.example.com", 1), Options{}, "gateway.example.com"},
		{"the service's audience", strings.Replace(gatewayConfig, audiences, "audiences: [gateway.example.com, registry.example.com", 1), Options{Service: "registry.example.com"}, "registry.example.com"},
		{"the first audience", gatewayConfig, Options{}, "registry.example.com"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.o.Mirrors = []string{"docker.io", "ghcr.io", "docker.io"}
			target := testTarget(t, test.config, test.o)
			if want := []string{"docker.io", "ghcr.io"}; !reflect.DeepEqual(target.Registries, want) {
				t.Errorf("registries: %q, want %q", target.Registries, want)
			}
			all := string(printed(t, target, ""))
			for _, want := range []string{
				"\n  matchImages: [\"docker.io\", \"ghcr.io\"]\n",
				"\n  args: [\"--registry=docker.io\", \"--registry=ghcr.io\", \"--gateway=https://gateway.example.com\"] #",
				"\n    serviceAccountTokenAudience: \"" + test.audience + "\" #",
				"\n  name: \"pullpass:request-audience:gateway.example.com\"\n",
				"\n  resources: [\"" + test.audience + "\"] #",
				" /etc/containerd/certs.d/docker.io/hosts.toml\n",
				"\nserver = \"https://gateway.example.com/v2/docker.io\"\noverride_path = true\n",
				" /etc/containerd/certs.d/ghcr.io/hosts.toml\n",
				"\nserver = \"https://gateway.example.com/v2/ghcr.io\"\noverride_path = true\n",
			} {
				if strings.Count(all, want) != 1+strings.Count(want, "  name:")*2 {
					t.Errorf("%q is not there once:\n%s", want, all)
				}
			}
		})
	}
}

// containerd could not read one file for two registries.
func TestHostsOfSeveralMirrorsAreSeveralFiles(t *testing.T) {
	t.Parallel()
	err := testTarget(t, gatewayConfig, Options{Mirrors: []string{"docker.io", "ghcr.io"}}).Write(t.Output(), "hosts")
	if want := "--part hosts is one file, and each of 2 registries needs its own; give one --mirror at a time"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
