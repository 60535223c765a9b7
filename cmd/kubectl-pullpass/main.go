// Command kubectl-pullpass is a plugin of kubectl: it answers the questions of developers about
// Pullpass with the rights of their kubeconfig. This package has the commands and their flags.
// Package kubectl does the work.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/cmd/kubectl-pullpass/kubectl"
	"github.com/pullpass/pullpass/internal/base/term"
)

// version is set by the linker.
var version = "(devel)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errRefused ends a command whose answer, already printed, is no.
var errRefused = errors.New("refused")

// errReported ends a command with exit code 2 whose output already says why.
var errReported = errors.New("reported")

// run is the whole program, but for signals. It returns the exit code: 0 for yes and for success, 1
// for no, 2 for an error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errRefused):
		return 1
	case errors.Is(err, errReported):
		return 2
	}
	fmt.Fprintf(stderr, "kubectl pullpass: %s\n", kubectl.Plain(err.Error()))
	return 2
}

func rootCommand() *cobra.Command {
	var o kubectl.Options
	root := &cobra.Command{
		Use:   "kubectl-pullpass",
		Short: "Ask why a pull was refused, and which images a ServiceAccount may pull",
		Long: `Ask why a pull was refused, and which images a ServiceAccount may pull.

The plugin has the rights of your kubeconfig and no others. If a right is missing, the
answer names it. Questions to Pullpass itself go through a port-forward to its console.

Exit codes: 0 for yes and for success, 1 for no, 2 for an error.`,
		Example: `  kubectl pullpass why web-0 -n team-a
  kubectl pullpass can-i pull team-a/web --as team-a/web`,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl pullpass"},
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, or ~/.kube/config)")
	flags.StringVar(&o.Context, "context", "", "context of the kubeconfig (default: the current one)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace (default: that of the context)")
	flags.StringVar(&o.Pullpass, "pullpass-namespace", "pullpass", "namespace of Pullpass")
	flags.StringVar(&o.Release, "release", "", "Helm release of Pullpass in its namespace (default: the only one)")
	root.AddCommand(whyCommand(&o), canICommand(&o), whoCanCommand(&o), reachCommand(&o), requestCommand(&o), statusCommand(&o), nodesCommand(&o), revokeCommand(&o), auditCommand(&o), versionCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  kubectl pullpass version`,
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "kubectl-pullpass", version)
		},
	}
}

// outputFlag adds --output.
func outputFlag(command *cobra.Command, target *string) {
	command.Flags().StringVarP(target, "output", "o", "text", "text or json")
}

// isJSON validates the value of --output.
func isJSON(output string) (bool, error) {
	switch output {
	case "text", "json":
		return output == "json", nil
	}
	return false, fmt.Errorf("--output %s is not known; use text or json", term.QuoteValue(output))
}

func writeJSON(w io.Writer, answer any) error {
	text, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", term.ASCIIJSON(text))
	return err
}
