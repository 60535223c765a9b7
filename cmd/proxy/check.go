package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

func checkCommand() *cobra.Command {
	var config string
	var insecureHTTP, configOnly bool
	var tests []string
	command := &cobra.Command{
		Use:   "check",
		Short: "Name every fault of the configuration and of the files that it names",
		Long: `Name every fault of the configuration, the policy and the other files that it
names, each with its place and a remedy. Exit code 1 if there is one. Nothing is
changed and no network is used, so it fits a CI job and an init container.
--config-only does without keys, certificates and all the other files, which are
seldom where a configuration is reviewed.

--tests runs tests of the policy, and says why one fails. Exit code 1 if one does.`,
		Example: `  pullpass check --config pullpass.yaml
  pullpass check --config pullpass.yaml --config-only --tests policy-tests.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig(cmd.Context(), config)
			if err != nil {
				return reportFaults(cmd.ErrOrStderr(), err)
			}
			check := checkFiles
			if configOnly {
				check = checkConfig
			}
			faults, warnings := check(cfg, insecureHTTP)
			for _, warning := range slices.Concat(cfg.Warnings, warnings) {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
			}
			passed := len(tests) == 0 || runPolicyTests(cmd.Context(), cfg, tests, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if len(faults) > 0 {
				return reportFaults(cmd.ErrOrStderr(), errors.Join(faults...))
			}
			if !passed {
				return errReported
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no faults; %d clusters, %d registries, %d policy files\n",
				config, len(cfg.Clusters), len(cfg.Registries), len(cfg.PolicyFiles))
			return nil
		},
	}
	configFlag(command, &config)
	command.Flags().BoolVar(&insecureHTTP, "insecure-http", false, "check for serve --insecure-http: no TLS files are needed")
	command.Flags().BoolVar(&configOnly, "config-only", false, "check the configuration and the policy alone: no other file is read")
	command.Flags().StringArrayVar(&tests, "tests", nil, "file with tests of the policy, repeatable")
	return command
}

// checkConfig reads the policy files and no others.
func checkConfig(cfg *Config, insecureHTTP bool) (faults []error, warnings []string) {
	policy, err := loadPolicy(cfg)
	if err == nil {
		warnings = policyWarnings(cfg, policy)
	}
	return slices.Concat(flatten(cfg.CheckListeners(insecureHTTP)), flatten(err)), warnings
}

// checkFiles reads what serve reads, and goes on after a fault.
func checkFiles(cfg *Config, insecureHTTP bool) (faults []error, warnings []string) {
	note := func(err error) { faults = append(faults, flatten(err)...) }
	// A file that is not there was named by CheckFiles, with its field.
	noteContent := func(err error) {
		for _, fault := range flatten(err) {
			if !errors.Is(fault, fs.ErrNotExist) {
				note(fault)
			}
		}
	}
	logger := slog.New(slog.DiscardHandler)
	listeners := cfg.CheckListeners(insecureHTTP)
	note(listeners)
	note(cfg.CheckFiles())
	policy, err := loadPolicy(cfg)
	noteContent(err)
	if err == nil {
		warnings = policyWarnings(cfg, policy)
		_, err = newManifests(cfg, policy)
		noteContent(err)
	}
	for i := range cfg.Clusters {
		// Only a pod can tell whether inCluster works.
		if file := cfg.Clusters[i].Kubernetes.KubeconfigFile; file != "" && checkReadable(file) == nil {
			_, err := connect(cfg, i, nil, logger)
			note(err)
		}
	}
	_, err = newVerifier(cfg, logger)
	note(err)
	for i := range cfg.Registries {
		// Managed keys are made by keys init or serve: their absence is no fault.
		_, err := newSigningKeys(&cfg.Registries[i], logger)
		noteContent(err)
	}
	if !insecureHTTP && listeners == nil {
		_, err = openTLS(cfg, time.Now())
		note(err)
	}
	return faults, warnings
}

// reportFaults writes each fault on its own line.
func reportFaults(w io.Writer, err error) error {
	for _, fault := range flatten(err) {
		fmt.Fprintln(w, fault)
	}
	return errReported
}

// flatten takes apart what errors.Join put together.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}
