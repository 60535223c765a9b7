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

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
	"github.com/pullpass/pullpass/internal/node/kubelet"
)

const (
	pluginName       = "pullpass-credential-provider"
	DefaultPluginDir = "/usr/local/libexec/pullpass"
	certsDir         = hoststoml.DefaultDir

	byName = "--by-name" // of the plugin

	dockerHub = "docker.io"
	// shortNames is why the plugin gives CRI-O no token for it.
	shortNames = "the kubelet takes every short name (nginx) for one of docker.io, and CRI-O sends the pod's token to the registry that registries.conf names for it"

	kubeletPart = "kubelet"
	hostsPart   = "hosts"
)

// Options select a cluster, and the registries for its nodes.
type Options struct {
	Registry  string   // host[:port]; ignored if there are mirrors
	Mirrors   []string // names in upstreams[].name that the gateway replaces
	Service   string   // its audience is preferred; empty: registry, or the service of the gateway
	Cluster   string   // optional if there is only one
	PluginDir string   // empty: the default
	CRIO      bool     // the nodes' runtime is CRI-O, not containerd
	// KubeletVersion is the version of the nodes, as kubectl get nodes prints it. Empty means
	// unknown.
	KubeletVersion string
}

// Target has the facts about registries that the kubelets of one cluster need.
type Target struct {
	Registries      []string // host[:port] as in the names of images; more than one only with Gateway
	Gateway         string   // URL that replaces them; empty: containerd asks them directly
	Name            string   // the objects of the cluster have this name: the host that containerd asks
	Cluster         *config.Cluster
	Audience        string // the cluster's audience that is printed
	Certificate     bool   // client certificates prove the cluster's callers
	OnlyCertificate bool   // callers without one are refused
	PluginDir       string // as given; can be empty
	CRIO            bool   // the nodes' runtime, which finds Gateway by the names of registries
	Kubelet         kubelet.Version
}

func NewTarget(cfg *config.Config, o Options) (Target, error) {
	target := Target{Registries: []string{o.Registry}, Name: o.Registry, PluginDir: o.PluginDir, CRIO: o.CRIO}
	preferred := o.Registry
	var err error
	if o.KubeletVersion != "" {
		if target.Kubelet, err = kubelet.ParseVersion(o.KubeletVersion); err != nil {
			return Target{}, err
		}
	}
	switch {
	case len(o.Mirrors) > 0:
		if target.Registries, err = mirrored(cfg, o.Mirrors); err != nil {
			return Target{}, err
		}
		if o.CRIO && slices.Contains(o.Mirrors, dockerHub) {
			return Target{}, fmt.Errorf("--mirror %s cannot be for nodes with CRI-O: %s; leave it out, and name images %s/%s/library/nginx", dockerHub, shortNames, gatewayHost(cfg), dockerHub)
		}
		if o.CRIO && isAddress(cfg.Gateway.URL) {
			return Target{}, fmt.Errorf("gateway.url is %s, and CRI-O finds the gateway by names in /etc/hosts, of which the plugin compares the addresses; write a name there: https://gateway.example.com", term.QuoteValue(cfg.Gateway.URL))
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
	proof := cluster.Node.Proof
	target.Certificate = proof.By(nodeproof.Certificate)
	target.OnlyCertificate = proof.Mode == nodeproof.Enforce && slices.Equal(proof.Effective, []nodeproof.Method{nodeproof.Certificate})
	return target, nil
}

// server returns the URL that containerd must ask for a registry's images.
func (k Target) server(registry string) string {
	if k.Gateway != "" {
		return hoststoml.Server(k.Gateway, registry)
	}
	return "https://" + registry
}

// args returns the arguments that restrict the plugin to the registries and their endpoints.
func (k Target) args() (args []string) {
	for _, registry := range k.Registries {
		args = append(args, "--registry="+registry)
	}
	if k.Gateway != "" {
		args = append(args, "--gateway="+k.Gateway)
		if k.CRIO {
			args = append(args, byName)
		}
	}
	return args
}

// quotedList writes texts in a form that is valid in YAML and in TOML.
func quotedList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = strconv.Quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// isPlainPath accepts paths that mean the same in YAML, in a shell's assignment and on a command
// line.
func isPlainPath(s string) bool {
	return path.IsAbs(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/-", r)
	})
}

// part is a file or a part of one. Values are quoted as in Go. For visible ASCII, that is also
// valid in YAML and TOML.
type part struct{ name, text string }

func allParts() []part {
	return []part{
		{"provider", `# provider: on every node, save this as {{.ConfigFile}}
# and the plugin as {{.Dir}}/{{.Plugin}}.
# Let only root write both. A kubelet has one such file: if there is one already, add the provider to it.
# Next: the flags below, then systemctl restart kubelet.
{{- if .Kubelet.HasCacheType}} Kubernetes 1.34 or later.{{else}} Kubernetes 1.33, with the feature gate of the part kubelet.{{end}}
{{- if and .Gateway .CRIO}}
#
# But first the names below, on every node: without them CRI-O asks {{join .Registries " and "}}, and sends the pods' tokens there
# as passwords. With --gateway and --by-name, the plugin gives no token while /etc/hosts has another address for them, or none,
# or was changed less than 6 seconds ago, or a proxy is asked.
{{- else if .Gateway}}
#
# But first each hosts.toml below, on every node: without them containerd asks {{join .Registries " and "}},
# and sends the pods' tokens there as passwords. With --gateway, the plugin gives no token while one of them is missing or says
# otherwise; --certs-dir=DIR beside it, if containerd's config_path is not {{.CertsDir}}.
{{- end}}
{{- with len .Cluster.Audiences}}{{if gt . 1}}
#
# A provider has one audience, and cluster {{$.Cluster.Name}} has {{.}} of them. For a different one, add a provider with a
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
{{- if .Kubelet.HasCacheType}}
    cacheType: Token # with ServiceAccount the kubelet throws the answer away
{{- end}}
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
		{kubeletPart, `# kubelet: on every node, merge this into the KubeletConfiguration (kubeadm: /var/lib/kubelet/config.yaml). Next: systemctl restart kubelet
{{- if .Kubelet.KnowsAccounts}}
# Without it, a pod may use an image that another pod's ServiceAccount pulled onto its node: the registry is not asked (KEP-2535).
# AlwaysVerify also has images verified that the kubelet did not pull, or pulled while the feature gate was off. Where nodes cannot
# pull their preloaded images again: NeverVerifyAllowlistedImages, and these in preloadedImagesVerificationAllowlist, which any pod may use then.
{{- else}}
# On Kubernetes 1.33, a pod may use an image that another pod's ServiceAccount pulled onto its node, whatever is written here: the
# kubelet counts the credential of a plugin as the node's. Use 1.34 or later, or the admission plugin AlwaysPullImages of the API server.
{{- end}}
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
{{- if not .Kubelet.GivesTokens}}
featureGates:
  ` + kubelet.TokenGate + `: true # on by default since 1.34
{{- else if not .Kubelet.Verifies}}
featureGates:
  ` + kubelet.VerifyGate + `: true # on by default since 1.35
{{- end}}
{{- if .Kubelet.KnowsAccounts}}
imagePullCredentialsVerificationPolicy: ` + kubelet.AlwaysVerify + `
{{- end}}
`},
		{hostsPart, `{{if .CRIO}}# hosts: CRI-O reads no hosts.toml. {{if not .Gateway}}On{{else}}In /etc/hosts of every node, give {{.Registry}} the gateway's address:
# ADDRESS {{.GatewayName}} {{.Registry}}
# If CRI-O and the kubelet have an HTTPS_PROXY, add {{.Registry}} to NO_PROXY of both: a proxy has addresses of its own.
# CRI-O asks its port 443. gateway.tls has a certificate that is also for {{.Registry}}, by a CA that the nodes have for CRI-O alone. On{{end}} every node:
# mkdir -p {{.CRIOCerts}}/{{.Registry}}; save the CA there as ca.crt{{if not .Gateway}}, if the node does not trust the certificates anyway{{end}}
{{- if .Certificate}}
# The kubelet's certificate, renewed in place, proves to Pullpass which node asks (node.proof of cluster {{.Cluster.Name}}):
# ln -s ` + KubeletCertificate + ` {{.CRIOCerts}}/{{.Registry}}/client.cert
# ln -s ` + KubeletCertificate + ` {{.CRIOCerts}}/{{.Registry}}/client.key
{{- end}}
{{else}}# hosts: on every node, save this as {{.CertsDir}}/{{.Registry}}/hosts.toml
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
# containerd 1.6 to 2.4 gives the pod's token to this server, although it is not {{.Registry}}. A later one may have to be told
# (containerd/containerd#13706, which is not decided yet); those that do not know the setting ignore it:
# pass_upstream_credentials = true
{{- end}}
[host] # empty: no mirrors. containerd 1 ignores a file without it
{{end}}`},
	}
}

// hostsOf returns the name of the part for a hosts.toml.
func (k Target) hostsOf(registry string) string {
	if k.Gateway == "" {
		return hostsPart
	}
	return hostsPart + " of " + registry
}

// judgedParts returns the parts that files can contain: one hosts.toml for each registry.
func (k Target) judgedParts() (names []string) {
	for _, name := range Parts() {
		if name != hostsPart {
			names = append(names, name)
			continue
		}
		if k.CRIO {
			continue // CRI-O reads no such file
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

// Write prints one part, or all with an empty line between them. Each registry has its own hosts
// part.
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
		registries := k.Registries[:1] // the other parts name all registries
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
	gatewayName, _, _ := strings.Cut(k.Name, ":") // without its port
	values := struct {
		Target
		Registry, Server, GatewayName                string
		Args                                         []string
		Plugin, Dir, ConfigFile, CertsDir, CRIOCerts string
	}{k, registry, k.server(registry), gatewayName, k.args(), pluginName, cmp.Or(k.PluginDir, DefaultPluginDir), "/etc/pullpass/credential-provider.yaml", certsDir, "/etc/containers/certs.d"}
	t, err := template.New(part.name).Funcs(template.FuncMap{"list": quotedList, "join": strings.Join}).Parse(part.text)
	if err != nil {
		return err
	}
	return t.Execute(w, values)
}
