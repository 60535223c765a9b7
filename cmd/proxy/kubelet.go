package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/node/nodeconfig"
)

func kubeletConfigCommand() *cobra.Command {
	var o nodeconfig.Options
	var file, part string
	var lint bool
	command := &cobra.Command{
		Use:   "kubelet-config",
		Short: "Print the node configuration of a cluster, or check the files of a node",
		Long: `Print the configuration with which the kubelets of a cluster pull with the pod's own
ServiceAccount: the CredentialProviderConfig, the RBAC rule to request the audience,
the kubelet's flags and settings, and containerd's hosts.toml. --part prints only one
of them, for a file.

--mirror is for the registries behind the gateway (upstreams of the configuration).
Images keep their names, and a hosts.toml for each registry sends containerd to the
gateway. CRI-O finds it by the names of the registries.

--lint checks files instead. The kind of a YAML or JSON file selects the checks:
CredentialProviderConfig, roles and bindings, KubeletConfiguration (also *.conf), or
kubelet-arg of k3s and RKE2. config.toml is checked as containerd's, any other *.toml
as a hosts.toml, and any other file as text with the kubelet's flags. A finding is
FILE:LINE: field: fault; remedy. Exit code 1 if there is a finding.`,
		Example: `  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --part rbac | kubectl apply -f -
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --lint credential-provider.yaml rbac.yaml hosts.toml
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --kubelet-version v1.34.2 --lint /var/lib/kubelet/config.yaml
  pullpass kubelet-config --config pullpass.yaml --mirror ghcr.io --mirror docker.io
  pullpass kubelet-config --config pullpass.yaml --mirror ghcr.io --part hosts >/etc/containerd/certs.d/ghcr.io/hosts.toml
  pullpass kubelet-config --config pullpass.yaml --mirror ghcr.io --cri-o`,
		Args: func(_ *cobra.Command, files []string) error {
			switch {
			case lint && len(files) == 0:
				return errors.New("--lint needs the names of the files to check")
			case !lint && len(files) > 0:
				return fmt.Errorf("%q is not expected; only --lint takes file names", files[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg, err := config.LoadOnce(cmd.Context(), file)
			if err != nil {
				return err
			}
			target, err := nodeconfig.NewTarget(cfg, o)
			if err != nil {
				return err
			}
			if !lint {
				return target.Write(cmd.OutOrStdout(), part)
			}
			findings, remarks := target.Lint(cmd.Context(), files)
			if len(findings) > 0 {
				return reportFaults(cmd.ErrOrStderr(), errors.Join(findings...))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d files: no findings\n", len(files))
			for _, remark := range remarks {
				fmt.Fprintln(cmd.OutOrStdout(), remark)
			}
			return nil
		},
	}
	targetFlags(command, &file, &o)
	command.Flags().StringVar(&o.PluginDir, "plugin-dir", "", "directory of the plugin on the nodes (default: "+nodeconfig.DefaultPluginDir+"); with --lint: the directory on this machine to check")
	command.Flags().StringVar(&o.KubeletVersion, "kubelet-version", "", "version of the nodes' kubelets, as kubectl get nodes prints it; with --lint, also decides whether pods can use images that other pods pulled (default: 1.34 or later)")
	command.Flags().StringVar(&part, "part", "", "print only this part: "+strictyaml.List(nodeconfig.Parts()))
	command.Flags().BoolVar(&o.CRIO, "cri-o", false, "the nodes have CRI-O, not containerd: it reads no hosts.toml, and finds the gateway by the names of registries in /etc/hosts, but not by docker.io")
	command.Flags().BoolVar(&lint, "lint", false, "check the files that are named after the flags")
	command.MarkFlagsMutuallyExclusive("lint", "part")
	return command
}

// targetFlags adds the flags that select the registries.
func targetFlags(command *cobra.Command, config *string, o *nodeconfig.Options) {
	configFlag(command, config)
	flags := command.Flags()
	flags.StringVar(&o.Registry, "registry", "", "host[:port] of the registry as in the names of images")
	flags.StringArrayVar(&o.Mirrors, "mirror", nil, "name of an upstream behind the gateway, repeatable; in place of --registry")
	flags.StringVar(&o.Service, "service", "", "service whose audience is preferred (default: the service of --registry, or of the gateway)")
	flags.StringVar(&o.Cluster, "cluster", "", "name of the cluster (may be left out when there is only one)")
	command.MarkFlagsMutuallyExclusive("registry", "mirror")
	command.MarkFlagsOneRequired("registry", "mirror")
}
