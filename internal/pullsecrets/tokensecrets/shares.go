package tokensecrets

import (
	"sync"
	"time"
)

const (
	// The policy judges a request by each ServiceAccount of its namespace, so tenants can make theirs dear. Without a
	// limit, one namespace would have all workers, and the API server all the work.
	namespaceWorkers = 2
	// After a ServiceAccount that took at least slowSync, the worker's place in the namespace is free after restFactor
	// times as long.
	slowSync   = 2 * time.Second
	restFactor = 10
)

// shares limits the work for each namespace. It is safe for concurrent use.
type shares struct {
	add     func(key string) // to the queue
	mu      sync.Mutex
	working map[string]int             // places that are taken, by namespace
	waiting map[string]map[string]bool // keys, by namespace
}

func newShares(add func(key string)) *shares {
	return &shares{add: add, working: map[string]int{}, waiting: map[string]map[string]bool{}}
}

// begin takes a place of the namespace. If none is free, it returns false, and the key is added again later.
func (s *shares) begin(namespace, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working[namespace] < namespaceWorkers {
		s.working[namespace]++
		return true
	}
	if s.waiting[namespace] == nil {
		s.waiting[namespace] = map[string]bool{}
	}
	s.waiting[namespace][key] = true
	return false
}

// end frees a place after work that took so long, and returns how long the place rests before.
func (s *shares) end(namespace string, took time.Duration) (rest time.Duration) {
	if took < slowSync {
		s.free(namespace)
		return 0
	}
	rest = restFactor * took
	time.AfterFunc(rest, func() { s.free(namespace) })
	return rest
}

func (s *shares) free(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working[namespace]--; s.working[namespace] == 0 {
		delete(s.working, namespace)
	}
	for key := range s.waiting[namespace] {
		delete(s.waiting[namespace], key)
		s.add(key)
		break
	}
	if len(s.waiting[namespace]) == 0 {
		delete(s.waiting, namespace)
	}
}
