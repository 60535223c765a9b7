package nodeconfig

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/nodeproof"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	pluginName       = "pullpass-credential-provider"
	DefaultPluginDir = "/usr/local/libexec/pullpass"
	certsDir         = "/etc/containerd/certs.d"

	hostsPart = "hosts"
)

// Options say which registries are served to the nodes of which cluster.
type Options struct {
	Registry  string   // host[:port]; not read if there are mirrors
	Mirrors   []string // of upstreams[].name: those that the gateway stands in for
	Service   string   // whose audience is preferred; empty: registry, or that of the gateway
	Cluster   string   // may be empty when there is only one
	PluginDir string   // empty: the default
}

// Target is what the kubelets of one cluster have to know about registries.
type Target struct {
	Registries  []string // host[:port] as in the names of images; more than one only with Gateway
	Gateway     string   // URL of what is asked in place of them; empty: they are asked themselves
	Name        string   // what the objects of the cluster are named after: the host that is asked
	Cluster     *config.Cluster
	Audience    string // the one of the cluster's that is printed
	Certificate bool   // the cluster's callers are proven by client certificate
	PluginDir   string // as given: may be empty
}

func NewTarget(cfg *config.Config, o Options) (Target, error) {
	target := Target{Registries: []string{o.Registry}, Name: o.Registry, PluginDir: o.PluginDir}
	preferred := o.Registry
	switch {
	case len(o.Mirrors) > 0:
		var err error
		if target.Registries, err = mirrored(cfg, o.Mirrors); err != nil {
			return Target{}, err
		}
		target.Gateway, target.Name, preferred = cfg.Gateway.URL, gatewayHost(cfg), cfg.Gateway.Service
	case !config.IsRegistryHost(o.Registry):
		return Target{}, fmt.Errorf("--registry %s is not a registry's host; write host or host:port as in the names of images, without scheme and path", term.QuoteValue(o.Registry))
	case cfg.Upstream(o.Registry) != nil && cfg.Registry(o.Registry) == nil:
		// Its token endpoint is not Pullpass.
		return Target{}, fmt.Errorf("--registry %s is one of upstreams[].name: its own token endpoint would be sent the pods' tokens; write --mirror %s", o.Registry, o.Registry)
	}
	cluster, err := config.FindCluster(cfg, o.Cluster)
	if err != nil {
		return Target{}, err
	}
	if o.Service != "" {
		registry, err := config.FindRegistry(cfg, o.Service)
		if err != nil {
			return Target{}, err
		}
		preferred = registry.Service
	}
	target.Cluster = cluster
	target.Audience = cluster.Audiences[0]
	if slices.Contains(cluster.Audiences, preferred) {
		target.Audience = preferred
	}
	target.Certificate = cluster.Node.Proof.By(nodeproof.Certificate)
	return target, nil
}

// server is where containerd has to ask for a registry's images.
func (k Target) server(registry string) string {
	if k.Gateway != "" {
		return k.Gateway + "/v2/" + registry
	}
	return "https://" + registry
}

// args hold the plugin to the registries.
func (k Target) args() (args []string) {
	for _, registry := range k.Registries {
		args = append(args, "--registry="+registry)
	}
	return args
}

// quotedList writes texts as YAML does, and as TOML would.
func quotedList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = strconv.Quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
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
{{- if .Gateway}}
#
# But first each hosts.toml below, on every node: without them containerd asks {{join .Registries " and "}},
# and sends the pods' tokens there as passwords.
{{- end}}
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
  matchImages: {{list .Registries}}
  args: {{list .Args}} # the plugin gives the token to no other host, whatever matchImages says
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
  name: {{printf "%q" (print "pullpass:request-audience:" .Name)}}
rules:
- apiGroups: [""]
  resources: [{{printf "%q" .Audience}}] # the audience
  verbs: ["request-serviceaccounts-token-audience"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{printf "%q" (print "pullpass:request-audience:" .Name)}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{printf "%q" (print "pullpass:request-audience:" .Name)}}
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: system:nodes
`},
		{"flags", `# flags: of the kubelet, on every node. With kubeadm, add them to this line of /etc/default/kubelet
# (Red Hat and its kin: /etc/sysconfig/kubelet). Next: systemctl restart kubelet
KUBELET_EXTRA_ARGS="--image-credential-provider-config={{.ConfigFile}} --image-credential-provider-bin-dir={{.Dir}}"
`},
		{hostsPart, `# hosts: on every node, save this as {{.CertsDir}}/{{.Registry}}/hosts.toml
# (containerd's registry config_path has to be {{.CertsDir}}). It is read at every pull: nothing to restart.
{{- if .Gateway}}
# The gateway is the server, and no mirror: after any error of a mirror containerd asks {{.Registry}}, whose token endpoint
# is then sent the pod's token as a password. So it is, too, without this file, or if containerd cannot read it.
server = {{printf "%q" .Server}}
override_path = true
# Only if the node does not trust it anyway: the CA of the gateway's certificate.
{{- else}}
server = {{printf "%q" .Server}}
# Only if the node does not trust them anyway: the CAs of the registry and of Pullpass, in one file.
{{- end}}
# ca = "{{.CertsDir}}/{{.Registry}}/ca.crt"
{{- if .Certificate}}
# The kubelet's certificate, renewed in place, proves to Pullpass which node asks (node.proof of cluster {{.Cluster.Name}}).
client = "` + KubeletCertificate + `"
{{- else}}
# No client certificate: Pullpass asks for none (node.proof of cluster {{.Cluster.Name}}).
{{- end}}
{{- if .Gateway}}
# containerd gives the pod's token to this server, although it is not {{.Registry}}. Should a later one have to be told:
# pass_upstream_credentials = true
{{- end}}
[host] # empty: no mirrors. containerd 1 ignores a file without it
`},
	}
}

// hostsOf names the part that a hosts.toml is.
func (k Target) hostsOf(registry string) string {
	if k.Gateway == "" {
		return hostsPart
	}
	return hostsPart + " of " + registry
}

// judgedParts are those that files can hold: one hosts.toml for each registry.
func (k Target) judgedParts() (names []string) {
	for _, name := range Parts() {
		if name != hostsPart {
			names = append(names, name)
			continue
		}
		for _, registry := range k.Registries {
			names = append(names, k.hostsOf(registry))
		}
	}
	return names
}

func Parts() (names []string) {
	for _, part := range allParts() {
		names = append(names, part.name)
	}
	return names
}

// Write prints one part, or all with an empty line between them. The hosts are a
// part for each registry.
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
		if name == hostsPart && len(k.Registries) > 1 {
			return fmt.Errorf("--part %s is one file, and each of %d registries needs its own; give one --mirror at a time", hostsPart, len(k.Registries))
		}
		parts = parts[i : i+1]
	}
	for i, part := range parts {
		registries := k.Registries[:1] // of which the other parts name all
		if part.name == hostsPart {
			registries = k.Registries
		}
		for j, registry := range registries {
			if i+j > 0 {
				if _, err := fmt.Fprintln(w); err != nil {
					return err
				}
			}
			if err := k.write(w, part, registry); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k Target) write(w io.Writer, part part, registry string) error {
	values := struct {
		Target
		Registry, Server                  string
		Args                              []string
		Plugin, Dir, ConfigFile, CertsDir string
	}{k, registry, k.server(registry), k.args(), pluginName, cmp.Or(k.PluginDir, DefaultPluginDir), "/etc/pullpass/credential-provider.yaml", certsDir}
	t, err := template.New(part.name).Funcs(template.FuncMap{"list": quotedList, "join": strings.Join}).Parse(part.text)
	if err != nil {
		return err
	}
	return t.Execute(w, values)
}
