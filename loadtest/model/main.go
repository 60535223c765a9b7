// Command model plays the storm of loadtest on paper, for clusters that no machine at hand can imitate: all nodes come back
// within a minute and pull all their images. It prints the tables of docs/reference/capacity.md.
//
// It is deterministic: the same flags give the same tables.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
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
	s := documented()
	flags := flag.NewFlagSet("model", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Float64Var(&s.First, "first", s.First, "CPU seconds of an exchange of a new token, with its TLS handshake: loadtest compare, tls first")
	flags.Float64Var(&s.Repeated, "repeated", s.Repeated, "of one that follows: tls repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	replicas(stdout, s, sizes)
	limits(stdout, s, 1500, 2500, fleet.Nodes)
	return nil
}

// documented is the storm of docs/reference/capacity.md, but for its size and the replicas that answer it.
func documented() storm {
	return storm{Window: 60, Cores: 2, First: 0.0008, Repeated: 0.0006, Requests: 2, Between: 0.02, Seed: 1}
}

// size is that of a cluster, or of several that share a Pullpass, and of the Pullpass.
type size struct {
	nodes, replicas int
	affinity        bool
}

var sizes = []size{
	{fleet.Nodes, 1, false}, {fleet.Nodes, 2, false}, {fleet.Nodes, 3, false},
	{4 * fleet.Nodes, 6, false}, {4 * fleet.Nodes, 8, false}, {4 * fleet.Nodes, 10, false},
	{20 * fleet.Nodes, 16, false}, {20 * fleet.Nodes, 24, false}, {20 * fleet.Nodes, 32, false}, {20 * fleet.Nodes, 40, false},
	{20 * fleet.Nodes, 48, false}, {20 * fleet.Nodes, 36, true},
}

// replicas prints what storms do to some replicas.
func replicas(w io.Writer, s storm, sizes []size) {
	fmt.Fprintln(w, "| nodes | replicas | requests in the busiest second | CPU asked for then | p50 | p99 | answered 503 | last pod pulled after |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, size := range sizes {
		s.Nodes, s.Replicas, s.Affinity = size.nodes, size.replicas, size.affinity
		o := s.run()
		replicas := fmt.Sprint(size.replicas)
		if size.affinity {
			replicas += ", sticky"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %.0f %% | %s | %s | %s | %.0f s |\n", thousands(s.Nodes), replicas, thousands(slices.Max(o.Arrivals)),
			o.Utilization*100, milliseconds(o.Times, 0.5), milliseconds(o.Times, 0.99), thousands(o.Overloaded), o.Pulled[len(o.Pulled)-1])
	}
}

// perServiceAccount are variants of the limit for a cluster of some nodes.
func perServiceAccount(nodes int) []namedLimit {
	unknown := math.Max(50, 2*float64(nodes)/60)
	return []namedLimit{
		{"50 a second, burst 200 (the default), in Redis", limit{Rate: 50, Burst: 200, Shared: true, PerNode: true}},
		{"10 a second, burst 20: the requests of one kubelet", limit{Rate: 10, Burst: 20, Shared: true, PerNode: true}},
		{"the default, where tokens name no node", limit{Rate: 50, Burst: 200, Shared: true}},
		{"as advised below, where tokens name no node", limit{Rate: unknown, Burst: 4 * unknown, Shared: true}},
	}
}

type namedLimit struct {
	name string
	limit
}

// limits prints what limits.perServiceAccount does to a storm, for clusters of some nodes.
func limits(w io.Writer, s storm, clusters ...int) {
	fmt.Fprintln(w, "\n| nodes of a cluster | limits.perServiceAccount | answered 429 | half of the pods pulled after | 99 % | all |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- |")
	s.Replicas = 3
	for _, nodes := range clusters {
		for _, l := range perServiceAccount(nodes) {
			s.Nodes, s.Limit = nodes, l.limit
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
