package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/term"
)

// configFlag adds the --config that every command needs.
func configFlag(command *cobra.Command, target *string) {
	command.Flags().StringVar(target, "config", "", "configuration file (required)")
	requireFlags(command, "config")
}

// requireFlags marks flags as required. It panics if the command lacks one.
func requireFlags(command *cobra.Command, names ...string) {
	for _, name := range names {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // a flag is mistyped: every test of the command fails
		}
	}
}

// outputFlag adds --output: json, or the name of the format for people.
func outputFlag(command *cobra.Command, target *string, people, usage string) {
	command.Flags().StringVarP(target, "output", "o", people, usage)
}

// isJSON validates the value of --output.
func isJSON(output, people string) (bool, error) {
	switch output {
	case people, "json":
		return output == "json", nil
	}
	return false, fmt.Errorf("--output %s is not known: use %s or json", term.QuoteValue(output), people)
}

func writeWarnings(w io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
}
