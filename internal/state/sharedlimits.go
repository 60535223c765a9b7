package state

import (
	"context"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/lru"
)

const (
	// Of the units that are left in a bucket, one in so many is taken in advance.
	// A bucket that holds fewer is counted one by one: near its end, a limit is exact.
	advanceOneIn = 20
	// A pull asks for its token twice within this time, and a node that starts
	// pulls for many pods within it. What is not used until then is lost.
	advanceTime = time.Second
	// advanceBytes is for 15,000 buckets.
	advanceBytes = 4 << 20
)

// SharedLimitsConfig configures SharedLimits.
type SharedLimitsConfig struct {
	Shared *Redis           // required
	Local  *Memory          // counts while Redis does not answer; required
	Now    func() time.Time // nil means time.Now
}

// SharedLimits takes from the limits that all replicas share, and from local
// ones while Redis does not answer: a limit is then that of each replica. It is
// safe for concurrent use.
//
// The way to Redis costs as much as the rest of a repeated exchange. So a
// replica takes some units in advance while there are plenty, and spends them
// for a second: the limit is never exceeded for it, since they are gone from the
// bucket of all.
type SharedLimits struct {
	shared *Redis
	local  *Memory
	now    func() time.Time

	mu       sync.Mutex
	advances *lru.Cache[hashedKey, advance]
}

// advance is what was taken of a bucket and not used yet.
type advance struct {
	limit Limit
	units int
	until time.Time
}

// NewSharedLimits returns limits of which nothing is known yet.
func NewSharedLimits(c SharedLimitsConfig) *SharedLimits {
	l := &SharedLimits{shared: c.Shared, local: c.Local, now: c.Now, advances: lru.New[hashedKey, advance](advanceBytes, nil)}
	if l.now == nil {
		l.now = time.Now
	}
	return l
}

// Take takes cost units from the bucket of key, if they are there; if not, it
// takes none and says when they will be. The error is ErrLimit, or that of the
// context.
func (l *SharedLimits) Take(ctx context.Context, key string, limit Limit, cost int) (bool, time.Duration, error) {
	if err := limit.check(cost); err != nil {
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

// holds reports whether so many units may be spent. Under a limit that was changed
// since, none may.
func (a advance) holds(limit Limit, cost int, now time.Time) bool {
	return a.limit == limit && a.units >= cost && now.Before(a.until)
}

// spend takes from what was taken in advance.
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

// keep replaces what is left of an earlier advance: it would be old.
func (l *SharedLimits) keep(key hashedKey, limit Limit, units int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advances.Add(key, advance{limit, units, l.now().Add(advanceTime)})
}
