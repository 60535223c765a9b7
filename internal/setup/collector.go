package setup

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usualPercent is Go's own default: as much garbage as there is that lives.
	usualPercent = 100
	// spareParts is how many parts of its memory the process has, of which one may be
	// garbage however little lives. More than mostSpare makes nothing faster.
	spareParts = 4
	mostSpare  = 64 << 20
	// lookAgain is how long the percentage may be that for what lived before. In the
	// meantime a busy processor allocates some 20 MiB.
	lookAgain = 100 * time.Millisecond
)

// CollectRarely has the garbage collector begin when there is as much garbage as
// lives, as by itself, but not before there is a quarter of what the process may
// use. What lives of an exchange is next to nothing, and by itself the collector would begin
// after each 4 MiB. As it is bytes that are spared and no multiple, nothing happens at
// once when much lives: near the limit, the limit counts.
//
// goGC is that variable of the environment, which Go itself has read and which
// counts. It lasts until the returned function is called.
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

// spareFor returns how much garbage may always lie, in bytes.
func spareFor(limit int64) uint64 {
	if limit == math.MaxInt64 { // none
		limit = goPart(usualContainer)
	}
	return uint64(min(limit/spareParts, mostSpare))
}

// collector adjusts the percentage, for which alone Go has a setting.
type collector struct {
	spare   uint64
	stopped chan struct{}
}

// follow looks how much lives. A cleanup (runtime.AddCleanup) would tell when a
// collection has ended, but on a busy processor whole seconds late, and until then as
// much garbage may lie as with the percentage for what lived before: it filled a container.
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
	// Setting it stops the world for a moment, which a small difference is not worth.
	if next := percentFor(live, c.spare); next < now-now/8 || next > now+now/8 {
		debug.SetGCPercent(int(next))
	}
}

// percentFor returns the percentage with which so much garbage may lie.
func percentFor(live, spare uint64) uint64 {
	return max(usualPercent, spare*100/max(live, 1<<20))
}
