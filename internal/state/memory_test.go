package state_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func newClock() *testkit.Clock { return testkit.NewClock(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)) }

func TestMemoryForgetsOwnersWhenTheirTokensEnd(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := newMemory(t, state.MemoryConfig{OwnerBytes: 3 * state.OwnerCost, Now: c.Now})
	own := func(key, owner string, lives time.Duration) (string, error) {
		return m.Own(t.Context(), key, owner, c.Now().Add(lives))
	}
	for key, lives := range map[string]time.Duration{"b": 2 * time.Minute, "a": time.Minute, "c": 3 * time.Minute} {
		if got, err := own(key, "first", lives); got != "first" || err != nil {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	c.Advance(time.Minute - 1)
	// No owner is evicted for a new one.
	if got, err := own("d", "first", time.Hour); got != "" || !errors.Is(err, state.ErrFull) {
		t.Errorf("a fourth of three: %q, %v", got, err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if got, err := own(key, "second", time.Hour); got != "first" || err != nil {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	c.Advance(1)
	for _, want := range []struct{ key, owner string }{{"a", "second"}, {"b", "first"}, {"c", "first"}} {
		if got, err := own(want.key, "second", time.Hour); got != want.owner || err != nil {
			t.Errorf("%s: %q, %v; want %q", want.key, got, err, want.owner)
		}
	}
	if _, err := own("d", "first", time.Hour); !errors.Is(err, state.ErrFull) {
		t.Errorf("full again: %v", err)
	}
	c.Advance(time.Hour)
	for i := range 3 {
		if _, err := own(fmt.Sprint("new ", i), "first", time.Hour); err != nil {
			t.Errorf("after all have ended: %v", err)
		}
	}
}

func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := newMemory(t, state.MemoryConfig{Now: c.Now})
	limit := state.Limit{Rate: 10, Burst: 3}
	for i, step := range []struct {
		move time.Duration
		cost int
		wait time.Duration // 0: taken
	}{
		{0, 1, 0}, {0, 2, 0}, {0, 1, 100 * time.Millisecond}, {0, 3, 300 * time.Millisecond},
		{99 * time.Millisecond, 1, time.Millisecond}, {time.Millisecond, 1, 0}, {0, 1, 100 * time.Millisecond},
		{150 * time.Millisecond, 1, 0}, {0, 1, 50 * time.Millisecond}, {50 * time.Millisecond, 1, 0},
		{time.Hour, 3, 0}, {0, 1, 100 * time.Millisecond}, // no more than the burst is saved
		{-time.Hour, 1, 100 * time.Millisecond}, // a clock that goes back costs no more than a burst
	} {
		c.Advance(step.move)
		ok, wait, err := m.Take(t.Context(), "key", limit, step.cost)
		if ok != (step.wait == 0) || wait != step.wait || err != nil {
			t.Errorf("step %d: %t, %s, %v; want to wait %s", i, ok, wait, err, step.wait)
		}
	}
}

// IPv6 addresses are free for an attacker. With any number of them, memory stays bounded, and the
// least recently used key is evicted.
func TestMemoryForgetsTheOldestLimit(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := newMemory(t, state.MemoryConfig{LimitBytes: 3 * state.LimitCost, Now: c.Now})
	take := func(key string) bool {
		ok, _, err := m.Take(t.Context(), key, state.Limit{Rate: 0.001, Burst: 1}, 1)
		testkit.Must(t, err)
		return ok
	}
	for _, want := range []struct {
		key string
		ok  bool
	}{
		{"a", true}, {"b", true}, {"c", true}, {"a", false}, // a is refused, which still counts as a use
		{"d", true}, {"a", false}, {"c", false}, {"d", false}, {"b", true},
	} {
		if got := take(want.key); got != want.ok {
			t.Errorf("%s: %t, want %t", want.key, got, want.ok)
		}
	}
}

func TestMemoryRefusesNegativeSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []state.MemoryConfig{{LimitBytes: -1}, {OwnerBytes: -1}} {
		if _, err := state.NewMemory(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// Mistake: a bound on the number of owners, although their names have any length. The counted size
// is the size on the heap. Not parallel: the test measures the whole process.
func TestMemoryOfOwnersIsBoundedInBytes(t *testing.T) {
	const most = 8 << 20
	c := newClock()
	heap := func() int {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	for _, length := range []int{10, 100, 400, 1024} {
		before := heap()
		m := newMemory(t, state.MemoryConfig{OwnerBytes: most, Now: c.Now})
		full, kept := 0, 0
		for i := range 100_000 {
			// Most end at the same time, so that others can replace them.
			_, err := m.Own(t.Context(), fmt.Sprint(i), strings.Repeat("o", length), c.Now().Add(time.Duration(1+i%3)*time.Second))
			switch {
			case err == nil:
				kept++
			case errors.Is(err, state.ErrFull):
				full++
			default:
				t.Fatal(err)
			}
			if i%30_000 == 0 {
				c.Advance(time.Second)
			}
		}
		used := heap() - before
		runtime.KeepAlive(m)
		if full == 0 || kept < most/(length+600) || used > most {
			t.Errorf("owners of %d bytes: %d kept, %d refused, %d bytes of %d", length, kept, full, used, most)
		}
	}
}

func TestMemoryRevocationsAreBounded(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := state.NewMemoryRevocations(c.Now)
	add := func(i int, lives time.Duration) error {
		r := anyRevocation("a reason")
		r.Target.Name, r.Until = fmt.Sprint("pod ", i), c.Now().Add(lives)
		return m.Add(t.Context(), r)
	}
	for i := range 5 {
		testkit.Must(t, add(i, time.Minute))
	}
	m.SetMax(5)
	if err := add(5, time.Hour); !errors.Is(err, state.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := add(4, time.Hour); err != nil {
		t.Errorf("replaced: %v", err)
	}
	c.Advance(time.Minute)
	for i := range 4 {
		if err := add(10+i, time.Hour); err != nil {
			t.Errorf("after four have ended: %v", err)
		}
	}
	if err := add(20, time.Hour); !errors.Is(err, state.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
}
