package simulation

import (
	"sync"
	"time"
)

const (
	// mostSkew is how far a clock may be from the time: half of the tolerances of the product.
	mostSkew = 20 * time.Second
	// mostDrift is how fast or slow a clock may be: ten times what machines show.
	mostDrift = 0.005
)

// clock is the clock of a host. It drifts within mostSkew, and jumps when its host corrects it. The zero
// clock is right.
type clock struct {
	mu   sync.Mutex
	from time.Time // since when it drifts
	skew time.Duration
	rate float64 // more than a right clock has
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return now.Add(c.at(now))
}

// at returns the skew at a time.
func (c *clock) at(now time.Time) time.Duration {
	drifted := c.skew
	if !c.from.IsZero() {
		drifted += time.Duration(c.rate * float64(now.Sub(c.from)))
	}
	return min(max(drifted, -mostSkew), mostSkew)
}

// drift lets it run slow or fast from now on.
func (c *clock) drift(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.skew, c.from, c.rate = c.at(now), now, rate
}

// jump sets it.
func (c *clock) jump(skew time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew, c.from = skew, time.Now()
}

func (w *world) rate() float64 { return (2*w.random.Float64() - 1) * mostDrift }

func (w *world) skew() time.Duration {
	return time.Duration(w.random.Int64N(int64(2*mostSkew))) - mostSkew
}

func (w *world) clockDrifts() {
	r, rate := pick(w, w.replicas), w.rate()
	r.clock.drift(rate)
	w.say("  %s %+.2f%%", r.host, 100*rate)
}

func (w *world) clockJumps() {
	r, skew := pick(w, w.replicas), w.skew()
	r.clock.jump(skew)
	w.say("  %s to %s", r.host, skew)
}
