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
	owners map[string]*owner[K, V]
	of     map[K]*owner[K, V]
	bytes  int // of all owners
	slots  int // of the maps, which never shrink
}

type owner[K comparable, V any] struct {
	*Cache[K, V]
	name string
}

// NewShared returns an empty Shared. most and held are as for New.
func NewShared[K comparable, V any](most int, held func(K, V) int) *Shared[K, V] {
	return &Shared[K, V]{held: held, most: most, owners: map[string]*owner[K, V]{}, of: map[K]*owner[K, V]{}}
}

// Get returns the value of key, for any owner, and makes it the most recently used one.
func (s *Shared[K, V]) Get(key K) (value V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.of[key]; own != nil {
		return own.Get(key)
	}
	return value, false
}

// Peek is Get without counting as a use.
func (s *Shared[K, V]) Peek(key K) (value V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.of[key]; own != nil {
		return own.Peek(key)
	}
	return value, false
}

// Add keeps a value for the owner with that name.
func (s *Shared[K, V]) Add(name string, key K, value V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
	own := s.owners[name]
	if own == nil {
		own = &owner[K, V]{New(math.MaxInt, s.held), name} // s has the bound
		s.owners[name] = own
	}
	s.count(own, func() { own.Add(key, value) })
	s.of[key] = own
	s.slots = max(s.slots, len(s.of))
	for s.size() > s.most && len(s.of) > 0 {
		var most *owner[K, V]
		for _, other := range s.owners {
			if most == nil || other.Bytes() > most.Bytes() {
				most = other
			}
		}
		s.count(most, func() { delete(s.of, most.removeOldest()) })
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
	if own := s.of[key]; own != nil {
		s.count(own, func() { own.Remove(key) })
		delete(s.of, key)
	}
}

// count runs change, updates the totals, and removes an owner without entries.
func (s *Shared[K, V]) count(own *owner[K, V], change func()) {
	before := own.Bytes()
	change()
	if s.bytes += own.Bytes() - before; own.Len() == 0 {
		s.bytes -= own.Bytes()
		delete(s.owners, own.name)
	}
}

// size returns the size of all entries and of their owners. There are at most as many owners as
// entries.
func (s *Shared[K, V]) size() int {
	each := MapSlot[string, *owner[K, V]]() + int(unsafe.Sizeof(owner[K, V]{})+unsafe.Sizeof(Cache[K, V]{}))
	return s.bytes + s.slots*MapSlot[K, *owner[K, V]]() + len(s.owners)*each
}
