package lru

import (
	"sync"
	"unsafe"
)

// Cache keeps the entries that were used most recently, within its bound. It is safe for concurrent
// use.
type Cache[K comparable, V any] struct {
	held func(K, V) int
	most int

	mu      sync.Mutex
	entries map[K]*entry[K, V]
	ends    entry[K, V] // of the ring: newer is the oldest entry, older the newest
	own     int         // bytes of all entries, without the map
	slots   int         // of the map, which never shrinks
}

type entry[K comparable, V any] struct {
	older, newer *entry[K, V]
	key          K
	value        V
}

// New returns an empty Cache for at most most bytes. held returns how much memory a key and a value
// point to, as Bytes counts it. It must always return the same number for the same two. nil means
// that they point to no memory of their own.
func New[K comparable, V any](most int, held func(K, V) int) *Cache[K, V] {
	if held == nil {
		held = func(K, V) int { return 0 }
	}
	c := &Cache[K, V]{held: held, most: most, entries: map[K]*entry[K, V]{}}
	c.ends.older, c.ends.newer = &c.ends, &c.ends
	return c
}

// Get returns the value of key and makes it the most recently used one.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return value, false
	}
	e.unlink()
	c.link(e)
	return e.value, true
}

// Peek is Get without counting as a use.
func (c *Cache[K, V]) Peek(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		return e.value, true
	}
	return value, false
}

// Add keeps a value, and removes the least recently used others until there is room. A value that
// is larger than the whole cache is not kept.
func (c *Cache[K, V]) Add(key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		c.remove(e)
	}
	e := &entry[K, V]{key: key, value: value}
	size := c.size(e)
	for c.bytes(c.own+size, len(c.entries)+1) > c.most {
		if len(c.entries) == 0 {
			return
		}
		c.remove(c.ends.newer)
	}
	c.entries[key] = e
	c.link(e)
	c.own += size
	c.slots = max(c.slots, len(c.entries))
}

// Remove forgets key, and reports whether it was there.
func (c *Cache[K, V]) Remove(key K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if ok {
		c.remove(e)
	}
	return ok
}

// removeOldest removes the least recently used entry and returns its key. The cache must not be
// empty.
func (c *Cache[K, V]) removeOldest() K {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := c.ends.newer
	c.remove(oldest)
	return oldest.key
}

// Len returns the number of entries.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Bytes returns the size of the entries.
func (c *Cache[K, V]) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes(c.own, 0)
}

func (c *Cache[K, V]) bytes(own, slots int) int {
	return own + max(c.slots, slots)*MapSlot[K, *entry[K, V]]()
}

func (c *Cache[K, V]) size(e *entry[K, V]) int {
	return Bytes(int(unsafe.Sizeof(*e))) + c.held(e.key, e.value)
}

func (c *Cache[K, V]) remove(e *entry[K, V]) {
	delete(c.entries, e.key)
	e.unlink()
	c.own -= c.size(e)
}

// link makes an entry the newest.
func (c *Cache[K, V]) link(e *entry[K, V]) {
	e.older, e.newer = c.ends.older, &c.ends
	e.older.newer, e.newer.older = e, e
}

func (e *entry[K, V]) unlink() { e.older.newer, e.newer.older = e.newer, e.older }
