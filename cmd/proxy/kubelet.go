package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/nodeconfig"
	"github.com/pullpass/pullpass/internal/strictyaml"
)

func kubeletConfigCommand() *cobra.Command {
	var o nodeconfig.Options
	var file, part string
	var lint bool
	command := &cobra.Command{
		Use:   "kubelet-config",
		Short: "Print what to put on the nodes of a cluster, or judge what is there",
		Long: `Print what the kubelets of a cluster need so that a registry is asked with the
pod's own ServiceAccount: the CredentialProviderConfig, the right to request the
audience, the kubelet's flags, and containerd's hosts.toml. --part prints one of
them alone, for a file.

--mirror is for the registries behind the gateway (upstreams of the configuration):
images keep their names, and hosts.toml sends containerd to the gateway. There is
one for each.

--lint judges files instead, each by what it is: YAML and JSON by their kind
(CredentialProviderConfig, roles and bindings, KubeletConfiguration), *.toml as
a hosts.toml, anything else as text with the kubelet's flags. A finding is
FILE:LINE: field: what is wrong; remedy. Exit code 1 if there is one.`,
		Example: `  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --part rbac | kubectl apply -f -
  pullpass kubelet-config --config pullpass.yaml --registry registry.example.com --lint credential-provider.yaml rbac.yaml hosts.toml
  pullpass kubelet-config --config pullpass.yaml --mirror ghcr.io --mirror docker.io
  pullpass kubelet-config --config pullpass.yaml --mirror ghcr.io --part hosts >/etc/containerd/certs.d/ghcr.io/hosts.toml`,
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
			findings, notJudged := target.Lint(cmd.Context(), files)
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
	targetFlags(command, &file, &o)
	command.Flags().StringVar(&o.PluginDir, "plugin-dir", "", "directory of the plugin on the nodes (default: "+nodeconfig.DefaultPluginDir+"); with --lint: here, to be looked at")
	command.Flags().StringVar(&part, "part", "", "print one part alone: "+strictyaml.List(nodeconfig.Parts()))
	command.Flags().BoolVar(&lint, "lint", false, "judge the files that are named after the flags")
	command.MarkFlagsMutuallyExclusive("lint", "part")
	return command
}
