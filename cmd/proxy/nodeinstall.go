package main

import (
	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/progress"
	"github.com/pullpass/pullpass/internal/server/explain"
)

func nodeInstallCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "node-install",
		Short: "Install the kubelet's plugin and its configuration on a node, or remove them",
		Long: `Install the configuration that "pullpass kubelet-config" prints on a node: the
plugin, the kubelet's provider configuration and flags, and containerd's
hosts.toml. Settings of other programs stay, and each changed file has a backup.
The kubelet is restarted only if its files have changed. If it is not healthy
within 90 seconds of its start, every file is restored. The next command
completes an interrupted one. docs/how-to/nodes.md lists the platforms.

In a cluster, the Helm chart runs "run" on every node, one restart at a time, and
"status" shows the progress. The other commands run on one node.`,
	}
	command.AddCommand(nodeCommands()...)
	command.AddCommand(nodeStatusCommand())
	return command
}

func nodeStatusCommand() *cobra.Command {
	var namespace, kubeconfig, output string
	command := &cobra.Command{
		Use:   "status",
		Short: "Say of every node of a cluster how far its installation is, and why",
		Long: `Say of every node of a cluster how far "node-install run" is with it, and why it
is not ready. docs/how-to/nodes.md has the states.`,
		Example: `  pullpass node-install status --kubeconfig ~/.kube/config
  pullpass node-install status --kubeconfig ~/.kube/config --namespace pullpass-nodes -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output, "text")
			if err != nil {
				return err
			}
			connection, err := controller.Connect(kubeconfig)
			if err != nil {
				return err
			}
			overview, err := progress.List(cmd.Context(), connection, namespace)
			if err != nil {
				return err
			}
			if asJSON {
				return explain.WriteJSON(cmd.OutOrStdout(), overview)
			}
			return progress.WriteText(cmd.OutOrStdout(), overview)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&namespace, "namespace", "n", "pullpass-nodes", "namespace of the installer")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the one that this runs in")
	outputFlag(command, &output, "text", "text or json")
	return command
}
