package setup

import (
	"fmt"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Limits that the configuration allows take effect. An invalid limit would let no request pass.
func TestLimitsAtTheirBounds(t *testing.T) {
	t.Parallel()
	memory := testkit.Value(state.NewMemory(state.MemoryConfig{}))(t)
	for i, limit := range limitsAtTheirBounds {
		if wait := (limiter{memory, state.Limit(limit)}).Take(t.Context(), fmt.Sprint(i)); wait != 0 {
			t.Errorf("%+v: wait %s", limit, wait)
		}
	}
	if wait := (limiter{memory, state.Limit{}}).Take(t.Context(), "x"); wait <= 0 {
		t.Error("a limit that is none lets everything pass")
	}
}

// The notes of addresses that have spent their limit count for equal limiters.
func TestEqualLimitsAreEqual(t *testing.T) {
	t.Parallel()
	s := testkit.Value(OpenState(&config.Config{}, StateConfig{}))(t)
	limit := config.Limit{Rate: 1, Burst: 2}
	if s.Limiter(limit) != s.Limiter(limit) {
		t.Error("a limit differs from itself")
	}
	for _, other := range []config.Limit{{Rate: 2, Burst: 2}, {Rate: 1, Burst: 1}} {
		if s.Limiter(limit) == s.Limiter(other) {
			t.Errorf("%+v counts as %+v", other, limit)
		}
	}
}

// The configuration accepts these: config's tests say so.
var limitsAtTheirBounds = []config.Limit{{Rate: 1e6, Burst: 1}, {Rate: 1. / 86400, Burst: 1}, {Rate: 25000, Burst: 2147483647}}
