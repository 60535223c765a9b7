package nodeconfig

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesyaml "sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func printed(t *testing.T, target Target, part string) []byte {
	t.Helper()
	var b bytes.Buffer
	testkit.Must(t, target.Write(&b, part))
	return b.Bytes()
}

// --lint accepts the printed configuration, whatever the names.
func TestKubeletConfigIsItsOwnBestExample(t *testing.T) {
	t.Parallel()
	const plain = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters: [{name: prod-eu, issuer: "https://oidc.prod-eu.example.com", audiences: ['https://"odd"\audience']}]
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`
	for _, config := range []string{testConfig, plain} {
		for _, o := range []Options{
			{Registry: "registry.example.com"},
			{Registry: "registry.example.com:5000", PluginDir: "/opt/plugins"},
			{Registry: "localhost"},
			{Registry: "[::1]:5443"},
			{Registry: "127.0.0.1:5443"},
			{Registry: "registry.example.com", KubeletVersion: "v1.34.2"},
			{Registry: "registry.example.com", KubeletVersion: "v1.36.3"},
		} {
			target := testTarget(t, config, o)
			dir := t.TempDir()
			testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc/pullpass"), 0o755))
			var files []string
			for part, name := range map[string]string{"provider": "etc/pullpass/credential-provider.yaml", "rbac": "rbac.yaml", "flags": "kubelet", "kubelet": "config.yaml", "hosts": "hosts.toml"} {
				files = append(files, filepath.Join(dir, name))
				testkit.Must(t, os.WriteFile(filepath.Join(dir, name), printed(t, target, part), 0o600))
			}
			target.PluginDir = ""
			if target.Kubelet == 0 { // the output is then also for 1.34
				target.Kubelet = 34
			}
			if findings, remarks := target.Lint(t.Context(), files); len(findings) > 0 || len(remarks) > 0 {
				t.Errorf("%s: %v; %q", o.Registry, findings, remarks)
			}
		}
	}
}

// Every value comes from the configuration or a flag. Every setting of the kubelet is the one that
// KEP-4412 requires for a token that is passed through.
func TestKubeletConfigProvider(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		o        Options
		audience string
	}{
		{"the registry's audience", Options{Registry: "push.example.com"}, "push.example.com"},
		{"the service's audience", Options{Registry: "other.example.com", Service: "push.example.com"}, "push.example.com"},
		{"the service's audience, not the registry's", Options{Registry: "push.example.com", Service: "registry.example.com"}, "registry.example.com"},
		{"the first audience", Options{Registry: "other.example.com:5000"}, "registry.example.com"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := strings.Replace(testConfig, "policyFiles", "- {service: push.example.com, issuer: pullpass.example.com}\npolicyFiles", 1)
			config = strings.Replace(config, "registries: [{service: registry.example.com, issuer: pullpass.example.com}]",
				"registries:\n- {service: registry.example.com, issuer: pullpass.example.com}", 1)
			target := testTarget(t, config, test.o)

			var got credentialProviderConfig
			var root yaml.Node
			testkit.Must(t, yaml.Unmarshal(printed(t, target, "provider"), &root))
			d := strictyaml.NewDecoder("provider")
			d.Decode("", root.Content[0], &got)
			testkit.Must(t, d.Err())
			want := credentialProviderConfig{
				APIVersion: "kubelet.config.k8s.io/v1",
				Kind:       "CredentialProviderConfig",
				Providers: []credentialProvider{{
					Name:                 "pullpass-credential-provider",
					APIVersion:           "credentialprovider.kubelet.k8s.io/v1",
					MatchImages:          []string{test.o.Registry},
					Args:                 []string{"--registry=" + test.o.Registry},
					DefaultCacheDuration: "0s",
					TokenAttributes:      tokenAttributes{Audience: test.audience, CacheType: "Token", RequireServiceAccount: true},
				}},
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("provider: %+v, want %+v", got, want)
			}

			name := "pullpass:request-audience:" + test.o.Registry
			var role rbacv1.ClusterRole
			var binding rbacv1.ClusterRoleBinding
			documents := strings.Split(string(printed(t, target, "rbac")), "\n---\n")
			testkit.Must(t, kubernetesyaml.UnmarshalStrict([]byte(documents[0]), &role))
			testkit.Must(t, kubernetesyaml.UnmarshalStrict([]byte(documents[1]), &binding))
			wantRole := rbacv1.ClusterRole{
				TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Rules: []rbacv1.PolicyRule{{
					APIGroups: []string{""}, Resources: []string{test.audience}, Verbs: []string{"request-serviceaccounts-token-audience"},
				}},
			}
			wantBinding := rbacv1.ClusterRoleBinding{
				TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: name},
				Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:nodes"}},
			}
			if !reflect.DeepEqual(role, wantRole) || !reflect.DeepEqual(binding, wantBinding) {
				t.Errorf("rbac: %+v %+v, want %+v %+v", role, binding, wantRole, wantBinding)
			}
		})
	}
}

// A kubelet exits if a field or a setting is unknown to it.
func TestKubeletConfigOfAVersion(t *testing.T) {
	t.Parallel()
	const cacheType, tokens, verify, always = "cacheType: Token", "KubeletServiceAccountTokenForCredentialProviders: true", "KubeletEnsureSecretPulledImages: true", "imagePullCredentialsVerificationPolicy: AlwaysVerify"
	for version, want := range map[string][]string{
		"":          {cacheType, verify, always},
		"v1.33.13":  {tokens},
		"v1.34.0":   {cacheType, verify, always},
		"v1.35.1":   {cacheType, always},
		"v1.36.3+x": {cacheType, always},
	} {
		all := testkit.WithoutComments(string(printed(t, testTarget(t, testConfig, Options{Registry: "registry.example.com", KubeletVersion: version}), "")))
		for _, setting := range []string{cacheType, tokens, verify, always} {
			if got := strings.Contains(all, setting); got != slices.Contains(want, setting) {
				t.Errorf("%s: %s is there: %v\n%s", version, setting, got, all)
			}
		}
	}
	cfg := testkit.Value(config.Parse([]byte(testConfig), "pullpass.yaml", "/etc/pullpass"))(t)
	if _, err := NewTarget(cfg, Options{Registry: "registry.example.com", KubeletVersion: "v1.32.0"}); err == nil || !strings.Contains(err.Error(), "--kubelet-version v1.32.0 knows no tokenAttributes") {
		t.Errorf("error %v", err)
	}
}

// A client certificate is requested only if it proves something.
func TestKubeletConfigHosts(t *testing.T) {
	t.Parallel()
	const client = "\nclient = \"/var/lib/kubelet/pki/kubelet-client-current.pem\"\n"
	for _, test := range []struct {
		name, from, to string
		client         bool
	}{
		{"enforced", "", "", true},
		{"audited", "mode: enforce", "mode: audit", true},
		{"off", "mode: enforce", "mode: off", false},
		{"by address", "methods: [certificate]}}", "methods: [address]}}\n  kubernetes: {inCluster: true}", false},
		{"without CA", "methods: [certificate]}}", "}}\n  kubernetes: {inCluster: true}", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := strings.Replace(testConfig, test.from, test.to, 1)
			if test.name == "without CA" {
				config = strings.Replace(config, "{clientCAFile: node-ca.crt}", "{}", 1)
			}
			got := string(printed(t, testTarget(t, config, Options{Registry: "registry.example.com"}), "hosts"))
			if strings.Contains(got, client) != test.client {
				t.Errorf("client certificate wanted: %v\n%s", test.client, got)
			}
			if !strings.Contains(got, "\nserver = \"https://registry.example.com\"\n") {
				t.Errorf("no server:\n%s", got)
			}
		})
	}
}

func TestRegistryHosts(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"registry.example.com": true, "registry.example.com:5000": true, "localhost": true, "localhost:5000": true,
		"registry:5000": true, "127.0.0.1": true, "127.0.0.1:5000": true, "[::1]:5000": true,
		"": false, "registry": false, "https://registry.example.com": false, "registry.example.com/team": false,
		"registry.example.com:": false, "registry.example.com:https": false, "registry.example.com:0": false,
		"registry.example.com:05": false, "registry.example.com:65536": false, "registry.example.com:+5": false, ":5000": false,
		"*.example.com": false, "registry..com": false, ".example.com": false, "Registry.example.com": false,
		"[::1]": false, "::1": false, "user@registry.example.com": false, "registry.example.com\n": false, `a".example.com`: false,
	} {
		if got := config.IsRegistryHost(host); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}
