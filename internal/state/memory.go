package state

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// MemoryConfig configures a Memory.
type MemoryConfig struct {
	Owners int              // token ids to remember; 0 means 250,000, about 50 MB
	Limits int              // keys of limits to remember; 0 means 100,000, about 15 MB
	Now    func() time.Time // nil means time.Now
}

// ErrFull says that there is no room for another token id or revocation. What
// is there is not forgotten for what is new: whoever can have many tokens made
// could otherwise wash an owner out.
var ErrFull = errors.New("full")

// maxOwnerBytes bounds an owner. The longest name of a node has 253.
const maxOwnerBytes = 1024

// Memory keeps owners and limits of one replica. It is safe for concurrent use.
type Memory struct {
	now func() time.Time

	ownersMu  sync.Mutex
	owners    map[hashedKey]string
	ends      ownerEnds
	maxOwners int

	limitsMu sync.Mutex
	// limits holds for each key when its bucket will be full again (GCRA's
	// theoretical arrival time).
	limits *simplelru.LRU[hashedKey, time.Time]
}

// hashedKey is a caller's key in the one size that all keys have. Keys of
// unequal content stay unequal.
type hashedKey [sha256.Size]byte

func hashKey(key string) hashedKey { return sha256.Sum256([]byte(key)) }

// NewMemory returns an empty Memory.
func NewMemory(c MemoryConfig) (*Memory, error) {
	m := &Memory{now: c.Now, owners: map[hashedKey]string{}, maxOwners: c.Owners}
	if m.now == nil {
		m.now = time.Now
	}
	if m.maxOwners == 0 {
		m.maxOwners = 250_000
	}
	size := c.Limits
	if size == 0 {
		size = 100_000
	}
	var err error
	if m.limits, err = simplelru.NewLRU[hashedKey, time.Time](size, nil); err != nil {
		return nil, fmt.Errorf("limits in memory: %w", err)
	}
	return m, nil
}

// Own makes owner the owner of key until the given time, unless it has one, and
// returns whose it is. The error is ErrFull, or about the owner itself.
func (m *Memory) Own(ctx context.Context, key, owner string, until time.Time) (string, error) {
	if err := checkOwner(owner); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hashed := hashKey(key)
	m.ownersMu.Lock()
	defer m.ownersMu.Unlock()
	now := m.now()
	for len(m.ends) > 0 && !now.Before(m.ends[0].at) {
		delete(m.owners, heap.Pop(&m.ends).(ownerEnd).key)
	}
	if current, ok := m.owners[hashed]; ok {
		return current, nil
	}
	if len(m.owners) >= m.maxOwners {
		return "", fmt.Errorf("%w: %d token ids have owners", ErrFull, len(m.owners))
	}
	m.owners[hashed] = owner
	heap.Push(&m.ends, ownerEnd{until, hashed})
	return owner, nil
}

func checkOwner(owner string) error {
	if owner == "" || len(owner) > maxOwnerBytes {
		return fmt.Errorf("an owner has 1 to %d bytes, not %d", maxOwnerBytes, len(owner))
	}
	return nil
}

// Take takes cost units from the bucket of key, if they are there; if not, it
// takes none and says when they will be. The error is ErrLimit.
//
// When there are more keys than fit, the one that was not used for longest has
// a full bucket again. To gain that, a caller needs as many requests under other
// keys as there is room for: far more than a burst.
func (m *Memory) Take(ctx context.Context, key string, limit Limit, cost int) (bool, time.Duration, error) {
	if err := limit.check(cost); err != nil {
		return false, 0, err
	}
	if err := ctx.Err(); err != nil {
		return false, 0, err
	}
	hashed := hashKey(key)
	m.limitsMu.Lock()
	defer m.limitsMu.Unlock()
	now := m.now()
	full := now
	if at, ok := m.limits.Get(hashed); ok && at.After(now) {
		full = at
	}
	// A bucket is never emptier than empty, also after the clock or the limit
	// was changed: it begins to fill.
	if empty := now.Add(limit.duration(limit.Burst)); full.After(empty) {
		full = empty
		m.limits.Add(hashed, full)
	}
	full = full.Add(limit.duration(cost))
	if wait := full.Sub(now) - limit.duration(limit.Burst); wait > 0 {
		return false, wait, nil
	}
	m.limits.Add(hashed, full)
	return true, 0, nil
}

// ownerEnds is a heap: the owner that ends first comes first.
type ownerEnds []ownerEnd

type ownerEnd struct {
	at  time.Time
	key hashedKey
}

func (e ownerEnds) Len() int           { return len(e) }
func (e ownerEnds) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e ownerEnds) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ownerEnds) Push(x any)        { *e = append(*e, x.(ownerEnd)) }
func (e *ownerEnds) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
