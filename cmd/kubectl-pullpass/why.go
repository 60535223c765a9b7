package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/cmd/kubectl-pullpass/kubectl"
)

func whyCommand(o *kubectl.Options) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "why POD",
		Short: "Show why a pod does not get its images",
		Long: `Show why a pod does not get its images: the events of Pullpass, the annotations of its
ServiceAccount, and the RepositoryAccess objects that name the ServiceAccount. With the
right to create pods/portforward in the namespace of Pullpass, and with its console on,
also each step of the decision, then and now.

Exit code 1 if the pod is refused, 2 if neither the events nor the decision can be read.`,
		Example: `  kubectl pullpass why web-0 -n team-a
  kubectl pullpass why web-0 -n team-a -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := isJSON(output)
			if err != nil {
				return err
			}
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			reasons, err := cluster.Why(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), reasons)
			} else {
				err = reasons.Write(cmd.OutOrStdout(), time.Now())
			}
			switch {
			case err != nil:
				return err
			case reasons.Refused():
				return errRefused
			case !reasons.Answered():
				return errReported
			}
			return nil
		},
	}
	outputFlag(command, &output)
	return command
}
