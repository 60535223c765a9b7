package progress

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
)

// WriteText writes a table.
func WriteText(w io.Writer, o Overview) error {
	ready := 0
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NODE\tSTATE\tSINCE\tKUBELET\tPROFILE\tVERSION\tREVISION\tREASON")
	for _, n := range o.Nodes {
		since := "-"
		if n.State == Ready {
			ready++
		}
		if n.State != "" {
			since = n.Since.Format(time.RFC3339)
		}
		state := cell(string(n.State))
		if n.Tainted {
			state += " (tainted)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(n.Node), state, since, cell(n.Kubelet), cell(n.Profile), cell(n.Version), cell(n.Revision), term.Line(term.Shorten(n.Reason, MaxReason)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d of %d nodes are ready", ready, len(o.Nodes))
	if o.Turn != "" {
		fmt.Fprintf(w, "; it is the turn of %s", cell(o.Turn))
	}
	fmt.Fprintln(w)
	if o.Stopped != nil {
		fmt.Fprintln(w, term.Line(term.Shorten(o.Stopped.String(), 2*MaxReason)))
	}
	return nil
}

// cell is a word in a table. It comes from an annotation, which others can write.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return term.Plain(s)
}
