package nodeconfig

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const crioHosts = `# hosts: CRI-O reads no hosts.toml. In /etc/hosts of every node, give ghcr.io the gateway's address:
# ADDRESS gateway.example.com ghcr.io
# If CRI-O and the kubelet have an HTTPS_PROXY, add ghcr.io to NO_PROXY of both: a proxy has addresses of its own.
# CRI-O asks its port 443. gateway.tls has a certificate that is also for ghcr.io, by a CA that the nodes have for CRI-O alone. On every node:
# mkdir -p /etc/containers/certs.d/ghcr.io; save the CA there as ca.crt
`

func TestNodesWithCRIO(t *testing.T) {
	t.Parallel()
	target := testTarget(t, gatewayConfig, Options{Mirrors: []string{"ghcr.io"}, CRIO: true})
	if got := string(testkit.Value(target.HostsFiles(false))(t)["ghcr.io"]); !strings.HasPrefix(got, crioHosts) {
		t.Errorf("%s", got)
	}
	provider := string(testkit.Value(target.ProviderFile())(t))
	if want := `args: ["--registry=ghcr.io", "--gateway=https://gateway.example.com", "--by-name"]`; !strings.Contains(provider, want) {
		t.Errorf("%s is not in\n%s", want, provider)
	}
	file := filepath.Join(t.TempDir(), "provider.yaml")
	lint := func(target Target, content string) (findings []string) {
		t.Helper()
		testkit.Write(t, filepath.Dir(file), filepath.Base(file), content)
		found, remarks := target.Lint(t.Context(), []string{file})
		for _, f := range found {
			findings = append(findings, strings.TrimPrefix(f.Error(), file))
		}
		if isFile := slices.ContainsFunc(remarks, func(remark string) bool { return strings.Contains(remark, "hosts of ghcr.io") }); isFile == target.CRIO {
			t.Errorf("%q", remarks)
		}
		return findings
	}
	if got := lint(target, provider); len(got) > 0 {
		t.Errorf("%q", got)
	}
	const fault = ":7: providers[0].args: are not for the runtime of the nodes, so the plugin compares the wrong thing and gives no token; "
	if got := lint(target, strings.Replace(provider, `, "--by-name"`, "", 1)); !slices.Equal(got, []string{fault + "add --by-name"}) {
		t.Errorf("%q", got)
	}
	for args, want := range map[string]string{`"--by-name", "--by-name"`: "is not known to the plugin", `"--by-name", "--certs-dir=/x"`: "is beside --by-name, and the plugin takes only one of them"} {
		if got := lint(target, strings.Replace(provider, `"--by-name"`, args, 1)); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q", args, got)
		}
	}
	if got := lint(testTarget(t, gatewayConfig, Options{Mirrors: []string{"ghcr.io"}}), provider); !slices.Equal(got, []string{fault + "remove --by-name, or give --cri-o here"}) {
		t.Errorf("%q", got)
	}
	byGateway := strings.NewReplacer(`["ghcr.io"]`, `["ghcr.io", "gateway.example.com"]`, `"--gateway`, `"--registry=gateway.example.com", "--gateway`).Replace(provider)
	if got := lint(target, byGateway); len(got) > 0 {
		t.Errorf("names with the gateway's host: %q", got)
	}
	direct := testTarget(t, testConfig, Options{Registry: "registry.example.com", CRIO: true})
	if got := string(testkit.Value(direct.HostsFiles(false))(t)["registry.example.com"]); strings.Contains(got, "ADDRESS") || !strings.HasSuffix(got, `
# mkdir -p /etc/containers/certs.d/registry.example.com; save the CA there as ca.crt, if the node does not trust the certificates anyway
# The kubelet's certificate, renewed in place, proves to Pullpass which node asks (node.proof of cluster prod-eu):
# ln -s /var/lib/kubelet/pki/kubelet-client-current.pem /etc/containers/certs.d/registry.example.com/client.cert
# ln -s /var/lib/kubelet/pki/kubelet-client-current.pem /etc/containers/certs.d/registry.example.com/client.key
`) {
		t.Errorf("%s", got)
	}
	direct.Certificate = false
	if got := testkit.Value(direct.HostsFiles(false))(t); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// The kubelet takes short names for those of docker.io, and CRI-O looks them up in registries.conf.
func TestCRIOWithDockerHub(t *testing.T) {
	t.Parallel()
	cfg := testkit.Value(config.Parse([]byte(gatewayConfig), "pullpass.yaml", "/etc/pullpass"))(t)
	const reason = "the kubelet takes every short name (nginx) for one of docker.io, and CRI-O sends the pod's token to the registry that registries.conf names for it"
	const want = "--mirror docker.io cannot be for nodes with CRI-O: " + reason + "; leave it out, and name images gateway.example.com/docker.io/library/nginx"
	if _, err := NewTarget(cfg, Options{Mirrors: []string{"ghcr.io", "docker.io"}, CRIO: true}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}

	file := filepath.Join(t.TempDir(), "provider.yaml")
	const fault = " is for docker.io beside --by-name, and the plugin gives no token for its images: " + reason + "; remove it, and name images by the gateway's host: HOST/docker.io/library/nginx"
	for _, test := range []struct{ images, args, fields string }{
		{`["ghcr.io"]`, `["--registry=ghcr.io", %s]`, ""},
		{`["ghcr.io", "docker.io"]`, `["--registry=ghcr.io", %s]`, ":6: providers[0].matchImages[1]:"},
		{`["ghcr.io", "docker.io/library"]`, `[%s]`, ":6: providers[0].matchImages[1]:"},
		{`["*.io"]`, `["--registry=ghcr.io", %s]`, ""},
		{`["*.io"]`, `["--registry=ghcr.io", "--registry=docker.io", %s]`, ":9: providers[0].args[1]:"},
		{`["*.io"]`, `["--registry=ghcr.io", %s, "--registry", "docker.io"]`, ":9: providers[0].args[4]:"},
		{`["ghcr.io", "registry-1.docker.io", "docker.io:443"]`, `["--registry=ghcr.io", %s]`, ""},
	} {
		args := strings.Replace(test.args, "%s", "--gateway=https://gateway.example.com, --by-name", 1)
		testkit.Write(t, filepath.Dir(file), filepath.Base(file), providerHead+providerOf(pluginName, test.images, "  args: "+args+"\n"))
		findings, _ := testTarget(t, gatewayConfig, Options{Mirrors: []string{"ghcr.io"}, CRIO: true}).Lint(t.Context(), []string{file})
		var got string
		for _, finding := range findings {
			got += strings.TrimPrefix(finding.Error(), file)
		}
		want := test.fields
		if want != "" {
			want += fault
		}
		if got != want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", test.images, args, got, want)
		}
	}
	testkit.Write(t, filepath.Dir(file), filepath.Base(file), providerHead+providerOf(pluginName, "[docker.io]", "  args: [--registry=docker.io, --gateway=https://gateway.example.com]\n"))
	if findings, _ := testTarget(t, gatewayConfig, Options{Mirrors: []string{"docker.io"}}).Lint(t.Context(), []string{file}); len(findings) > 0 {
		t.Errorf("containerd: %q", findings)
	}
}

// Without a name of the gateway, /etc/hosts has nothing with which to compare the registry's name.
func TestCRIOWithoutANameOfTheGateway(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://10.0.0.9", "https://10.0.0.9:8443", "https://[fd00:97:1::1]", "https://[fd00:97:1::1]:8443"} {
		cfg := testkit.Value(config.Parse([]byte(strings.Replace(gatewayConfig, "url: https://gateway.example.com", "url: '"+url+"'", 1)), "pullpass.yaml", "/etc/pullpass"))(t)
		want := `gateway.url is "` + url + `", and CRI-O finds the gateway by names in /etc/hosts, of which the plugin compares the addresses; write a name there: https://gateway.example.com`
		if _, err := NewTarget(cfg, Options{Mirrors: []string{"ghcr.io"}, CRIO: true}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		for _, o := range []Options{{Mirrors: []string{"ghcr.io"}}, {Registry: "registry.example.com", CRIO: true}} {
			if _, err := NewTarget(cfg, o); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}
	}
}
