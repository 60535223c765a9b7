package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/server"
)

func checkCommand() *cobra.Command {
	var file string
	var insecureHTTP, configOnly, live bool
	var tests, objects []string
	command := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and the files that it names",
		Long: `Check the configuration, the policy and the other files that it names, and print
every fault with its place and a remedy. Exit code 1 if there is a fault. The
command changes nothing and uses no network without --live, so it fits a CI job and an
init container. --config-only reads only the configuration and the policy: keys and
certificates are seldom where a configuration is reviewed.

--live also asks each issuer for its keys, and each API server for Pullpass's rights.

--tests runs tests of the policy and explains each failure. Exit code 1 if a test
fails.

--objects reads AccessPolicy and RepositoryAccess objects of a cluster from a file,
as kubectl applies or prints them. It prints their faults and warns of entries that
have no effect. The tests see these objects as the proxy of that cluster would.`,
		Example: `  pullpass check --config pullpass.yaml
  pullpass check --config pullpass.yaml --live
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
			sets, objectFaults := readObjects(cmd.Context(), cfg, "--objects", objects)
			if objectFaults == nil {
				warnings = append(warnings, sets.warnings(cfg)...)
			}
			faults = append(faults, objectFaults...)
			if live {
				faults = append(faults, setup.CheckLive(cmd.Context(), cfg)...)
			}
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
	command.Flags().BoolVar(&insecureHTTP, "insecure-http", false, "check for serve --insecure-http, which needs no TLS files")
	command.Flags().BoolVar(&configOnly, "config-only", false, "check only the configuration and the policy; read no other file")
	command.Flags().BoolVar(&live, "live", false, "also ask the issuers and the API servers")
	command.MarkFlagsMutuallyExclusive("live", "config-only")
	command.Flags().StringArrayVar(&objects, "objects", nil, "CLUSTER=FILE: policy objects of a cluster, repeatable")
	command.Flags().StringArrayVar(&tests, "tests", nil, "file with policy tests, repeatable")
	return command
}

// reportFaults writes each fault on its own line.
func reportFaults(w io.Writer, err error) error {
	for _, fault := range strictyaml.Flatten(err) {
		fmt.Fprintln(w, fault)
	}
	return errReported
}
