package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/explain"
	"github.com/pullpass/pullpass/internal/usage"
)

func policyCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Look after the policy",
	}
	command.AddCommand(policyUnusedCommand(), policyExportCommand())
	return command
}

func policyUnusedCommand() *cobra.Command {
	var file, output string
	var files []string
	var days int
	command := &cobra.Command{
		Use:   "unused",
		Short: "Say which rules, denials, annotations and requests nothing used, by the audit log",
		Long: `Read the audit log, in files that may be compressed with gzip or on standard
input, and say which rules granted nothing, which denials refused nobody, and what
annotations of ServiceAccounts and RepositoryAccess objects ask for and nobody got
by them, for so many days. Where a cluster has an API server, it is asked for its
ServiceAccounts and objects. A log that begins later than that says less, and the
answer says so.`,
		Example: `  pullpass policy unused --config pullpass.yaml --audit-file audit.log.1.gz --audit-file audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 | pullpass policy unused --config pullpass.yaml --audit-file - --days 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 1 {
				return fmt.Errorf("--days %d is not a number of days: write 1 or more", days)
			}
			return answer(cmd, file, output, usage.WriteText, func(known explain.Known) (*usage.Report, error) {
				if len(files) == 0 {
					if known.Config.Audit.File == "" {
						return nil, errors.New("audit.file is not set, so the audit log is on standard output: say with --audit-file where it was kept; - is standard input")
					}
					files = []string{known.Config.Audit.File}
				}
				return usage.Find(cmd.Context(), usage.Request{
					Policy: known.Policy, Accounts: known.Accounts(cmd.Context()), Files: files, Since: time.Now().AddDate(0, 0, -days),
				}, cmd.InOrStdin(), cmd.ErrOrStderr())
			})
		},
	}
	configFlag(command, &file)
	command.Flags().StringArrayVar(&files, "audit-file", nil, "where the audit log is, repeatable; - is standard input (default audit.file of the configuration)")
	command.Flags().IntVar(&days, "days", 30, "what nothing used for so many days is unused")
	outputFlag(command, &output, "text", "text, or json: docs/who-can.md says what its fields mean")
	return command
}
