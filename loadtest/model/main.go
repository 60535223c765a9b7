// Command model plays the storm of loadtest on paper, for clusters that no machine at hand can imitate: all nodes come back
// within a minute and pull all their images. It prints the tables of docs/capacity.md.
//
// It is deterministic: the same flags give the same tables.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	s := storm{Window: 60, Cores: 2, Requests: 2, Between: 0.02, Seed: 1}
	flags := flag.NewFlagSet("model", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Float64Var(&s.First, "first", 0.0008, "CPU seconds of an exchange of a new token, with its TLS handshake: loadtest compare, tls first")
	flags.Float64Var(&s.Repeated, "repeated", 0.0006, "of one that follows: tls repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	replicas(stdout, s)
	limits(stdout, s)
	return nil
}

// replicas prints how many replicas a storm takes.
func replicas(w io.Writer, s storm) {
	fmt.Fprintln(w, "| nodes | replicas | requests a second, most | CPU, busiest second | p50 | p99 | 503 | last pod pulled after |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, size := range []struct {
		nodes    int
		replicas []int
	}{
		{fleet.Nodes, []int{1, 2, 3, 4}},
		{4 * fleet.Nodes, []int{4, 6, 8, 12}},
		{20 * fleet.Nodes, []int{16, 24, 32, 40, 48}},
	} {
		for _, replicas := range size.replicas {
			s.Nodes, s.Replicas = size.nodes, replicas
			o := s.run()
			fmt.Fprintf(w, "| %s | %d | %s | %.0f %% | %s | %s | %s | %.0f s |\n", thousands(s.Nodes), replicas, thousands(most(o.Arrivals)),
				o.Utilization*100, milliseconds(o.Times, 0.5), milliseconds(o.Times, 0.99), thousands(o.Overloaded), o.Pulled[len(o.Pulled)-1])
		}
	}
}

// limits prints what limits.perServiceAccount does to a storm.
func limits(w io.Writer, s storm) {
	fmt.Fprintln(w, "\n| nodes | limits.perServiceAccount | 429 | half of the pods pulled after | 99 % | all |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- |")
	for _, size := range []struct{ nodes, replicas int }{{100, 2}, {1000, 2}, {fleet.Nodes, 4}} {
		for _, l := range []struct {
			name string
			limit
		}{
			{"none", limit{}},
			{"50 a second, burst 200; a Redis for all replicas", limit{Rate: 50, Burst: 200, Shared: true}},
			{"the same, each replica for itself", limit{Rate: 50, Burst: 200}},
			{"the same for each node of a ServiceAccount", limit{Rate: 50, Burst: 200, Shared: true, PerNode: true}},
		} {
			s.Nodes, s.Replicas, s.Limit = size.nodes, size.replicas, l.limit
			o := s.run()
			fmt.Fprintf(w, "| %s | %s | %s | %.0f s | %.0f s | %.0f s |\n", thousands(s.Nodes), l.name, thousands(o.Limited),
				quantile(o.Pulled, 0.5), quantile(o.Pulled, 0.99), o.Pulled[len(o.Pulled)-1])
		}
	}
}

// quantile returns a value of a sorted list.
func quantile(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }

func milliseconds(sorted []float64, q float64) string {
	return fmt.Sprintf("%.1f ms", 1000*quantile(sorted, q))
}

func most(counts []int) int {
	highest := 0
	for _, n := range counts {
		highest = max(highest, n)
	}
	return highest
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}
