package main

import (
	"fmt"
	"math"
	"time"
)

// The growth of memory that is allowed after the first third of a soak, in which everything is seen once.
const (
	heapSlack      = 4 << 20          // bytes, beside 10 %: pools, and what the collector has not come to yet
	residentSlack  = 16 << 20         // the same, and pages that go back to the system late
	goroutineSlack = 50               // connections that are just open
	perIdentity    = 2 << 10          // 100,000 live identities in less than 200 MiB
	tokenRenewal   = 48 * time.Minute // a kubelet renews a token of an hour after 80 % of its life
)

// growth compares the last third of a soak with the middle one, and returns what grew.
//
// The heap goes up and down with the garbage in it: its lowest point is what is in use. The tokens of the pods are renewed,
// and a token that is no longer sent is forgotten only when there is no room for a new one.
func growth(o options, samples []sample) (faults []string) {
	third := len(samples) / 3
	if third < 3 {
		return []string{"the soak was too short to judge memory"}
	}
	renewed := soakPods * perIdentity * math.Ceil(float64(o.duration)/float64(tokenRenewal))
	middle, last := samples[third:2*third], samples[2*third:]
	for _, m := range []struct {
		name        string
		of          func(sample) float64
		slack, unit float64
	}{
		{"live heap (MiB)", func(s sample) float64 { return s.heap }, heapSlack + renewed, 1 << 20},
		{"resident memory (MiB)", func(s sample) float64 { return s.resident }, residentSlack + renewed, 1 << 20},
		{"goroutines", func(s sample) float64 { return s.goroutines }, goroutineSlack, 1},
	} {
		before, after := lowest(middle, m.of), lowest(last, m.of)
		if after > before*1.1+m.slack {
			faults = append(faults, fmt.Sprintf("%s grew from %.1f to %.1f", m.name, before/m.unit, after/m.unit))
		}
	}
	return faults
}

func lowest(samples []sample, of func(sample) float64) float64 {
	least := math.Inf(1)
	for _, s := range samples {
		least = math.Min(least, of(s))
	}
	return least
}
