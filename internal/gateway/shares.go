package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// busyWithin is how long a request waits for a free place. After that, it may take a place from
	// a holder with more streams.
	busyWithin = 500 * time.Millisecond
	// waitWithin is the longest wait of a request. Token requests wait as long.
	waitWithin = 5 * time.Second
)

// shares divides places for streams among holders. A holder may use all places while the others
// want none, and no more than the others when places are scarce. It is safe for concurrent use.
type shares struct {
	most        int
	mostWaiting int

	mu      sync.Mutex
	streams map[*stream]bool
	tenants map[string]*tenant
	waiting []*waiter // in order of arrival
}

// tenant holds the streams of one namespace, one project, or all anonymous callers.
type tenant struct {
	streams int
	holders map[string]int
}

type waiter struct {
	stream *stream
	placed chan struct{} // closed when stream has a place
}

// newShares reserves an eighth of the connections for requests whose holder is not known yet and
// for waiting requests. At most half of that reserve may wait.
func newShares(connections int) *shares {
	return &shares{
		most: max(connections-max(connections/8, 1), 1), mostWaiting: max(connections/16, 1),
		streams: map[*stream]bool{}, tenants: map[string]*tenant{},
	}
}

// enter finds a place for a stream and reports whether it got one. If so, leave must be called. A
// stream gets none if it waits too long or if too many streams wait.
func (s *shares) enter(ctx context.Context, st *stream) bool {
	s.mu.Lock()
	if len(s.streams) < s.most {
		s.add(st)
		s.mu.Unlock()
		return true
	}
	if len(s.waiting) >= s.mostWaiting {
		victim := s.takeFor(st)
		s.mu.Unlock()
		victim.end(errShared)
		return victim != nil
	}
	w := &waiter{st, make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, waitWithin)
	defer cancel()
	again := time.NewTicker(busyWithin)
	defer again.Stop()
	for {
		select {
		case <-w.placed:
			return true
		case <-again.C:
			if victim := s.insist(w); victim != nil {
				victim.end(errShared)
				return true
			}
		case <-ctx.Done():
			return s.withdraw(w)
		}
	}
}

// insist takes a place for a waiting stream, like takeFor.
func (s *shares) insist(w *waiter) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[w.stream] {
		return nil // it just got a place
	}
	victim := s.takeFor(w.stream)
	if victim != nil {
		s.forget(w)
	}
	return victim
}

// withdraw ends a wait, and reports whether the stream just got a place.
func (s *shares) withdraw(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(w)
	return s.streams[w.stream]
}

// leave gives a place back. It goes to a waiting stream of the tenant with the fewest streams.
func (s *shares) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.remove(st) {
		return // its place was taken
	}
	var next *waiter
	for _, w := range s.waiting {
		if next == nil || s.countOf(w.stream).less(s.countOf(next.stream)) {
			next = w
		}
	}
	if next != nil {
		s.forget(next)
		s.add(next.stream)
		close(next.placed)
	}
}

// takeFor gives st the place of a different stream, which it returns, or nil. The victim is the
// slowest stream of the holder with the most streams, in the tenant with the most streams. Even
// afterwards, st's tenant or holder must not have more than the victim's.
func (s *shares) takeFor(st *stream) *stream {
	own := s.countOf(st)
	name, most := st.tenant, own.tenant
	for other, t := range s.tenants {
		if t.streams > most {
			name, most = other, t.streams
		}
	}
	from := s.tenants[name]
	if most <= own.tenant+1 { // all tenants are even: compare the holders of st's own tenant
		if name, from = st.tenant, s.tenants[st.tenant]; from == nil {
			return nil
		}
	}
	holder, holderMost := "", 0
	for other, n := range from.holders {
		if n > holderMost {
			holder, holderMost = other, n
		}
	}
	if name == st.tenant && holderMost <= own.holder+1 {
		return nil
	}
	var slowest *stream
	for other := range s.streams {
		if other.tenant == name && other.holder == holder && (slowest == nil || other.moved.Load() < slowest.moved.Load()) {
			slowest = other
		}
	}
	s.remove(slowest)
	s.add(st)
	return slowest
}

// count holds the number of streams of a tenant, and of one of its holders.
type count struct{ tenant, holder int }

func (c count) less(than count) bool {
	return c.tenant < than.tenant || c.tenant == than.tenant && c.holder < than.holder
}

func (s *shares) countOf(st *stream) count {
	if t := s.tenants[st.tenant]; t != nil {
		return count{t.streams, t.holders[st.holder]}
	}
	return count{}
}

func (s *shares) add(st *stream) {
	t := s.tenants[st.tenant]
	if t == nil {
		t = &tenant{holders: map[string]int{}}
		s.tenants[st.tenant] = t
	}
	s.streams[st] = true
	t.streams++
	t.holders[st.holder]++
}

func (s *shares) remove(st *stream) bool {
	if !s.streams[st] {
		return false
	}
	delete(s.streams, st)
	t := s.tenants[st.tenant]
	if t.streams--; t.streams == 0 {
		delete(s.tenants, st.tenant)
	}
	if t.holders[st.holder]--; t.holders[st.holder] == 0 {
		delete(t.holders, st.holder)
	}
	return true
}

func (s *shares) forget(w *waiter) {
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
}

// all returns the current streams.
func (s *shares) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*stream, 0, len(s.streams))
	for st := range s.streams {
		all = append(all, st)
	}
	return all
}
