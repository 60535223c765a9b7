package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/refusal"
)

func reasonsCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "reasons [WORD]",
		Short: "Print every reason for a refusal, its meaning and its remedy",
		Long: `Print the reasons that audit lines, metrics and explanations give for a request
that did not get what it asked for: the word, its class, the HTTP status, its
meaning, and its remedy.`,
		Example: `  pullpass reasons
  pullpass reasons token_audience
  pullpass reasons -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			inJSON, err := isJSON(output, "text")
			if err != nil {
				return err
			}
			reasons := refusal.All()
			if len(args) == 1 {
				reason, ok := refusal.Find(refusal.Reason(args[0]))
				if !ok {
					return fmt.Errorf("%s is not a reason: pullpass reasons lists them", term.QuoteValue(args[0]))
				}
				reasons = []refusal.Entry{reason}
			}
			if inJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(reasonRows(reasons))
			}
			if len(args) == 1 {
				r := reasons[0]
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n\nclass   %s\nstatus  %d\nremedy  %s\n", r.Reason, r.Message, r.Class, r.Class.Status(), r.Remedy)
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "REASON\tSTATUS\tMEANING")
			for _, r := range reasons {
				fmt.Fprintf(table, "%s\t%d\t%s\n", r.Reason, r.Class.Status(), r.Message)
			}
			return table.Flush()
		},
	}
	outputFlag(command, &output, "text", "text or json")
	return command
}

type reasonRow struct {
	Word    refusal.Reason `json:"word"`
	Class   refusal.Class  `json:"class"`
	Status  int            `json:"status"`
	Message string         `json:"message"`
	Remedy  string         `json:"remedy"`
}

func reasonRows(reasons []refusal.Entry) (rows []reasonRow) {
	for _, r := range reasons {
		rows = append(rows, reasonRow{r.Reason, r.Class, r.Class.Status(), r.Message, r.Remedy})
	}
	return rows
}
