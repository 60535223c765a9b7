package chaostest

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

var (
	seed     = flag.Uint64("chaos-seed", 1, "of the faults, and of the load")
	duration = flag.Duration("chaos-for", time.Minute, "how long faults happen")
	other    = flag.String("chaos-other", "", "`program` of another release; empty: the tree's own")
)

const (
	mostFaults  = 3 // at the same time
	stormFaults = 8 // then all end, and the lull is judged
	lull        = 25 * time.Second
	perFault    = 12 * time.Second // that it takes at most, with its part of the lull
	shownEvents = 40
	shownFaults = 10
)

// TestChaos lets storms of faults happen with lulls in between, and judges every answer.
func TestChaos(t *testing.T) {
	program := *other
	if program == "" {
		program = programs.Pullpass(t)
	}
	w := startWorld(t, program)
	random := rand.New(rand.NewPCG(*seed, 1))
	l := &load{world: w, random: rand.New(rand.NewPCG(*seed, 2)), tokens: map[string]*token{}, before: map[string]*token{}, answers: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { l.run(ctx) })
	running.Go(func() { l.watchMachine(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	began := time.Now()
	for _, r := range w.replicas { // a process that starts has revocations to read from the first one on
		w.revoke(random, r).begin(t)
	}
	for time.Since(began) < *duration && !l.failed() {
		w.storm(t, random, func() bool { return l.failed() || time.Since(began) > *duration })
		w.note("a lull")
		before := l.granted()
		testenv.Poll(lull, l.failed)
		if !l.failed() && l.granted() == before {
			t.Error("after these faults, no pull was granted")
		}
	}
	took := time.Since(began)
	cancel()
	running.Wait()
	t.Logf("seed %d: %v, %d requests, the machine stalled %d times; faults %v; answers %v",
		*seed, took.Round(time.Second), l.requests, len(w.stalls), inOrder(w.counts), inOrder(l.answers))
	if len(l.findings) > 0 {
		t.Fatalf("seed %d: %d findings\n%s\nafter these events:\n%s", *seed, len(l.findings),
			strings.Join(l.findings[:min(len(l.findings), shownFaults)], "\n"), strings.Join(w.events[max(0, len(w.events)-shownEvents):], "\n"))
	}
	if never := w.neverHappened(); *duration >= time.Duration(len(kinds))*perFault && len(never) > 0 {
		t.Errorf("seed %d: these faults did not happen in %v: %q", *seed, took, never)
	}
}

// storm lets faults happen, and ends all of them.
func (w *world) storm(t *testing.T, random *rand.Rand, over func() bool) {
	t.Helper()
	var active []*fault
	for left := stormFaults; left > 0 && !over(); {
		if len(active) > 0 && random.IntN(mostFaults+1) < len(active) {
			w.endFault(t, active[0])
			active = active[1:]
		} else if f := w.next(random, active); f != nil {
			left--
			w.counts[f.kind]++
			w.note("%s begins", f)
			f.begin(t)
			if f.end == nil {
				w.note("%s is done", f)
			} else {
				active = append(active, f)
			}
		}
		w.rotateAudit(t, active)
		pause := time.Duration(300+random.IntN(1700)) * time.Millisecond
		if random.IntN(6) == 0 {
			pause += 8 * time.Second // some things go wrong after seconds
		}
		testenv.Poll(pause, over)
	}
	for _, f := range active {
		w.endFault(t, f)
	}
}

func (w *world) neverHappened() (names []string) {
	for _, k := range kinds {
		if w.counts[k.name] == 0 {
			names = append(names, k.name)
		}
	}
	return names
}

func (l *load) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.findings) > 0
}

func (l *load) granted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answers["pull granted"]
}

func inOrder(counts map[string]int) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s: %d", name, counts[name]))
	}
	return all
}
