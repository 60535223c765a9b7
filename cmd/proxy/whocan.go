package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/explain"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

func whoCanCommand() *cobra.Command {
	var file, output, service string
	command := &cobra.Command{
		Use:   "who-can ACTION REPOSITORY",
		Short: "Say who can pull a repository, push to it or delete from it, and by which rule",
		Long: `Ask the policy backwards: which rules allow it, and to whom, and which
ServiceAccounts of the clusters get it now. Where a cluster has an API server, it
is asked for its ServiceAccounts, their annotations and the labels of their
namespaces. ServiceAccounts are judged as by a good token of a pod: rules and
denials that name nodes are told, and not counted, and neither are revocations.`,
		Example: `  pullpass who-can pull team-a/web --config pullpass.yaml
  pullpass who-can push team-a/web --config pullpass.yaml --service registry.example.com -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return answer(cmd, file, output, explain.WriteWho, func(k explain.Known) (*reach.Who, error) {
				return k.Who(cmd.Context(), explain.WhoRequest{Action: args[0], Repository: args[1], Service: service})
			})
		},
	}
	configFlag(command, &file)
	command.Flags().StringVar(&service, "service", "", "service of the registry (may be left out when there is only one)")
	outputFlag(command, &output, "text", "text, or json: docs/who-can.md says what its fields mean")
	return command
}

func reachCommand() *cobra.Command {
	var file, output string
	command := &cobra.Command{
		Use:   "reach CLUSTER/NAMESPACE/SERVICEACCOUNT",
		Short: "Say which repositories a ServiceAccount can reach, and by which rule",
		Long: `Say what a good token of a pod of the ServiceAccount can get, at every registry.
Where its cluster has an API server, it is asked for annotations and labels. Rules
and denials that name nodes are not counted, and neither are revocations. pullpass
explain judges a single request.`,
		Example: `  pullpass reach prod-eu/team-a/web --config pullpass.yaml
  pullpass reach prod-eu/team-a/web --config pullpass.yaml -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return answer(cmd, file, output, explain.WriteWhat, func(k explain.Known) (*reach.What, error) {
				return k.What(cmd.Context(), args[0])
			})
		},
	}
	configFlag(command, &file)
	outputFlag(command, &output, "text", "text, or json: docs/who-can.md says what its fields mean")
	return command
}

// answer writes what is known of a configuration file, in the form that output names.
func answer[T any](cmd *cobra.Command, file, output string, write func(io.Writer, T) error, ask func(explain.Known) (T, error)) error {
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
