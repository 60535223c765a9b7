package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/describe"
	"github.com/pullpass/pullpass/internal/server/explain"
)

func policyDescribeCommand() *cobra.Command {
	var file, output string
	var objects []string
	command := &cobra.Command{
		Use:   "describe",
		Short: "Say in one sentence what each rule and denial means",
		Long: `Say in one sentence of plain English what each rule and each denial of the policy
means: for reviews. The command reads only the configuration, its policy and the given
objects.`,
		Example: `  pullpass policy describe --config pullpass.yaml
  pullpass policy describe --config pullpass.yaml --objects prod-eu=objects.yaml -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output, "text")
			if err != nil {
				return err
			}
			cfg, err := config.LoadOnce(cmd.Context(), file)
			if err != nil {
				return err
			}
			files, err := setup.LoadPolicy(cfg)
			if err != nil {
				return err
			}
			sets, faults := readObjects(cmd.Context(), cfg, "--objects", objects)
			if len(faults) > 0 {
				return reportFaults(cmd.ErrOrStderr(), errors.Join(faults...))
			}
			of := map[string]*policy.Policies{}
			for cluster, set := range sets {
				of[cluster] = policy.NewPolicies(nil, set.Policies()...)
			}
			found := describe.Of(files, of)
			if asJSON {
				return explain.WriteJSON(cmd.OutOrStdout(), found)
			}
			return describe.WriteText(cmd.OutOrStdout(), found)
		},
	}
	configFlag(command, &file)
	command.Flags().StringArrayVar(&objects, "objects", nil, "CLUSTER=FILE: policy objects of a cluster, repeatable")
	outputFlag(command, &output, "text", "text or json")
	return command
}
