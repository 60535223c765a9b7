package chaostest

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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
	calm        = 35 * time.Second
	shownEvents = 40
	shownFaults = 10
)

// TestChaos lets faults happen, then none, and judges every answer.
func TestChaos(t *testing.T) {
	program := *other
	if program == "" {
		program = programs.Pullpass(t)
	}
	w := startWorld(t, program)
	random := rand.New(rand.NewPCG(*seed, 1))
	l := &load{world: w, random: rand.New(rand.NewPCG(*seed, 2)), tokens: map[string]*token{}, answers: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan struct{})
	go func() { l.run(ctx); close(finished) }()
	t.Cleanup(func() { cancel(); <-finished })

	steps := 0
	var active []*fault
	for end := time.Now().Add(*duration); time.Now().Before(end) && !l.failed(); steps++ {
		if len(active) > 0 && random.IntN(mostFaults+1) < len(active) {
			w.endFault(t, active[0])
			active = active[1:]
		} else if f := w.choose(random, active); f != nil {
			w.mu.Lock()
			w.counts[f.kind]++
			w.event("%s begins", f)
			w.mu.Unlock()
			f.begin(t)
			if f.end == nil {
				w.note("%s is done", f)
			} else {
				active = append(active, f)
			}
		}
		w.rotateAudit(t, active)
		pause := time.Duration(500+random.IntN(3500)) * time.Millisecond
		testenv.Poll(pause, l.failed)
	}
	for _, f := range active {
		w.endFault(t, f)
	}
	if !l.failed() {
		w.note("calm")
		before := l.granted()
		testenv.Poll(calm, l.failed)
		if !l.failed() && l.granted() == before {
			t.Error("after all faults, no pull was granted")
		}
	}
	cancel()
	<-finished
	t.Logf("seed %d: %d steps, %d requests; faults %v; answers %v", *seed, steps, l.requests, inOrder(w.counts), inOrder(l.answers))
	if len(l.findings) > 0 {
		t.Errorf("seed %d: %d findings\n%s\nafter these events:\n%s", *seed, len(l.findings),
			strings.Join(l.findings[:min(len(l.findings), shownFaults)], "\n"), strings.Join(w.events[max(0, len(w.events)-shownEvents):], "\n"))
	}
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
