package replicatest

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

var markdown = flag.String("markdown", "", "write the table to this `file`, too")

// report is what was seen.
type report struct {
	rows  []row
	notes []string
}

// row is one phase of a scenario for one fleet.
type row struct {
	scenario, mode, phase string
	took                  time.Duration
	latencies             []time.Duration // of those that may pull, sorted
	statuses              map[int]int     // likewise
	greedy, greedyAsked   int
	refused               int // of the others; none was granted, or the test failed
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// add adds the rows of a scenario: before, during and after.
func (r *report) add(mode, scenario string, p phases, answers []answer) []row {
	rows := []row{
		{scenario: scenario, mode: mode, phase: "before", took: p.during.Sub(p.before)},
		{scenario: scenario, mode: mode, phase: "during", took: p.after.Sub(p.during)},
		{scenario: scenario, mode: mode, phase: "after", took: p.end.Sub(p.after)},
	}
	for i, from := range []time.Time{p.before, p.during, p.after} {
		row, until := &rows[i], []time.Time{p.during, p.after, p.end}[i]
		row.statuses = map[int]int{}
		for _, a := range answers {
			if a.due.Before(from) || !a.due.Before(until) {
				continue
			}
			switch a.kind {
			case kindPull, kindKnown:
				row.latencies = append(row.latencies, a.took)
				row.statuses[a.status]++
			case kindGreedy:
				row.greedyAsked++
				if a.status == http.StatusOK {
					row.greedy++
				}
			default:
				row.refused++
			}
		}
		slices.Sort(row.latencies)
	}
	r.rows = append(r.rows, rows...)
	return rows
}

func (r row) quantile(percent int) time.Duration {
	if len(r.latencies) == 0 {
		return 0
	}
	return r.latencies[min(len(r.latencies)-1, len(r.latencies)*percent/100)]
}

func (r row) cells() []string {
	milliseconds := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	var statuses []string
	for _, status := range slices.Sorted(maps.Keys(r.statuses)) {
		name := fmt.Sprint(status)
		if status == 0 {
			name = "broken"
		}
		statuses = append(statuses, fmt.Sprintf("%s: %d", name, r.statuses[status]))
	}
	seconds := r.took.Seconds()
	return []string{
		r.scenario, r.mode, r.phase, fmt.Sprintf("%.1f", seconds), fmt.Sprintf("%.0f", float64(len(r.latencies))/seconds),
		milliseconds(r.quantile(50)), milliseconds(r.quantile(99)), milliseconds(r.quantile(100)), strings.Join(statuses, ", "),
		fmt.Sprintf("%.0f of %.0f", float64(r.greedy)/seconds, float64(r.greedyAsked)/seconds), fmt.Sprint(r.refused),
	}
}

var header = []string{
	"fault", "replay", "phase", "s", "pulls/s", "p50 ms", "p99 ms", "max ms", "answers", "within the limit /s", "refused",
}

func (r *report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, row := range r.rows {
		fmt.Fprintln(w, strings.Join(row.cells(), "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String() + "\n" + strings.Join(r.notes, "\n")
}

// write writes the table where the flag says.
func (r *report) write() error {
	if *markdown == "" {
		return nil
	}
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(header)
	line(slices.Repeat([]string{"---"}, len(header)))
	for _, row := range r.rows {
		line(row.cells())
	}
	return os.WriteFile(*markdown, []byte(b.String()), 0o644)
}
