package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	pluginName       = "pullpass-credential-provider"
	defaultPluginDir = "/usr/local/libexec/pullpass"
)

// kubeletOptions say which registry is served to the nodes of which cluster.
type kubeletOptions struct {
	registry  string // host[:port]
	service   string // whose audience is preferred; empty: registry
	cluster   string // may be empty when there is only one
	pluginDir string // empty: the default
}

func kubeletConfigCommand() *cobra.Command {
	var o kubeletOptions
	var config, part string
	var lint bool
	command := &cobra.Command{
		Use:   "kubelet-config",
		Short: "Print what to put on the nodes of a cluster, or judge what is there",
		Long: `Print what the kubelets of a cluster need so that a registry is asked with the
pod's own ServiceAccount: the CredentialProviderConfig, the right to request the
audience, the kubelet's flags, and containerd's hosts.toml. --part prints one of
them alone, for a file.

--lint judges files instead, each by what it is: YAML and JSON by their kind
(CredentialProviderConfig, roles and bindings, KubeletConfiguration), *.toml as
a hosts.toml, anything else as text with the kubelet's flags. A finding is
FILE:LINE: field: what is wrong; remedy. Exit code 1 if there is one.`,
		Example: `  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --part rbac | kubectl apply -f -
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --lint credential-provider.yaml rbac.yaml hosts.toml`,
		Args: func(_ *cobra.Command, files []string) error {
			switch {
			case lint && len(files) == 0:
				return errors.New("--lint needs the names of the files to judge")
			case !lint && len(files) > 0:
				return fmt.Errorf("%q is not expected; files are named with --lint", files[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg, err := readConfig(cmd.Context(), config)
			if err != nil {
				return err
			}
			target, err := newKubeletTarget(cfg, o)
			if err != nil {
				return err
			}
			if !lint {
				return target.write(cmd.OutOrStdout(), part)
			}
			findings, notJudged := target.lint(cmd.Context(), files)
			if len(findings) > 0 {
				return reportFaults(cmd.ErrOrStderr(), errors.Join(findings...))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d files: no findings\n", len(files))
			for _, part := range notJudged {
				fmt.Fprintf(cmd.OutOrStdout(), "not judged: %s, which is not among the files\n", part)
			}
			return nil
		},
	}
	configFlag(command, &config)
	command.Flags().StringVar(&o.registry, "registry", "", "host[:port] of the registry as in the names of images (required)")
	command.Flags().StringVar(&o.service, "service", "", "service of the registry, if it is not the same as --registry: its audience is preferred")
	command.Flags().StringVar(&o.cluster, "cluster", "", "name of the cluster (may be left out when there is only one)")
	command.Flags().StringVar(&o.pluginDir, "plugin-dir", "", "directory of the plugin on the nodes (default: "+defaultPluginDir+"); with --lint: here, to be looked at")
	command.Flags().StringVar(&part, "part", "", "print one part alone: "+strictyaml.List(kubeletPartNames()))
	command.Flags().BoolVar(&lint, "lint", false, "judge the files that are named after the flags")
	command.MarkFlagsMutuallyExclusive("lint", "part")
	if err := command.MarkFlagRequired("registry"); err != nil {
		panic(err) // the flag is defined above
	}
	return command
}

// kubeletTarget is what the kubelets of one cluster have to know about one
// registry.
type kubeletTarget struct {
	Registry    string // host[:port]
	Cluster     *Cluster
	Audience    string // the one of the cluster's that is printed
	Certificate bool   // the cluster's callers are proven by client certificate
	PluginDir   string // as given: may be empty
}

func newKubeletTarget(cfg *Config, o kubeletOptions) (kubeletTarget, error) {
	if !isRegistryHost(o.registry) {
		return kubeletTarget{}, fmt.Errorf("--registry %s is not a registry's host; write host or host:port as in the names of images, without scheme and path", term.QuoteValue(o.registry))
	}
	cluster, err := findCluster(cfg, o.cluster)
	if err != nil {
		return kubeletTarget{}, err
	}
	preferred := o.registry
	if o.service != "" {
		registry, err := findRegistry(cfg, o.service)
		if err != nil {
			return kubeletTarget{}, err
		}
		preferred = registry.Service
	}
	audience := cluster.Audiences[0]
	if slices.Contains(cluster.Audiences, preferred) {
		audience = preferred
	}
	return kubeletTarget{
		Registry:    o.registry,
		Cluster:     cluster,
		Audience:    audience,
		Certificate: slices.Contains(cfg.proofMethods(cluster), proofCertificate),
		PluginDir:   o.pluginDir,
	}, nil
}

func findCluster(cfg *Config, name string) (*Cluster, error) {
	if name == "" && len(cfg.Clusters) == 1 {
		return &cfg.Clusters[0], nil
	}
	var names []string
	for i := range cfg.Clusters {
		if cfg.Clusters[i].Name == name {
			return &cfg.Clusters[i], nil
		}
		names = append(names, cfg.Clusters[i].Name)
	}
	return nil, fmt.Errorf("--cluster %q is not configured; clusters[].name are: %q", name, names)
}

// isRegistryHost accepts what an image's name can begin with. A name without
// dot and port would be a repository of docker.io, and an IPv6 address without
// port cannot be matched by the kubelet.
func isRegistryHost(s string) bool {
	if _, err := netip.ParseAddrPort(s); err == nil {
		return true
	}
	name, port, hasPort := strings.Cut(s, ":")
	if hasPort {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil || port[0] == '0' {
			return false
		}
	}
	if !hasPort && name != "localhost" && !strings.Contains(name, ".") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !names.IsLabel(label) {
			return false
		}
	}
	return true
}

// isPlainPath accepts paths that mean the same in YAML, in a shell's
// assignment and on a command line.
func isPlainPath(s string) bool {
	return path.IsAbs(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/-", r)
	})
}

// kubeletPart is a file, or a part of one. Values are quoted as Go does, which
// for the visible ASCII that they consist of is YAML and TOML as well.
type kubeletPart struct{ name, text string }

func kubeletParts() []kubeletPart {
	return []kubeletPart{
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

func kubeletPartNames() (names []string) {
	for _, part := range kubeletParts() {
		names = append(names, part.name)
	}
	return names
}

// write prints one part, or all with an empty line between them.
func (k kubeletTarget) write(w io.Writer, name string) error {
	if k.PluginDir != "" && !isPlainPath(k.PluginDir) {
		return fmt.Errorf("--plugin-dir %s is not an absolute path of a-z, A-Z, 0-9 and ._/-; name the directory on the nodes", term.QuoteValue(k.PluginDir))
	}
	parts := kubeletParts()
	if name != "" {
		i := slices.IndexFunc(parts, func(p kubeletPart) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("--part %s is not known: use %s", term.QuoteValue(name), strictyaml.List(kubeletPartNames()))
		}
		parts = parts[i : i+1]
	}
	values := struct {
		kubeletTarget
		Plugin, Dir, ConfigFile string
	}{k, pluginName, k.PluginDir, "/etc/pullpass/credential-provider.yaml"}
	if values.Dir == "" {
		values.Dir = defaultPluginDir
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
