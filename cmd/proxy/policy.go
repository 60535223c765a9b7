package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/server/usage"
)

func policyCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Work with policies",
	}
	command.AddCommand(policyDiffCommand(), policyDescribeCommand(), policySuggestCommand(), policyUnusedCommand(), policyExportCommand())
	return command
}

func policyUnusedCommand() *cobra.Command {
	var file, output string
	var files []string
	var days int
	command := &cobra.Command{
		Use:   "unused",
		Short: "Report rules, denials, annotations and RepositoryAccess objects that were not used",
		Long: `Read the audit log and report what was not used in the last --days days: rules
that granted nothing, denials that refused no request, and repositories that
annotations of ServiceAccounts and RepositoryAccess objects request but that no
request got by them. The log is in files, which may be compressed with gzip, or
on standard input. The command queries the API servers of the clusters for
ServiceAccounts and objects. If the log begins later than that, the answer says
so.`,
		Example: `  pullpass policy unused --config pullpass.yaml --audit-file audit.log.1.gz --audit-file audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 | pullpass policy unused --config pullpass.yaml --audit-file - --days 7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 1 {
				return fmt.Errorf("--days %d: must be 1 or more", days)
			}
			return answerQuestion(cmd, file, output, usage.WriteText, func(known explain.Known) (*usage.Report, error) {
				if len(files) == 0 {
					if known.Config.Audit.File == "" {
						return nil, errors.New("audit.file is not set, so serve writes the audit log to standard output; name the file that keeps it with --audit-file; - is standard input")
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
	command.Flags().StringArrayVar(&files, "audit-file", nil, "audit log, repeatable; - is standard input (default: audit.file of the configuration)")
	command.Flags().IntVar(&days, "days", 30, "report entries that were not used in the last N days")
	outputFlag(command, &output, "text", "text, or json: docs/who-can.schema.json describes the fields")
	return command
}
