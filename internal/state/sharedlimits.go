package state

import (
	"context"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
)

const (
	// advanceOneIn is the part of a bucket's remaining units that is taken in advance: one in
	// advanceOneIn. A bucket with fewer units is counted one by one, so a limit is exact near its
	// end.
	advanceOneIn = 20
	// Within advanceTime, a pull requests its token twice, and a node that starts pulls for many
	// pods. Units that are not used within it are lost.
	advanceTime = time.Second
	// advanceBytes has room for 15,000 buckets.
	advanceBytes = 4 << 20
)

// SharedLimitsConfig configures SharedLimits.
type SharedLimitsConfig struct {
	Shared *Redis           // required
	Local  *Memory          // counts while Redis does not answer; required
	Now    func() time.Time // nil means time.Now
}

// SharedLimits takes from the limits that all replicas share. While Redis does not answer, it takes
// from local ones: a limit then applies to each replica. It is safe for concurrent use.
//
// A call to Redis costs as much as the rest of a repeated exchange. So a replica takes some units
// in advance while there are plenty, and spends them within a second. The limit is never exceeded,
// because those units are already taken from the shared bucket.
type SharedLimits struct {
	shared *Redis
	local  *Memory
	now    func() time.Time

	mu       sync.Mutex
	advances *lru.Cache[hashedKey, advance]
}

// advance is the unused units that were taken from a bucket in advance.
type advance struct {
	limit Limit
	units int
	until time.Time
}

// NewSharedLimits returns limits without any known state.
func NewSharedLimits(c SharedLimitsConfig) *SharedLimits {
	l := &SharedLimits{shared: c.Shared, local: c.Local, now: c.Now, advances: lru.New[hashedKey, advance](advanceBytes, nil)}
	if l.now == nil {
		l.now = time.Now
	}
	return l
}

// Take takes cost units from the bucket of key, if they are available. If not, it takes none and
// returns the time until they are. The error is ErrLimit, or that of the context.
func (l *SharedLimits) Take(ctx context.Context, key string, limit Limit, cost int) (bool, time.Duration, error) {
	if err := limit.validate(cost); err != nil {
		return false, 0, err
	}
	if err := ctx.Err(); err != nil {
		return false, 0, err
	}
	hashed := hashKey(key)
	if l.spend(hashed, limit, cost) {
		return true, 0, nil
	}
	wait, units, err := l.shared.take(ctx, hashed, limit, cost, advanceOneIn)
	if err != nil {
		return l.local.Take(ctx, key, limit, cost)
	}
	if units > 0 {
		l.keep(hashed, limit, units)
	}
	return wait == 0, wait, nil
}

// holds reports whether cost units may be spent. None may be spent if the limit has changed since.
func (a advance) holds(limit Limit, cost int, now time.Time) bool {
	return a.limit == limit && a.units >= cost && now.Before(a.until)
}

// spend takes from the units taken in advance.
func (l *SharedLimits) spend(key hashedKey, limit Limit, cost int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.advances.Get(key)
	if !ok || !a.holds(limit, cost, l.now()) {
		return false
	}
	a.units -= cost
	l.advances.Add(key, a)
	return true
}

// keep replaces the rest of an earlier advance, which would be out of date.
func (l *SharedLimits) keep(key hashedKey, limit Limit, units int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advances.Add(key, advance{limit, units, l.now().Add(advanceTime)})
}
