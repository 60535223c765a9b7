// Command loadtest puts load on a real pullpass serve and judges it by our service objectives, which are the thresholds of
// the k6 scripts in k6/. It starts everything itself, prints a table, and leaves a report with plots beside itself.
//
//	loadtest                            every scenario, a few minutes
//	loadtest -scale 1 storm             one scenario: a cluster of 5,000 nodes restarts; needs more than two cores
//	loadtest -duration 12h soak         half a day
//
// It finds k6, pullpass, issuer and floor where it is itself: "make loadtest" builds them there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	programs string // directory of k6, pullpass, issuer and floor
	out      string // directory of the report

	duration   time.Duration // of each scenario but the storm
	rate       int           // pulls a second
	scale      float64       // of the storm: 1 is 5,000 nodes
	window     time.Duration // of the storm: a minute, or less to have it harder
	redis      bool
	errorsOnly bool // judge answers, not times

	peer, peerPath string // program to compare with, and its token endpoint; empty: none
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var o options
	flags := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: loadtest [flags] [scenario ...]")
		for _, s := range scenarios {
			fmt.Fprintf(stderr, "  %-10s %s\n", s.name, s.about)
		}
		flags.PrintDefaults()
	}
	flags.DurationVar(&o.duration, "duration", 30*time.Second, "of each scenario; the storm has its window")
	flags.IntVar(&o.rate, "rate", 50, "pulls a second; each makes two token requests")
	flags.Float64Var(&o.scale, "scale", 0.05, "of the storm: 1 is a cluster of 5,000 nodes")
	flags.DurationVar(&o.window, "window", time.Minute, "time in which the storm's nodes restart")
	flags.BoolVar(&o.redis, "redis", false, "state in Redis, as several replicas have it (Debian package redis-server)")
	flags.BoolVar(&o.errorsOnly, "errors-only", false, "judge whether answers are right, not how long they take: for a machine that is busy with other things")
	flags.StringVar(&o.peer, "peer", "", "compare: a program that takes the flags of loadtest/floor and serves another token endpoint (example: loadtest/zot.sh)")
	flags.StringVar(&o.peerPath, "peer-path", "/token", "compare: the path of that endpoint")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.programs = filepath.Dir(self)
	o.out = filepath.Join(o.programs, "report")
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}

	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	report := &report{}
	for _, s := range chosen {
		fmt.Fprintf(stderr, "%s: %s\n", s.name, s.about)
		results, err := play(ctx, o, s, stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		report.results = append(report.results, results...)
	}
	report.print(stdout)
	file, err := report.write(o.out)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "report:", file)
	if faults := report.faults(); len(faults) > 0 {
		return errors.New("objectives missed:\n  " + strings.Join(faults, "\n  "))
	}
	return nil
}

// choose returns the named scenarios, or all.
func choose(names []string) ([]scenario, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool { return s.named }), nil
	}
	var chosen []scenario
	for _, name := range names {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q; loadtest -h lists them", name)
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}
