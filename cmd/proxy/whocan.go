package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/server/explain"
)

func whoCanCommand() *cobra.Command {
	var file, output, service string
	command := &cobra.Command{
		Use:   "who-can ACTION REPOSITORY",
		Short: "List the identities that can pull, push or delete in a repository, and their rules",
		Long: `List the rules that allow an action on a repository with their subjects, and the
ServiceAccounts that get it now. The command queries the API servers of the clusters
for ServiceAccounts, their annotations and the labels of their namespaces. It assumes
a valid token of a pod for each ServiceAccount. Rules and denials that name nodes are
listed but do not count. Revocations do not count either.`,
		Example: `  pullpass who-can pull team-a/web --config pullpass.yaml
  pullpass who-can push team-a/web --config pullpass.yaml --service registry.example.com -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return answerQuestion(cmd, file, output, explain.WriteWho, func(k explain.Known) (*reach.Who, error) {
				return k.Who(cmd.Context(), explain.WhoRequest{Action: args[0], Repository: args[1], Service: service})
			})
		},
	}
	configFlag(command, &file)
	command.Flags().StringVar(&service, "service", "", "service of the registry (may be left out when there is only one)")
	outputFlag(command, &output, "text", "text, or json: docs/who-can.schema.json describes the fields")
	return command
}

func reachCommand() *cobra.Command {
	var file, output string
	command := &cobra.Command{
		Use:   "reach CLUSTER/NAMESPACE/SERVICEACCOUNT",
		Short: "List the repositories that a ServiceAccount can reach, and their rules",
		Long: `List the scopes that a valid token of a pod of the ServiceAccount can get, at every
registry. The command queries the API server of the cluster for annotations and
labels. Rules and denials that name nodes do not count, nor do revocations. To
explain a single request, use pullpass explain.`,
		Example: `  pullpass reach prod-eu/team-a/web --config pullpass.yaml
  pullpass reach prod-eu/team-a/web --config pullpass.yaml -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return answerQuestion(cmd, file, output, explain.WriteWhat, func(k explain.Known) (*reach.What, error) {
				return k.What(cmd.Context(), args[0])
			})
		},
	}
	configFlag(command, &file)
	outputFlag(command, &output, "text", "text, or json: docs/who-can.schema.json describes the fields")
	return command
}

// answerQuestion asks about a configuration file and writes the answer in the format
// that output names.
func answerQuestion[T any](cmd *cobra.Command, file, output string, write func(io.Writer, T) error, ask func(explain.Known) (T, error)) error {
	asJSON, err := isJSON(output, "text")
	if err != nil {
		return err
	}
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
	known, err := explain.Open(cfg, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	found, err := ask(known)
	if err != nil {
		return err
	}
	if asJSON {
		return explain.WriteJSON(cmd.OutOrStdout(), found)
	}
	return write(cmd.OutOrStdout(), found)
}
