package gateway

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func newStream(tenant, holder string) *stream {
	st := &stream{ResponseWriter: httptest.NewRecorder(), tenant: tenant, holder: holder, cancel: func(error) {}}
	st.move()
	return st
}

// fill gives all free places to a holder.
func (s *shares) fill(t *testing.T, tenant, holder string) (all []*stream) {
	t.Helper()
	for len(s.streams) < s.most {
		st := newStream(tenant, holder)
		if !s.enter(t.Context(), st) {
			t.Fatal("no place, and some are free")
		}
		all = append(all, st)
		time.Sleep(time.Millisecond)
	}
	return all
}

func expectEnter(t *testing.T, s *shares, st *stream, want bool, within time.Duration) {
	t.Helper()
	began := time.Now()
	if got := s.enter(t.Context(), st); got != want || time.Since(began) != within {
		t.Errorf("%s of %s: %t after %s, want %t after %s", st.holder, st.tenant, got, time.Since(began), want, within)
	}
}

// If one holder has all places, a second one soon gets one: the slowest stream ends. They end up
// with equal shares. No stream ends for a holder with the same number.
func TestSharesAreEven(t *testing.T) {
	t.Parallel()
	for name, other := range map[string][2]string{"of another namespace": {"c/b", "web"}, "of the same namespace": {"c/a", "api"}} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				s := newShares(24)
				all := s.fill(t, "c/a", "web")
				if len(all) != 21 {
					t.Errorf("%d places of 24 connections", len(all))
				}
				all[0].move() // now the second is the slowest
				for i := range 10 {
					expectEnter(t, s, newStream(other[0], other[1]), true, busyWithin)
					if all[i+1].cause != errShared || all[0].cause != nil {
						t.Errorf("stream %d: %v", i+1, all[i+1].cause)
					}
				}
				expectEnter(t, s, newStream(other[0], other[1]), false, waitWithin)
				for _, st := range all {
					s.leave(st) // some have already left
				}
				if len(s.streams) != 10 || len(s.waiting) != 0 {
					t.Errorf("%d streams, %d wait", len(s.streams), len(s.waiting))
				}
			})
		})
	}
}

// A namespace has one share, however many ServiceAccounts it has.
func TestManyHoldersOfOneNamespace(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(24)
		for i := range 21 {
			expectEnter(t, s, newStream("c/a", fmt.Sprint(i)), true, 0)
		}
		expectEnter(t, s, newStream("c/a", "one more"), false, waitWithin)
		for range 10 {
			expectEnter(t, s, newStream("c/b", "web"), true, busyWithin)
		}
	})
}

// Returned places go to the tenant with the fewest streams, and no stream ends for them. A canceled
// request no longer waits.
func TestPlacesThatAreGivenBack(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(48)
		all := s.fill(t, "c/a", "web")
		placed := make(chan string, 3)
		enter := func(ctx context.Context, tenant, holder string) {
			if s.enter(ctx, newStream(tenant, holder)) {
				placed <- holder
			}
		}
		go enter(t.Context(), "c/a", "web")
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		go enter(gone, "c/b", "gone")
		synctest.Wait()
		go enter(t.Context(), "c/b", "api")
		synctest.Wait()
		cancel()
		synctest.Wait()
		for _, want := range []string{"api", "web"} {
			s.leave(all[0])
			all = all[1:]
			if got := <-placed; got != want {
				t.Errorf("%s has the place, want %s", got, want)
			}
		}
		for _, st := range all {
			if st.cause != nil {
				t.Errorf("%v", st.cause)
			}
		}
		if len(s.streams) != s.most || len(s.waiting) != 0 {
			t.Errorf("%d streams, %d wait", len(s.streams), len(s.waiting))
		}
	})
}

// A stream that gets a place in the moment in which it insists, or gives up, has one place.
func TestPlacedAtTheLastMoment(t *testing.T) {
	t.Parallel()
	s := newShares(48)
	all := s.fill(t, "c/a", "web")
	w := &waiter{newStream("c/b", "api"), make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.leave(all[0])
	if victim := s.insist(w); victim != nil || s.countOf(w.stream) != (count{1, 1}) || len(s.streams) != s.most {
		t.Errorf("it took the place of %v, and has %v", victim, s.countOf(w.stream))
	}
	if !s.withdraw(w) {
		t.Error("its place is lost")
	}
}

// Waiting requests do not keep other callers from being identified: the number of them is bounded.
func TestNotAllMayWait(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(48)
		s.fill(t, "c/a", "web")
		for range s.mostWaiting {
			go s.enter(t.Context(), newStream("c/a", "web"))
		}
		synctest.Wait()
		expectEnter(t, s, newStream("c/a", "web"), false, 0)
		expectEnter(t, s, newStream("c/b", "web"), true, 0)
	})
}

// Only some requests of holders with their full share wait. Other holders do not wait for them.
func TestWaitingIsBounded(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(16)
		s.fill(t, "c/a", "web")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { ended <- s.enter(ctx, newStream("c/a", "web")) }()
		synctest.Wait()
		expectEnter(t, s, newStream("c/a", "web"), false, 0)
		expectEnter(t, s, newStream("c/b", "web"), true, 0)
		cancel()
		if <-ended {
			t.Error("one that has gone has a place")
		}
	})
}
