package setup

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestSpareFollowsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit int64
		want  uint64
	}{
		{goPart(64 << 20), 15099494}, {goPart(256 << 20), 60397977}, {math.MaxInt64, 60397977}, {4 << 30, 64 << 20},
	} {
		if got := spareFor(test.limit); got != test.want {
			t.Errorf("%d: %d, want %d", test.limit, got, test.want)
		}
	}
}

func TestPercentFor(t *testing.T) {
	t.Parallel()
	const spare = 64 << 20
	for _, test := range []struct{ live, want uint64 }{
		{0, 6400}, {8 << 20, 800}, {32 << 20, 200}, {64 << 20, 100}, {100 << 20, 100},
	} {
		if got := percentFor(test.live, spare); got != test.want {
			t.Errorf("%d bytes live: %d, want %d", test.live, got, test.want)
		}
	}
}

func percentNow() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Not parallel: the percentage is that of the process.
func TestCollectRarely(t *testing.T) {
	before := debug.SetGCPercent(usualPercent)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	CollectRarely("100")()
	if now := percentNow(); now != usualPercent {
		t.Errorf("the environment's GOGC does not count: %d", now)
	}

	stop := CollectRarely("")
	small := percentNow()
	if small <= usualPercent {
		t.Fatalf("%d percent while nothing lives", small)
	}
	lives := make([]byte, 2*mostSpare)
	testkit.Eventually(t, "much lives", func() bool { runtime.GC(); return percentNow() == usualPercent })
	runtime.KeepAlive(lives)
	testkit.Eventually(t, "little lives", func() bool { runtime.GC(); return percentNow() > usualPercent })
	stop() // waits until follow has ended
}
