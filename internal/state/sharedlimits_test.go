package state_test

import (
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func sharedLimits(t testing.TB, redis *state.Redis, now func() time.Time) *state.SharedLimits {
	t.Helper()
	local := testkit.Value(state.NewMemory(state.MemoryConfig{Now: now}))(t)
	return state.NewSharedLimits(state.SharedLimitsConfig{Shared: redis, Local: local, Now: now})
}

// large has room for advances, and fills too slowly for a test to notice.
var large = state.Limit{Rate: 0.01, Burst: 200}

// advanceRig also takes from a bucket directly, without advances.
type advanceRig struct {
	*testing.T
	redis  *state.Redis
	limits *state.SharedLimits
	now    time.Time
}

func newAdvanceRig(t *testing.T) *advanceRig {
	r := &advanceRig{T: t, now: time.Now(), redis: open(t, state.RedisConfig{Addresses: []string{statetest.Redis(t).Address()}, Timeout: patient})}
	r.limits = sharedLimits(t, r.redis, func() time.Time { return r.now })
	return r
}

func (r *advanceRig) take(limit state.Limit, cost int) {
	r.Helper()
	if ok, _, err := r.limits.Take(r.Context(), "key", limit, cost); !ok || err != nil {
		r.Fatal(ok, err)
	}
}

// left empties the bucket and asserts how many units it had.
func (r *advanceRig) left(want int) {
	r.Helper()
	if ok, _, err := r.redis.Take(r.Context(), "key", large, want); !ok || err != nil {
		r.Errorf("there were not %d: %v", want, err)
	}
	if ok, _, err := r.redis.Take(r.Context(), "key", large, 1); ok || err != nil {
		r.Errorf("there were more than %d: %v", want, err)
	}
}

func TestTakingInAdvance(t *testing.T) {
	t.Parallel()
	const first = 10 // one, and a twentieth of the 199 that are left
	for name, c := range map[string]struct {
		then func(r *advanceRig)
		left int
	}{
		"what was taken in advance is used": {func(r *advanceRig) {
			for range first - 1 {
				r.take(large, 1)
			}
		}, 200 - first},
		"more than was taken in advance": {func(r *advanceRig) {
			r.take(large, first) // leaves 180
		}, 200 - first - first - 180/20},
		"for a second": {func(r *advanceRig) {
			r.now = r.now.Add(time.Second)
			r.take(large, 1) // leaves 189
		}, 200 - first - 1 - 189/20},
		"not under another limit": {func(r *advanceRig) {
			r.take(state.Limit{Rate: large.Rate, Burst: 199}, 1) // of 199, 10 are gone, and so is one
		}, 200 - first - 1 - 188/20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newAdvanceRig(t)
			r.take(large, 1)
			c.then(r)
			r.left(c.left)
		})
	}
}

// TestAdvancesKeepTheLimit spends a bucket through two replicas: together they get exactly its
// units.
func TestAdvancesKeepTheLimit(t *testing.T) {
	t.Parallel()
	r := newAdvanceRig(t)
	both := []*state.SharedLimits{r.limits, sharedLimits(t, r.redis, func() time.Time { return r.now })}
	taken := 0
	for refused := 0; refused < 2 && taken <= large.Burst; {
		refused = 0
		for _, limits := range both {
			ok, wait, err := limits.Take(t.Context(), "key", large, 1)
			switch {
			case err != nil:
				t.Fatal(err)
			case ok:
				taken++
			case wait < time.Minute:
				t.Errorf("to wait for %s", wait)
			default:
				refused++
			}
		}
	}
	if taken != large.Burst {
		t.Errorf("taken: %d of %d", taken, large.Burst)
	}
}
