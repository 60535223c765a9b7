package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/server"
	"github.com/pullpass/pullpass/internal/strictyaml"
)

func checkCommand() *cobra.Command {
	var file string
	var insecureHTTP, configOnly bool
	var tests, objects []string
	command := &cobra.Command{
		Use:   "check",
		Short: "Name every fault of the configuration and of the files that it names",
		Long: `Name every fault of the configuration, the policy and the other files that it
names, each with its place and a remedy. Exit code 1 if there is one. Nothing is
changed and no network is used, so it fits a CI job and an init container.
--config-only does without keys, certificates and all the other files, which are
seldom where a configuration is reviewed.

--tests runs tests of the policy, and says why one fails. Exit code 1 if one does.

--objects reads AccessPolicy and RepositoryAccess objects of a cluster from a file,
as kubectl applies or prints them, names every fault of them and what they say in
vain, and lets the tests see them as a proxy of that cluster would.`,
		Example: `  pullpass check --config pullpass.yaml
  pullpass check --config pullpass.yaml --config-only --tests policy-tests.yaml
  pullpass check --config pullpass.yaml --config-only --objects prod-eu=objects.yaml --tests policy-tests.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadOnce(cmd.Context(), file)
			if err != nil {
				return reportFaults(cmd.ErrOrStderr(), err)
			}
			check := server.CheckFiles
			if configOnly {
				check = server.CheckConfig
			}
			faults, warnings := check(cfg, insecureHTTP)
			sets, objectFaults := readObjects(cmd.Context(), cfg, objects)
			if objectFaults == nil {
				warnings = append(warnings, sets.idle(cfg)...)
			}
			faults = append(faults, objectFaults...)
			writeWarnings(cmd.ErrOrStderr(), slices.Concat(cfg.Warnings, warnings))
			passed := len(tests) == 0 || runPolicyTests(cmd.Context(), cfg, tests, sets, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if len(faults) > 0 {
				return reportFaults(cmd.ErrOrStderr(), errors.Join(faults...))
			}
			if !passed {
				return errReported
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no faults; %d clusters, %d identities, %d registries, %d policy files\n",
				file, len(cfg.Clusters), len(cfg.Identities), len(cfg.Registries), len(cfg.PolicyFiles))
			return nil
		},
	}
	configFlag(command, &file)
	command.Flags().BoolVar(&insecureHTTP, "insecure-http", false, "check for serve --insecure-http: no TLS files are needed")
	command.Flags().BoolVar(&configOnly, "config-only", false, "check the configuration and the policy alone: no other file is read")
	command.Flags().StringArrayVar(&objects, "objects", nil, "CLUSTER=FILE with policy objects of that cluster, repeatable")
	command.Flags().StringArrayVar(&tests, "tests", nil, "file with tests of the policy, repeatable")
	return command
}

// reportFaults writes each fault on its own line.
func reportFaults(w io.Writer, err error) error {
	for _, fault := range strictyaml.Flatten(err) {
		fmt.Fprintln(w, fault)
	}
	return errReported
}
