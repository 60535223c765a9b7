package main

import (
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// small is a storm that is over in milliseconds.
func small() storm {
	return storm{
		Nodes: 200, Window: 60, Replicas: 2, Cores: 2, First: 0.001, Repeated: 0.0005, Requests: 2, Between: 0.02, Seed: 1,
	}
}

func TestEveryPodIsPulled(t *testing.T) {
	t.Parallel()
	s := small()
	o := s.run()
	pods := s.Nodes * fleet.PodsPerNode
	if len(o.Pulled) != pods || !slices.IsSorted(o.Pulled) {
		t.Errorf("%d pods pulled, want %d in order", len(o.Pulled), pods)
	}
	if o.Requests != 2*pods || len(o.Times) != o.Requests || o.Limited+o.Overloaded != 0 {
		t.Errorf("%d requests, %d answered, %d limited, %d overloaded; want %d, all answered", o.Requests, len(o.Times), o.Limited, o.Overloaded, 2*pods)
	}
	total := 0
	for _, n := range o.Arrivals {
		total += n
	}
	if total != o.Requests {
		t.Errorf("%d arrivals of %d requests", total, o.Requests)
	}
	// The last node comes within a minute, and the pulls above its burst wait for a back-off of 10 to 15 seconds.
	if last := o.Pulled[pods-1]; last < 65 || last > 80 {
		t.Errorf("the last pod is pulled after %.1f s", last)
	}
}

func TestSameSeedSameStorm(t *testing.T) {
	t.Parallel()
	s := small()
	s.Limit = limit{Rate: 2, Burst: 4}
	first, second := s.run(), s.run()
	if !reflect.DeepEqual(first, second) {
		t.Error("two runs with one seed differ")
	}
	s.Seed = 2
	if reflect.DeepEqual(first, s.run()) {
		t.Error("the seed changes nothing")
	}
}

// A kubelet pulls one image after the other, and fails those above its burst.
func TestKubelet(t *testing.T) {
	t.Parallel()
	s := small()
	s.Nodes, s.Window, s.Replicas = 1, 0, 1
	o := s.run()
	// Ten pulls of 20 ms and the times of their requests, one after the other; both cores are idle.
	pull := s.First + s.Repeated + 2*s.Between
	if tenth := o.Pulled[9]; math.Abs(tenth-10*pull) > 1e-9 {
		t.Errorf("the tenth pull ends after %.4f s, want %.4f", tenth, 10*pull)
	}
	// While they run, the bucket of the kubelet gets two more, and part of a third.
	early, _ := slices.BinarySearch(o.Pulled, firstBackOff)
	if early != 12 {
		t.Errorf("%d pulls before the first back-off is over, want 12", early)
	}
	if last := o.Pulled[len(o.Pulled)-1]; last > firstBackOff*(1+backOffJitter)+1 {
		t.Errorf("the last pull ends after %.2f s", last)
	}
}

// The time that clients see includes the wait for a core. Requests beyond the limit are refused and come back.
func TestOverload(t *testing.T) {
	t.Parallel()
	s := small()
	s.Replicas, s.Cores, s.First, s.Repeated = 1, 1, 0.02, 0.02
	o := s.run()
	if p99 := quantile(o.Times, 0.99); p99 < 1 {
		t.Errorf("p99 is %.3f s, and there is twice as much to do as one core can", p99)
	}
	s.First, s.Repeated = 0.2, 0.2
	s.Nodes = 100
	o = s.run()
	if o.Overloaded == 0 || len(o.Pulled) != s.Nodes*fleet.PodsPerNode {
		t.Errorf("%d refused, %d pulled", o.Overloaded, len(o.Pulled))
	}
	if slowest := o.Times[len(o.Times)-1]; slowest > maxQueueTime+s.First {
		t.Errorf("an answer took %.1f s, which is longer than the queue keeps a request", slowest)
	}
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	s := small()
	s.Replicas = 4
	cpu := func(s storm) (sum float64) {
		o := s.run()
		for _, seconds := range o.Times {
			sum += seconds
		}
		return sum / float64(len(o.Times))
	}
	spread := cpu(s)
	s.Affinity = true
	// With affinity each second request finds the first one's answer; else one in four.
	if together := cpu(s); math.Abs(together-(s.First+s.Repeated)/2) > 1e-5 || math.Abs(spread-(s.First*7+s.Repeated)/8) > 1e-5 {
		t.Errorf("%.6f s with affinity, %.6f s without", together, spread)
	}
}

// A DaemonSet asks from all nodes with one ServiceAccount.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := small()
	s.Window = 1 // 200 nodes, 5 DaemonSets: 400 requests a second of each
	limited := func(l limit) int { s.Limit = l; return s.run().Limited }
	shared := limited(limit{Rate: 50, Burst: 200, Shared: true})
	own := limited(limit{Rate: 50, Burst: 200})
	perNode := limited(limit{Rate: 50, Burst: 200, Shared: true, PerNode: true})
	if shared == 0 || own >= shared || perNode != 0 || limited(limit{}) != 0 {
		t.Errorf("429: %d with a shared limit, %d when each replica counts alone, %d for each node", shared, own, perNode)
	}

	// GCRA: a burst, then one whenever the rate gives one.
	r := &sim{storm: storm{Limit: limit{Rate: 2, Burst: 3}}, buckets: map[bucket]float64{}}
	var passed []float64
	for step := range 20 {
		r.now = float64(step) / 10
		if r.take(0, 0) {
			passed = append(passed, r.now)
		}
	}
	if want := []float64{0, 0.1, 0.2, 0.5, 1, 1.5}; !reflect.DeepEqual(passed, want) {
		t.Errorf("passed at %v, want %v", passed, want)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s, want %s", n, got, want)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run([]string{"-first", "fast"}, &out, &out); err == nil || !strings.Contains(err.Error(), "fast") {
		t.Errorf("got %v", err)
	}
}

// docs/reference/capacity.md has results of this model. This checks only the smallest of its storms, because all take a minute.
func TestDocument(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/reference/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	replicas(&out, documented(), sizes[:1])
	limits(&out, documented(), 1500)
	checked := 0
	for line := range strings.Lines(string(document)) {
		if strings.HasPrefix(line, "| 1,500 |") || strings.HasPrefix(line, "| 5,000 | 1 |") || strings.HasPrefix(line, "| nodes") && strings.Contains(line, "answered") {
			checked++
			if !strings.Contains(out.String(), line) {
				t.Errorf("docs/reference/capacity.md has this line, which the model does not print; run it as it says: %s", line)
			}
		}
	}
	if checked != 4 {
		t.Errorf("docs/reference/capacity.md has %d lines of the model, want 4", checked)
	}
}
