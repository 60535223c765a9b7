package lru

import (
	"math"
	"sync"
	"unsafe"
)

// Shared is a Cache that several owners share. If an addition exceeds the bound, the owner with the
// most bytes loses its least recently used entry. It is safe for concurrent use.
type Shared[K comparable, V any] struct {
	held func(K, V) int
	most int

	mu     sync.Mutex
	owners map[string]*Cache[K, V]
	of     map[K]string // the owner of each key
	bytes  int          // of all owners
	slots  int          // of the maps, which never shrink
}

// NewShared returns an empty Shared. most and held are as for New.
func NewShared[K comparable, V any](most int, held func(K, V) int) *Shared[K, V] {
	return &Shared[K, V]{held: held, most: most, owners: map[string]*Cache[K, V]{}, of: map[K]string{}}
}

// Get returns the value of key, for any owner, and makes it the most recently used one.
func (s *Shared[K, V]) Get(key K) (value V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner, ok := s.of[key]; ok {
		return s.owners[owner].Get(key)
	}
	return value, false
}

// Peek is Get without counting as a use.
func (s *Shared[K, V]) Peek(key K) (value V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if owner, ok := s.of[key]; ok {
		return s.owners[owner].Peek(key)
	}
	return value, false
}

// Add keeps a value for its owner.
func (s *Shared[K, V]) Add(owner string, key K, value V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
	own := s.owners[owner]
	if own == nil {
		own = New(math.MaxInt, s.held) // s has the bound
		s.owners[owner] = own
	}
	s.count(owner, func() { own.Add(key, value) })
	s.of[key] = owner
	s.slots = max(s.slots, len(s.of))
	for s.size() > s.most && len(s.of) > 0 {
		most, bytes := "", 0
		for name, c := range s.owners {
			if b := c.Bytes(); b > bytes {
				most, bytes = name, b
			}
		}
		s.count(most, func() { delete(s.of, s.owners[most].removeOldest()) })
	}
}

// Remove forgets key.
func (s *Shared[K, V]) Remove(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

// Len returns the number of entries.
func (s *Shared[K, V]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of)
}

func (s *Shared[K, V]) remove(key K) {
	if owner, ok := s.of[key]; ok {
		s.count(owner, func() { s.owners[owner].Remove(key) })
		delete(s.of, key)
	}
}

// count runs change, updates the totals, and removes an owner without entries.
func (s *Shared[K, V]) count(owner string, change func()) {
	c := s.owners[owner]
	before := c.Bytes()
	change()
	if s.bytes += c.Bytes() - before; c.Len() == 0 {
		s.bytes -= c.Bytes()
		delete(s.owners, owner)
	}
}

// size returns the size of all entries and of their owners. There are at most as many owners as
// entries.
func (s *Shared[K, V]) size() int {
	owner := MapSlot[string, *Cache[K, V]]() + int(unsafe.Sizeof(Cache[K, V]{}))
	return s.bytes + s.slots*MapSlot[K, string]() + len(s.owners)*owner
}
