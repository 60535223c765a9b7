package simulation

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var (
	seed  = flag.Uint64("simulate-seed", 0, "the first seed of a run; 0: those that once found a fault, for an hour each")
	until = flag.Duration("simulate-for", time.Hour, "the virtual time of a run, a day for each seed")
)

// found are seeds that once found a fault, of the product or of the oracle, and how long they need.
var found = []struct {
	seed uint64
	long time.Duration
}{
	{1, 15 * time.Minute},
}

func TestMain(m *testing.M) {
	flag.Parse()
	// Package signal has one goroutine, which waits for the operating system: it must not begin in a bubble.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	// This one waits until a millisecond has passed since the last error: in virtual time, that is years ahead.
	utilruntime.ErrorHandlers = nil
	logrus.SetOutput(io.Discard) // of distribution
	debug.SetGCPercent(400)      // a quarter of the time otherwise, and measure collects before it looks
	os.Exit(m.Run())
}

// TestSimulation runs the seeds that once found something, or with -simulate-seed those from there on.
func TestSimulation(t *testing.T) {
	if *seed == 0 {
		for _, f := range found {
			simulate(t, f.seed, f.long)
		}
		return
	}
	for s := *seed; *until > 0 && !t.Failed(); s, *until = s+1, *until-24*time.Hour {
		simulate(t, s, min(*until, 24*time.Hour))
	}
}

// The same seed chooses the same: a failure can be repeated.
func TestSameSeedSameSteps(t *testing.T) {
	if a, b := simulate(t, 7, 6*time.Minute), simulate(t, 7, 6*time.Minute); a != b {
		t.Errorf("%s and %s", a, b)
	}
}

// simulate returns a hash of what the seed chose.
func simulate(t *testing.T, seed uint64, long time.Duration) (trace string) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		begun := time.Now()
		var w *world
		synctest.Test(t, func(t *testing.T) {
			w = newWorld(t, seed)
			defer w.close()
			for w.clock.Sub(w.began) < long && !t.Failed() {
				w.step()
			}
		})
		for _, name := range slices.Sorted(maps.Keys(w.counts)) {
			t.Logf("%6d %s", w.counts[name], name)
		}
		t.Logf("seed %d: %d steps, %s in %s, %d MiB, %d goroutines", seed, w.steps, long, time.Since(begun).Round(time.Millisecond), w.memory>>20, w.goroutines)
		if t.Failed() {
			t.Logf("to repeat it: go test ./internal/simulation -run TestSimulation -simulate-seed %d -simulate-for %s", seed, long)
		}
		trace = fmt.Sprintf("%x", w.trace.Sum(nil))
	})
	return trace
}
