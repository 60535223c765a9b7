package state

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/pullpass/pullpass/internal/base/lru"
)

// MemoryConfig configures a Memory.
type MemoryConfig struct {
	OwnerBytes int              // for the owners of token ids; 0 means 32 MiB, which is enough for 100,000
	LimitBytes int              // for the keys of limits; 0 means 16 MiB, which is enough for 65,000
	Now        func() time.Time // nil means time.Now
}

// ErrFull says that there is no room for a further token id or revocation. Existing entries are not
// evicted for new ones. Otherwise a caller who can get many tokens issued could evict an owner.
var ErrFull = errors.New("full")

// maxOwnerBytes bounds an owner. The longest name of a node has 253 bytes.
const maxOwnerBytes = 1024

// Memory keeps owners and limits of one replica. It is safe for concurrent use.
type Memory struct {
	now func() time.Time

	ownersMu   sync.Mutex
	owners     map[hashedKey]string
	ends       ownerEnds
	ownerBytes int // of the owners' names
	ownerSlots int // of the map and of ends, which never shrink
	mostBytes  int // of names and slots together

	limitsMu sync.Mutex
	// limits holds for each key when its bucket will be full again (GCRA's
	// theoretical arrival time).
	limits *lru.Cache[hashedKey, time.Time]
}

// hashedKey is a caller's key in a fixed size. Different keys stay different.
type hashedKey [sha256.Size]byte

func hashKey(key string) hashedKey { return sha256.Sum256([]byte(key)) }

// NewMemory returns an empty Memory.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if c.OwnerBytes < 0 || c.LimitBytes < 0 {
		return nil, fmt.Errorf("state in memory: %d bytes for owners and %d for limits: neither may be negative", c.OwnerBytes, c.LimitBytes)
	}
	c.OwnerBytes = cmp.Or(c.OwnerBytes, 32<<20)
	c.LimitBytes = cmp.Or(c.LimitBytes, 16<<20)
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Memory{now: c.Now, owners: map[hashedKey]string{}, mostBytes: c.OwnerBytes, limits: lru.New[hashedKey, time.Time](c.LimitBytes, nil)}, nil
}

// Own makes owner the owner of key until the given time, unless key has an owner, and returns the
// owner. The error is ErrFull, or about the owner itself.
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
		key := heap.Pop(&m.ends).(ownerEnd).key
		m.ownerBytes -= lru.Bytes(len(m.owners[key]))
		delete(m.owners, key)
	}
	if current, ok := m.owners[hashed]; ok {
		return current, nil
	}
	size, slots := lru.Bytes(len(owner)), max(m.ownerSlots, len(m.owners)+1)
	if m.ownerBytes+size+slots*ownerSlot > m.mostBytes {
		return "", fmt.Errorf("%w: %d token ids have owners", ErrFull, len(m.owners))
	}
	m.ownerBytes, m.ownerSlots = m.ownerBytes+size, slots
	m.owners[hashed] = owner
	heap.Push(&m.ends, ownerEnd{until, hashed})
	return owner, nil
}

// ownerSlot is the size of a token id's entry without the name of its owner. A growing slice has a
// quarter of spare room.
var ownerSlot = lru.MapSlot[hashedKey, string]() + int(unsafe.Sizeof(ownerEnd{}))*5/4

func checkOwner(owner string) error {
	if owner == "" || len(owner) > maxOwnerBytes {
		return fmt.Errorf("an owner has 1 to %d bytes, not %d", maxOwnerBytes, len(owner))
	}
	return nil
}

// Take takes cost units from the bucket of key, if they are available. If not, it takes none and
// returns the time until they are. The error is ErrLimit.
//
// When there are more keys than fit, the least recently used key gets a full bucket again. To
// exploit that, a caller needs as many requests under other keys as there is room for: far more
// than a burst.
func (m *Memory) Take(ctx context.Context, key string, limit Limit, cost int) (bool, time.Duration, error) {
	if err := limit.validate(cost); err != nil {
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
	// A bucket is never emptier than empty, even after a change of the clock or the limit: it
	// begins to fill.
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
