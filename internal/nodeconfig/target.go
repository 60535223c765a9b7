package nodeconfig

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/template"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	pluginName       = "pullpass-credential-provider"
	DefaultPluginDir = "/usr/local/libexec/pullpass"
)

// Options say which registry is served to the nodes of which cluster.
type Options struct {
	Registry  string // host[:port]
	Service   string // whose audience is preferred; empty: registry
	Cluster   string // may be empty when there is only one
	PluginDir string // empty: the default
}

// Target is what the kubelets of one cluster have to know about one
// registry.
type Target struct {
	Registry    string // host[:port]
	Cluster     *config.Cluster
	Audience    string // the one of the cluster's that is printed
	Certificate bool   // the cluster's callers are proven by client certificate
	PluginDir   string // as given: may be empty
}

func NewTarget(cfg *config.Config, o Options) (Target, error) {
	if !config.IsRegistryHost(o.Registry) {
		return Target{}, fmt.Errorf("--registry %s is not a registry's host; write host or host:port as in the names of images, without scheme and path", term.QuoteValue(o.Registry))
	}
	cluster, err := config.FindCluster(cfg, o.Cluster)
	if err != nil {
		return Target{}, err
	}
	preferred := o.Registry
	if o.Service != "" {
		registry, err := config.FindRegistry(cfg, o.Service)
		if err != nil {
			return Target{}, err
		}
		preferred = registry.Service
	}
	audience := cluster.Audiences[0]
	if slices.Contains(cluster.Audiences, preferred) {
		audience = preferred
	}
	return Target{
		Registry:    o.Registry,
		Cluster:     cluster,
		Audience:    audience,
		Certificate: cluster.Node.Proof.By(exchange.ProofCertificate),
		PluginDir:   o.PluginDir,
	}, nil
}

// isPlainPath accepts paths that mean the same in YAML, in a shell's
// assignment and on a command line.
func isPlainPath(s string) bool {
	return path.IsAbs(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/-", r)
	})
}

// part is a file, or a part of one. Values are quoted as Go does, which
// for the visible ASCII that they consist of is YAML and TOML as well.
type part struct{ name, text string }

func allParts() []part {
	return []part{
		{"provider", `# provider: on every node, save this as {{.ConfigFile}}
# and the plugin as {{.Dir}}/{{.Plugin}}.
# Let only root write both. A kubelet has one such file: if there is one already, add the provider to it.
# Next: the flags below, then systemctl restart kubelet. Kubernetes 1.34 or later.
{{- with len .Cluster.Audiences}}{{if gt . 1}}
#
# A provider has one audience, and cluster {{$.Cluster.Name}} has {{.}} of them. For another one, add a provider with a
# name of its own, and on every node: ln -s {{$.Plugin}} {{$.Dir}}/{{$.Plugin}}-2
{{- end}}{{end}}
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: {{.Plugin}} # the name of the binary
  apiVersion: credentialprovider.kubelet.k8s.io/v1 # only v1 has tokenAttributes
  matchImages: [{{printf "%q" .Registry}}]
  args: [{{printf "%q" (print "--registry=" .Registry)}}] # the plugin gives the token to no other host, whatever matchImages says
  defaultCacheDuration: "0s" # required, although the plugin sets its own
  tokenAttributes:
    serviceAccountTokenAudience: {{printf "%q" .Audience}} # one of clusters[].audiences of Pullpass
    cacheType: Token # with ServiceAccount the kubelet throws the answer away
    requireServiceAccount: true
`},
		{"rbac", `# rbac: the kubelet's right to request tokens for this audience. Without it pulls are anonymous, and no event says so.
# Next, once for the cluster: kubectl apply -f THIS_FILE
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{printf "%q" (print "pullpass:request-audience:" .Registry)}}
rules:
- apiGroups: [""]
  resources: [{{printf "%q" .Audience}}] # the audience
  verbs: ["request-serviceaccounts-token-audience"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{printf "%q" (print "pullpass:request-audience:" .Registry)}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{printf "%q" (print "pullpass:request-audience:" .Registry)}}
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: system:nodes
`},
		{"flags", `# flags: of the kubelet, on every node. With kubeadm, add them to this line of /etc/default/kubelet
# (Red Hat and its kin: /etc/sysconfig/kubelet). Next: systemctl restart kubelet
KUBELET_EXTRA_ARGS="--image-credential-provider-config={{.ConfigFile}} --image-credential-provider-bin-dir={{.Dir}}"
`},
		{"hosts", `# hosts: on every node, save this as /etc/containerd/certs.d/{{.Registry}}/hosts.toml
# (containerd's registry config_path has to be /etc/containerd/certs.d). It is read at every pull: nothing to restart.
server = {{printf "%q" (print "https://" .Registry)}}
# Only if the node does not trust them anyway: the CAs of the registry and of Pullpass, in one file.
# ca = "/etc/containerd/certs.d/{{.Registry}}/ca.crt"
{{- if .Certificate}}
# The kubelet's certificate, renewed in place, proves to Pullpass which node asks (node.proof of cluster {{.Cluster.Name}}).
client = "/var/lib/kubelet/pki/kubelet-client-current.pem"
{{- else}}
# No client certificate: Pullpass asks for none (node.proof of cluster {{.Cluster.Name}}).
{{- end}}
[host] # empty: no mirrors. containerd 1 ignores a file without it
`},
	}
}

func Parts() (names []string) {
	for _, part := range allParts() {
		names = append(names, part.name)
	}
	return names
}

// Write prints one part, or all with an empty line between them.
func (k Target) Write(w io.Writer, name string) error {
	if k.PluginDir != "" && !isPlainPath(k.PluginDir) {
		return fmt.Errorf("--plugin-dir %s is not an absolute path of a-z, A-Z, 0-9 and ._/-; name the directory on the nodes", term.QuoteValue(k.PluginDir))
	}
	parts := allParts()
	if name != "" {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("--part %s is not known: use %s", term.QuoteValue(name), strictyaml.List(Parts()))
		}
		parts = parts[i : i+1]
	}
	values := struct {
		Target
		Plugin, Dir, ConfigFile string
	}{k, pluginName, k.PluginDir, "/etc/pullpass/credential-provider.yaml"}
	if values.Dir == "" {
		values.Dir = DefaultPluginDir
	}
	for i, part := range parts {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		t, err := template.New(part.name).Parse(part.text)
		if err != nil {
			return err
		}
		if err := t.Execute(w, values); err != nil {
			return err
		}
	}
	return nil
}
