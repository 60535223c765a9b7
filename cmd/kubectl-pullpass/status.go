package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/cmd/kubectl-pullpass/kubectl"
	"github.com/pullpass/pullpass/internal/node/progress"
)

func statusCommand(o *kubectl.Options) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "status",
		Short: "Show the replicas of Pullpass and their failing dependencies",
		Long: `Show the replicas of Pullpass and their failing dependencies. You need the right to
list pods in the namespace of Pullpass and, for the dependencies, to create
pods/portforward.

Exit code 1 if no replica is ready.`,
		Example: `  kubectl pullpass status
  kubectl pullpass status --pullpass-namespace registry -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output)
			if err != nil {
				return err
			}
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			replicas, err := cluster.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), replicas)
			} else {
				err = kubectl.WriteStatus(cmd.OutOrStdout(), replicas)
			}
			if err == nil && !slices.ContainsFunc(replicas, func(r kubectl.Replica) bool { return r.Ready }) {
				err = errRefused
			}
			return err
		},
	}
	outputFlag(command, &output)
	return command
}

func nodesCommand(o *kubectl.Options) *cobra.Command {
	var output, installer string
	command := &cobra.Command{
		Use:   "nodes",
		Short: "Show the progress of the installation on each node",
		Long: `Show the progress of the installation on each node, as pullpass node-install status
does. You need the right to list nodes and, for the node whose turn it is, to get leases
in the namespace of the installer.`,
		Example: `  kubectl pullpass nodes
  kubectl pullpass nodes --installer-namespace pullpass-nodes -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output)
			if err != nil {
				return err
			}
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			overview, notKnown, err := cluster.Nodes(cmd.Context(), installer)
			if err != nil {
				return err
			}
			if notKnown != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "the turn is not known:", notKnown)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), overview)
			}
			return progress.WriteText(cmd.OutOrStdout(), overview)
		},
	}
	outputFlag(command, &output)
	command.Flags().StringVar(&installer, "installer-namespace", "pullpass-nodes", "namespace of the installer")
	return command
}
