package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/cmd/kubectl-pullpass/kubectl"
	"github.com/pullpass/pullpass/internal/base/term"
)

func canICommand(o *kubectl.Options) *cobra.Command {
	var output, as, service string
	command := &cobra.Command{
		Use:   "can-i ACTION[,ACTION] REPOSITORY",
		Short: "Explain whether a ServiceAccount may pull, push or delete in a repository",
		Long: `Explain, step by step, what a pod of the ServiceAccount would get now. Pullpass
answers, with its present policy and objects. Its console must be on, and you need the
rights to list pods and to create pods/portforward in its namespace.

Exit code 1 if the ServiceAccount does not get every action.`,
		Example: `  kubectl pullpass can-i pull team-a/web --as team-a/web
  kubectl pullpass can-i pull,push team-a/web --as web -n team-a -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			account, err := cluster.Account("--as", as)
			if err != nil {
				return err
			}
			return ask(cmd, cluster, output, "explain", url.Values{
				"as": {account}, "service": {service}, "scope": {"repository:" + args[1] + ":" + args[0]},
			})
		},
	}
	outputFlag(command, &output)
	asFlag(command, &as)
	serviceFlag(command, &service)
	return command
}

func whoCanCommand(o *kubectl.Options) *cobra.Command {
	var output, service string
	command := &cobra.Command{
		Use:   "who-can ACTION REPOSITORY",
		Short: "List the identities that can pull, push or delete in a repository, and their rules",
		Long: `List the rules that allow an action on a repository with their subjects, and the
ServiceAccounts that get it now. Pullpass answers, as pullpass who-can does. Its console
must be on, and you need the rights to list pods and to create pods/portforward in its
namespace.`,
		Example: `  kubectl pullpass who-can pull team-a/web
  kubectl pullpass who-can push team-a/web -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			return ask(cmd, cluster, output, "who", url.Values{"action": {args[0]}, "repository": {args[1]}, "service": {service}})
		},
	}
	outputFlag(command, &output)
	serviceFlag(command, &service)
	return command
}

func reachCommand(o *kubectl.Options) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "reach [[CLUSTER/]NAMESPACE/]SERVICEACCOUNT",
		Short: "List the repositories that a ServiceAccount can reach, and their rules",
		Long: `List the scopes that a valid token of a pod of the ServiceAccount can get, at every
registry. Pullpass answers, as pullpass reach does. Its console must be on, and you need
the rights to list pods and to create pods/portforward in its namespace.`,
		Example: `  kubectl pullpass reach team-a/web
  kubectl pullpass reach web -n team-a -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			account, err := cluster.Account("SERVICEACCOUNT", args[0])
			if err != nil {
				return err
			}
			return ask(cmd, cluster, output, "reach", url.Values{"account": {account}})
		},
	}
	outputFlag(command, &output)
	return command
}

// ask asks Pullpass and writes the answer. An explanation without a grant is errRefused.
func ask(cmd *cobra.Command, cluster *kubectl.Cluster, output, question string, query url.Values) error {
	asJSON, err := isJSON(output)
	if err != nil {
		return err
	}
	answer, err := cluster.Ask(cmd.Context(), question, query)
	if err != nil {
		return err
	}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), answer.Answer)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), answer.Text)
	}
	if err != nil || question != "explain" {
		return err
	}
	granted, err := kubectl.Granted(answer.Answer)
	if err == nil && !granted {
		err = errRefused
	}
	return err
}

func requestCommand(o *kubectl.Options) *cobra.Command {
	var output, as, name, dryRun string
	command := &cobra.Command{
		Use:   "request ACTION[,ACTION] REPOSITORY...",
		Short: "Request repositories for a ServiceAccount with a RepositoryAccess object",
		Long: `Request repositories for a ServiceAccount with a RepositoryAccess object. Pullpass
grants as much of it as a rule with requests: true allows. REPOSITORY is a name or a
pattern: * is within a component, ** is any components.`,
		Example: `  kubectl pullpass request pull team-a/web 'shared/base/**' --as team-a/web
  kubectl pullpass request pull,push team-a/web --as web -n team-a --dry-run=client -o yaml`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case dryRun != "none" && dryRun != "client":
				return fmt.Errorf("--dry-run %s is not known; use none or client", term.QuoteValue(dryRun))
			case output != "name" && output != "json" && output != "yaml":
				return fmt.Errorf("--output %s is not known; use name, json or yaml", term.QuoteValue(output))
			}
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			access, err := cluster.NewAccess(name, as, args[1:], strings.Split(args[0], ","))
			if err != nil {
				return err
			}
			done := "created"
			if dryRun == "client" {
				done = "created (dry run)"
			} else if err := cluster.Create(cmd.Context(), access); err != nil {
				return err
			}
			switch output {
			case "json":
				return writeJSON(cmd.OutOrStdout(), access)
			case "yaml":
				text, err := access.YAML()
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "repositoryaccess.pullpass.dev/%s %s\n", access.Metadata.Name, done)
			return err
		},
	}
	asFlag(command, &as)
	flags := command.Flags()
	flags.StringVar(&name, "name", "", "name of the object (default: that of the ServiceAccount)")
	flags.StringVar(&dryRun, "dry-run", "none", "none, or client: print the object and do not write it")
	flags.StringVarP(&output, "output", "o", "name", "name, json or yaml")
	return command
}

// asFlag adds the --as that a command needs.
func asFlag(command *cobra.Command, target *string) {
	command.Flags().StringVar(target, "as", "", "[NAMESPACE/]SERVICEACCOUNT (required)")
	if err := command.MarkFlagRequired("as"); err != nil {
		panic(err) // a flag is mistyped: every test of the command fails
	}
}

func serviceFlag(command *cobra.Command, target *string) {
	command.Flags().StringVar(target, "service", "", "service of the registry (may be left out when there is only one)")
}
