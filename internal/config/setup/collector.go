package setup

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usualPercent is Go's own default: as much garbage as live memory.
	usualPercent = 100
	// spareParts is the divisor of the process's memory: one of these parts may be garbage even if
	// little memory is live. More than mostSpare does not make anything faster.
	spareParts = 4
	mostSpare  = 64 << 20
	// lookAgain is the interval of the adjustments. In that time the percentage may be outdated,
	// and a busy processor allocates some 20 MiB.
	lookAgain = 100 * time.Millisecond
)

// CollectRarely delays the garbage collector. A collection begins when there is as much garbage as
// live memory, as by default, but not before garbage takes up a quarter of the memory limit. An
// exchange leaves almost no live memory, so by default the collector would begin after each 4 MiB.
// The spare amount is in bytes, not a multiple of live memory. So nothing changes abruptly when
// much memory is live: near the limit, the limit applies.
//
// goGC is the environment variable GOGC. Go itself has read it, and it has priority. The effect
// ends when the returned function is called.
func CollectRarely(goGC string) (stop func()) {
	if goGC != "" {
		return func() {}
	}
	c := &collector{spare: spareFor(debug.SetMemoryLimit(-1)), stopped: make(chan struct{})}
	c.adjust()
	ended := make(chan struct{})
	go func() { defer close(ended); c.follow() }()
	return func() { close(c.stopped); <-ended }
}

// spareFor returns how much garbage is always allowed, in bytes.
func spareFor(limit int64) uint64 {
	if limit == math.MaxInt64 { // no limit
		limit = goPart(usualContainer)
	}
	return uint64(min(limit/spareParts, mostSpare))
}

// collector adjusts the percentage, which is the only setting that Go has.
type collector struct {
	spare   uint64
	stopped chan struct{}
}

// follow measures the live memory at intervals. A cleanup (runtime.AddCleanup) would report the end
// of a collection, but whole seconds late on a busy processor. Until then, the outdated percentage
// would allow too much garbage: that filled a container.
func (c *collector) follow() {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.adjust()
		case <-c.stopped:
			return
		}
	}
}

func (c *collector) adjust() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}, {Name: "/gc/gogc:percent"}}
	metrics.Read(samples)
	live := samples[0].Value.Uint64() + samples[1].Value.Uint64() + samples[2].Value.Uint64()
	now := samples[3].Value.Uint64()
	// Setting it stops the world for a moment, so small differences are ignored.
	if next := percentFor(live, c.spare); next < now-now/8 || next > now+now/8 {
		debug.SetGCPercent(int(next))
	}
}

// percentFor returns the percentage that allows spare bytes of garbage.
func percentFor(live, spare uint64) uint64 {
	return max(usualPercent, spare*100/max(live, 1<<20))
}
