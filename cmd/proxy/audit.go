package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/server/audit"
)

func auditCommand() *cobra.Command {
	var q audit.Query
	var output string
	command := &cobra.Command{
		Use:   "audit [FILE...]",
		Short: "Search the audit log by token, pod, ServiceAccount, project, CI run or repository",
		Long: `Search the audit log in the given files, in their order, or on standard input
(also as -). Files may be compressed with gzip. An event is shown if it meets
every condition. Without a condition, every event is shown.

The claims of a refused token are not verified. The search finds them too, and
marks them: claimed. Damaged lines, as a crash leaves them, are counted on
standard error. Exit code 1 only if a file cannot be read completely.`,
		Example: `  pullpass audit --token-id JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91 audit.log
  pullpass audit --repository team-a/web --since 24h audit.log.1.gz audit.log
  pullpass audit --pod prod-eu/team-a/web-5c9f-x2x7q audit.log
  pullpass audit --service-account prod-eu/team-a/web --since 2026-03-01T00:00:00Z --until 2026-03-02T00:00:00Z audit.log
  pullpass audit --project github/123456789 --since 24h audit.log
  pullpass audit --trial --since 24h audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 | pullpass audit --repository team-a/web -o json`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := q.CheckGiven(cmd.Flags().Changed); err != nil {
				return err
			}
			asJSON, err := isJSON(output, "table")
			if err != nil {
				return err
			}
			search, err := audit.NewSearch(q, asJSON, time.Now(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			// A write to a pipe cannot be interrupted.
			ended := make(chan error, 1)
			go func() { ended <- search.Run(cmd.Context(), files, cmd.InOrStdin(), cmd.ErrOrStderr()) }()
			select {
			case err := <-ended:
				return err
			case <-cmd.Context().Done():
				return errReported
			}
		},
	}
	q.Conditions(func(value *string, name, usage string) { command.Flags().StringVar(value, name, "", usage) })
	command.Flags().BoolVar(&q.Trial, "trial", false, "only requests that the policy trial would have decided differently")
	outputFlag(command, &output, "table", "table, or json: the lines of the log")
	return command
}
