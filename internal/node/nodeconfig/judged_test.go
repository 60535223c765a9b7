package nodeconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// providerOf is a provider without a fault, with these images and these further fields.
func providerOf(name, images, fields string) string {
	return `- name: ` + name + `
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ` + images + `
  defaultCacheDuration: 0s
  tokenAttributes: {serviceAccountTokenAudience: registry.example.com, cacheType: Token, requireServiceAccount: true}
` + fields
}

const providerHead = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"

const hostsOfGateway = `server = "https://gateway.example.com/v2/ghcr.io"
override_path = true
client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
`

// Settings that look alike have findings of their own, or none.
func TestFindingsOfNearlyEqualSettings(t *testing.T) {
	t.Parallel()
	own := Options{Registry: "registry.example.com"}
	mirror := Options{Mirrors: []string{"ghcr.io"}}
	args := func(args string) map[string]string {
		return map[string]string{"p.yaml": providerHead + providerOf(pluginName, "[registry.example.com]", "  args: "+args+"\n")}
	}
	const unguarded = "p.yaml:9: providers[0].args: do not name the gateway: if another program removes or rewrites hosts.toml, as Spegel does, the plugin still gives the token, and the pod's token then goes to ghcr.io as a password; add --gateway=https://gateway.example.com\n"
	const refused = "certs.d/ghcr.io/hosts.toml: does not have the gateway as its server, so the plugin, which is told --gateway, gives no token for ghcr.io; write it as kubelet-config --part hosts prints it\n"
	const notJudged = "holds nothing that is judged; give a CredentialProviderConfig, a KubeletConfiguration, roles and bindings, or kubelet-arg of k3s and RKE2\n"
	otherServer := strings.Replace(hostsOfGateway, "https://gateway.example.com", "gateway.example.com:443", 1) + "[host]\n"
	guardedProvider := providerOf(pluginName, "[ghcr.io]", "  args: [--registry=ghcr.io, --gateway=https://gateway.example.com]\n")
	unguardedProvider := providerOf(pluginName, "[ghcr.io]", "  args: [--registry=ghcr.io]\n")
	for name, test := range map[string]struct {
		o     Options
		files map[string]string
		want  string
	}{
		"an unknown argument takes no value": {own, args("[--verbose, --registry=registry.example.com]"), "p.yaml:9: providers[0].args[0]: is not known to the plugin, which refuses to work; write --registry=HOST or nothing\n"},
		"an unknown argument alone": {own, args("[verbose]"), "p.yaml:9: providers[0].args[0]: is not known to the plugin, which refuses to work; write --registry=HOST or nothing\n" +
			"p.yaml:9: providers[0].args: do not hold registry.example.com, so the plugin refuses its images; add --registry=registry.example.com\n"},
		"a provider for CRI-O without --registry": {Options{Mirrors: []string{"ghcr.io"}, CRIO: true}, map[string]string{
			"p.yaml": providerHead + strings.Replace(guardedProvider, "--registry=ghcr.io, ", "--by-name, ", 1),
		}, ""},
		"a directory beside no registry": {own, args("[--certs-dir=/etc/certs.d]"), ""},
		"hosts.toml without --gateway": {mirror, map[string]string{
			"p.yaml": providerHead + unguardedProvider, "certs.d/ghcr.io/hosts.toml": otherServer,
		}, unguarded},
		"hosts.toml with --gateway of the first provider": {mirror, map[string]string{
			"certs.d/ghcr.io/hosts.toml": otherServer,
			"p.yaml":                     providerHead + guardedProvider + strings.Replace(unguardedProvider, pluginName, pluginName+"-2", 1),
		}, refused + strings.NewReplacer(":9", ":15", "[0]", "[1]").Replace(unguarded)},
		"hosts.toml with another finding": {mirror, map[string]string{
			"p.yaml": providerHead + guardedProvider, "certs.d/ghcr.io/hosts.toml": hostsOfGateway + "skip_verify = 5\n[host]\n",
		}, "certs.d/ghcr.io/hosts.toml:4: skip_verify: sends the pod's token to any server that answers (\"5\"); remove it, and name the CA in ca\n" +
			"certs.d/ghcr.io/hosts.toml:4: skip_verify: must be true or false, in lower case and without quotes (\"5\"), or containerd cannot read the file: the pod's token then goes to ghcr.io as a password; remove it\n"},
		"a refused hosts.toml, and a finding in another file": {mirror, map[string]string{
			"certs.d/ghcr.io/hosts.toml": otherServer, "p.yaml": providerHead + guardedProvider + "  env: [{name: A, value: B}]\n",
		}, refused + "p.yaml:10: providers[0].env[0]: has no use (\"A\"): the plugin reads no variables; remove it\n"},
		"a registry that is asked itself, in any directory": {own, map[string]string{
			"certs.d/other/hosts.toml": "client = \"/a.pem\"\n[host]\n",
		}, ""},
		"a registry that is asked itself, with --gateway": {own, map[string]string{
			"hosts.toml": "client = \"/a.pem\"\n[host]\n",
			"p.yaml":     args("[--registry=registry.example.com, --gateway=https://gateway.example.com]")["p.yaml"],
		}, "p.yaml:9: providers[0].args[1]: is for registries behind the gateway, and registry.example.com is asked itself; remove it, or give --mirror in place of --registry\n"},
		"an endpoint that is not a URL is not the registry": {own, map[string]string{
			"hosts.toml": "client = \"/a.pem\"\n[host.\"https://\"]\n",
		}, "hosts.toml:2: host: is not a URL; write https://registry.example.com\n"},
		"tables that are not endpoints": {own, map[string]string{
			"hosts.toml": "client = \"/a.pem\"\n[host]\n[\"https://registry.example.com\"]\n[host.xax]\n[host.x]\n[host\n",
		}, "hosts.toml:3: is not read here; write [host.\"https://registry.example.com\"]\n" +
			"hosts.toml:4: is not read here; write [host.\"https://registry.example.com\"]\n" +
			"hosts.toml:5: is not read here; write [host.\"https://registry.example.com\"]\n" +
			"hosts.toml:6: is not read here; write each setting as KEY = VALUE on a line of its own, with the key in lower case, below [host.\"URL\"]\n"},
		"a value that is missing": {own, map[string]string{
			"hosts.toml": "client =\n[host]\n",
		}, "hosts.toml:1: client: is missing: node.proof of cluster prod-eu is enforce and asks for the kubelet's certificate; write client = \"/var/lib/kubelet/pki/kubelet-client-current.pem\"\n"},
		"a # within quotes": {own, map[string]string{
			"hosts.toml": "server = 'http://registry.example.com#x'\nclient = \"/a.pem\"\n[host]\n",
		}, "hosts.toml:1: server: sends the pod's token in the clear (\"http\"); write https\n"},
		"a mirror without an address": {mirror, map[string]string{
			"certs.d/ghcr.io/hosts.toml": hostsOfGateway + "[host.\"\"]\n",
		}, "certs.d/ghcr.io/hosts.toml:4: host: is not a URL, and containerd cannot read the file: the pod's token then goes to ghcr.io as a password; remove it\n"},
		"a file that is missing": {own, map[string]string{"-": ""}, "open -: no such file or directory\n"},
		"an unknown document after a known one": {own, map[string]string{
			"p.yaml": providerHead + providerOf(pluginName, "[registry.example.com]", "") + "---\nkind: Other\n",
		}, ""},
		"no providers": {own, map[string]string{
			"p.yaml": "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n",
		}, "p.yaml:1: providers: is empty, and the kubelet does not start; name a provider (see kubelet-config --part provider)\n" +
			"p.yaml:1: providers: none is named pullpass-credential-provider or matches registry.example.com, so the kubelet pulls anonymously; add one (see kubelet-config --part provider)\n"},
		"no provider for the registry in two files": {own, map[string]string{
			"a.yaml": providerHead + providerOf("a", "[a.example.org]", ""), "b.yaml": providerHead + providerOf("b", "[b.example.org]", ""),
		}, "a.yaml:3: providers: none is named pullpass-credential-provider or matches registry.example.com, so the kubelet pulls anonymously; add one (see kubelet-config --part provider)\n"},
		"a list without items":        {own, map[string]string{"l.yaml": "kind: List\n"}, "l.yaml: " + notJudged},
		"a list of no list":           {own, map[string]string{"l.yaml": "kind: List\nitems: {a: {kind: ClusterRole}}\n"}, "l.yaml: " + notJudged},
		"a list of lists":             {own, map[string]string{"l.yaml": "kind: List\nitems: [[kind, ClusterRole]]\n"}, "l.yaml: " + notJudged},
		"a list with an unknown item": {own, map[string]string{"l.yaml": "kind: List\nitems: [{kind: ClusterRole, rules: [{verbs: [get]}]}, {kind: Other}]\n"}, "l.yaml:2: items[0]: no role lets the kubelet request the audience (\"registry.example.com\"; verb request-serviceaccounts-token-audience); apply what kubelet-config --part rbac prints\n"},
		"flags with values behind =": {own, map[string]string{
			"flags":             "KUBELET_EXTRA_ARGS=--image-credential-provider-config=/p.yaml --image-credential-provider-bin-dir=DIR/bin --v=2\n",
			"bin/" + pluginName: "",
		}, ""},
		"no directory among the flags": {own, map[string]string{
			"flags":             "--image-credential-provider-config=/p.yaml\n",
			"bin/" + pluginName: "",
		}, "flags:1: --image-credential-provider-bin-dir: is missing, and the kubelet runs no plugin; add both flags (see kubelet-config --part flags)\n"},
		"a policy and a gate that is off": {Options{Registry: "registry.example.com", KubeletVersion: "v1.35.0"}, map[string]string{
			"k.yaml": "kind: KubeletConfiguration\nfeatureGates: {KubeletEnsureSecretPulledImages: false}\nimagePullCredentialsVerificationPolicy: AlwaysVerify\n",
		}, "k.yaml:2: featureGates.KubeletEnsureSecretPulledImages: is false: any pod of the node may use an image that another's ServiceAccount pulled; remove it\n" +
			"k.yaml:3: imagePullCredentialsVerificationPolicy: is set, and without the feature gate KubeletEnsureSecretPulledImages, which is off, the kubelet does not start; write featureGates: {KubeletEnsureSecretPulledImages: true} as well\n"},
		"a second document of another kind": {own, map[string]string{
			"p.yaml": providerHead + providerOf(pluginName, "[registry.example.com]", "") + "---\n" + strings.Replace(providerHead, "CredentialProviderConfig", "Other", 1) + providerOf("b", "[b.example.org]", ""),
		}, "p.yaml:11: kind: is the second document of the file (\"Other\"), and the kubelet reads the first only; give it a file of its own\n"},
		"annotations without a key": {own, map[string]string{
			"p.yaml": providerHead + strings.Replace(providerOf(pluginName, "[registry.example.com]", ""), "true}", "true, requiredServiceAccountAnnotationKeys: ['', '']}", 1),
		}, "p.yaml:8: providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys[0]: is not the key of an annotation (\"\"); write it as kubectl annotate takes it\n" +
			"p.yaml:8: providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys[1]: is not the key of an annotation (\"\"); write it as kubectl annotate takes it\n"},
		"one of two mirrors": {Options{Mirrors: []string{"ghcr.io", "docker.io"}}, map[string]string{
			"p.yaml": providerHead + strings.Replace(guardedProvider, "=ghcr.io,", "=ghcr.io, --registry=docker.io,", 1),
		}, "p.yaml:6: providers[0].matchImages: do not hold docker.io, so the kubelet pulls its images anonymously; add it\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var files []string
			for _, file := range []string{"hosts.toml", "certs.d/ghcr.io/hosts.toml", "certs.d/other/hosts.toml", "a.yaml", "b.yaml", "k.yaml", "l.yaml", "p.yaml", "flags", "bin/" + pluginName, "-"} {
				content, ok := test.files[file]
				if !ok {
					continue
				}
				path := filepath.Join(dir, file)
				testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				switch {
				case file == "-":
					files = append(files, path)
				case strings.HasPrefix(file, "bin/"):
					testkit.Must(t, os.WriteFile(path, nil, 0o755))
					test.o.PluginDir = filepath.Dir(path)
				default:
					testkit.Must(t, os.WriteFile(path, []byte(strings.ReplaceAll(content, "DIR", dir)), 0o600))
					files = append(files, path)
				}
			}
			var got strings.Builder
			findings, _ := testTarget(t, gatewayConfig, test.o).Lint(t.Context(), files)
			for _, finding := range findings {
				fmt.Fprintln(&got, finding)
			}
			if got := strings.ReplaceAll(got.String(), dir+"/", ""); got != test.want {
				t.Errorf("findings:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
}

func TestSettledFields(t *testing.T) {
	t.Parallel()
	d := &document{settled: []string{"", "providers[0].args"}}
	for field, want := range map[string]bool{
		"providers[0].args": true, "providers[0].args[1]": true, "providers[0].args.x": true,
		"providers[0].argsx": false, "providers[0]": false, "kind": false, "": false,
	} {
		if got := d.isSettled(field); got != want {
			t.Errorf("%q: %t", field, got)
		}
	}
}

func TestPathsThatMeanTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/usr/local/libexec/pullpass": true, "/azAZ09._-": true, "relative": false, "": false, "/a b": false, "/$(x)": false,
		"/a{": false, "/a`": false, "/a@": false, "/a[": false, "/a:": false, "/ä": false,
	} {
		if got := isPlainPath(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}

func TestOptionsThatNodesCannotHave(t *testing.T) {
	t.Parallel()
	cfg := testkit.Value(config.Parse([]byte(testConfig), "pullpass.yaml", "/etc/pullpass"))(t)
	for want, o := range map[string]Options{
		`--registry "https://registry.example.com" is not a registry's host; write host or host:port as in the names of images, without scheme and path`: {Registry: "https://registry.example.com"},
		`--service "other" is not configured; registries[].service are: ["registry.example.com"]`:                                                        {Registry: "registry.example.com", Service: "other"},
	} {
		if _, err := NewTarget(cfg, o); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// space is a writer of which one write fails, after some that do not.
type space int

func (s *space) Write(p []byte) (int, error) {
	if *s--; *s == -1 {
		return 0, errFull
	}
	return len(p), nil
}

var errFull = errors.New("full")

func TestPartsThatCannotBePrinted(t *testing.T) {
	t.Parallel()
	target := testTarget(t, testConfig, Options{Registry: "registry.example.com"})
	var b strings.Builder
	if err := target.Write(&b, "other"); err == nil || !strings.HasPrefix(err.Error(), `--part "other" is not known: use `) || b.Len() > 0 {
		t.Errorf("error %v, output %q", err, b.String())
	}
	whole, writes := space(1<<20), 0
	testkit.Must(t, target.Write(&whole, ""))
	for writes = range 1<<20 - int(whole) {
		s := space(writes)
		if err := target.Write(&s, ""); !errors.Is(err, errFull) {
			t.Fatalf("after %d writes: error %v", writes, err)
		}
	}
	var parts []string
	for _, name := range Parts() {
		parts = append(parts, string(printed(t, target, name)))
	}
	if got, want := string(printed(t, target, "")), strings.Join(parts, "\n"); got != want {
		t.Errorf("all parts: %q, want %q", got, want)
	}
	target.PluginDir = "/opt/$(x)"
	if err := target.Write(&b, ""); err == nil || !strings.HasPrefix(err.Error(), `--plugin-dir "/opt/$(x)" is not an absolute path of `) || b.Len() > 0 {
		t.Errorf("error %v, output %q", err, b.String())
	}
}

// A registry behind the gateway needs its hosts.toml without a certificate and without a CA too.
func TestFilesOfMirrors(t *testing.T) {
	t.Parallel()
	target := testTarget(t, gatewayConfig, Options{Mirrors: []string{"ghcr.io", "docker.io"}})
	target.Certificate = false
	files, err := target.HostsFiles(false)
	if err != nil || len(files) != 2 || !strings.HasPrefix(string(files["ghcr.io"]), `server = "https://gateway.example.com/v2/ghcr.io"`) {
		t.Errorf("%q, %v", files, err)
	}
}
