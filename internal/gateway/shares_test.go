package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
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

// Namespaces of different clusters, and projects of different identities, have shares of their own.
func TestWhoSharesPlaces(t *testing.T) {
	t.Parallel()
	account := func(cluster, namespace, name string) *registryauth.Holder {
		return &registryauth.Holder{Cluster: cluster, Namespace: namespace, ServiceAccount: name}
	}
	project := func(name, project string) *registryauth.Holder {
		return &registryauth.Holder{Identity: name, Project: project}
	}
	for name, test := range map[string]struct {
		one, other             *registryauth.Holder
		oneAddress, address    string
		sameTenant, sameHolder bool
	}{
		"two accounts of a namespace":   {one: account("c", "a", "web"), other: account("c", "a", "api"), sameTenant: true},
		"two pods of an account":        {one: account("c", "a", "web"), other: account("c", "a", "web"), sameTenant: true, sameHolder: true},
		"two namespaces":                {one: account("c", "a", "web"), other: account("c", "b", "web")},
		"two clusters":                  {one: account("c", "a", "web"), other: account("d", "a", "web")},
		"two projects":                  {one: project("ci", "a"), other: project("ci", "b")},
		"two identities":                {one: project("ci", "a"), other: project("other", "a")},
		"names that look alike":         {one: project("ci", "a/b"), other: project("ci/a", "b")},
		"a cluster, and an identity":    {one: account("ci", "a", "a"), other: project("ci", "a")},
		"anonymous, from two addresses": {oneAddress: "192.0.2.1", address: "192.0.2.2", sameTenant: true},
		"anonymous, from one address":   {oneAddress: "192.0.2.1", address: "192.0.2.1", sameTenant: true, sameHolder: true},
	} {
		sharer := func(holder *registryauth.Holder, address string) (string, string) {
			q := &request{bearer: &bearer{holder: holder}}
			q.caller.Address, _ = netip.ParseAddr(address)
			return q.sharer()
		}
		tenant, holder := sharer(test.one, test.oneAddress)
		otherTenant, otherHolder := sharer(test.other, test.address)
		sameTenant := tenant == otherTenant
		if sameTenant != test.sameTenant || (sameTenant && holder == otherHolder) != test.sameHolder {
			t.Errorf("%s: %q %q and %q %q", name, tenant, holder, otherTenant, otherHolder)
		}
	}
}

// client is a writer with deadlines.
type client struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (c *client) SetReadDeadline(t time.Time) error  { c.read = t; return nil }
func (c *client) SetWriteDeadline(t time.Time) error { c.write = t; return nil }

// A stream ends once, gets no more time, and ends no more when its request was answered: the
// connection serves the next request.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	canceled := 0
	begin := func() (*stream, *client) {
		c := &client{ResponseRecorder: httptest.NewRecorder()}
		return &stream{ResponseWriter: c, cancel: func(error) { canceled++ }}, c
	}
	st, c := begin()
	later := time.Now().Add(time.Hour)
	testkit.Must(t, st.SetReadDeadline(later))
	testkit.Must(t, st.SetWriteDeadline(later))
	st.end(errShared)
	if canceled != 1 || !c.read.Before(later) || !c.write.Before(later) {
		t.Errorf("canceled %d times, with the deadlines %s and %s", canceled, c.read, c.write)
	}
	st.end(errBusy)
	if !errors.Is(st.cause, errShared) || canceled != 1 {
		t.Errorf("it ended again: %v", st.cause)
	}
	if errShared.reason != errBusy.reason { // its holder has too many, whether a stream ends or does not begin
		t.Errorf("the reason is %q", errShared.reason)
	}
	if st.SetReadDeadline(later) == nil || st.SetWriteDeadline(later) == nil || c.read.Equal(later) || c.write.Equal(later) {
		t.Error("it has more time")
	}

	st, c = begin()
	st.left = true
	st.end(errShared)
	if st.cause != nil || canceled != 1 || !c.read.IsZero() || !c.write.IsZero() {
		t.Error("it ended after its request was answered")
	}
}

// An ended stream that leaves gives no place back: a different stream has it. A stream that could not take a
// place still waits for one. The counts are forgotten when all have left.
func TestPlacesThatWereTaken(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(48)
		var all []*stream
		for i := range s.most {
			st := newStream(fmt.Sprint("c/", i), "web")
			expectEnter(t, s, st, true, 0)
			all = append(all, st)
		}
		placed := make(chan *stream, 1)
		wait := func(st *stream) {
			go func() {
				if s.enter(t.Context(), st) {
					placed <- st
				}
			}()
			synctest.Wait()
		}
		late := newStream("c/late", "web")
		wait(late)
		time.Sleep(2 * busyWithin) // it insists, and no holder has more than it would have
		if len(placed) > 0 {
			t.Error("it took the place of a stream with as few")
		}
		s.leave(all[0])
		s.leave(all[0])
		if got := <-placed; got != late || len(s.streams) != s.most {
			t.Errorf("%d streams", len(s.streams))
		}
		again := newStream("c/late", "api")
		wait(again)
		s.leave(all[0])
		synctest.Wait()
		if len(placed) > 0 || len(s.streams) != s.most {
			t.Errorf("a place was given back again: %d streams of %d", len(s.streams), s.most)
		}
		s.leave(late)
		if got := <-placed; got != again {
			t.Errorf("%s of %s has its place", got.holder, got.tenant)
		}
		for _, st := range append(all, again) {
			s.leave(st)
		}
		if len(s.tenants) > 0 || len(s.streams) > 0 {
			t.Errorf("%d tenants and %d streams", len(s.tenants), len(s.streams))
		}
	})
}

// The victim is the slowest stream of the holder and the namespace with the most streams. Slower ones of other
// holders stay.
func TestVictims(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newShares(16)
		for _, st := range []*stream{newStream("c/b", "web"), newStream("c/a", "api")} {
			time.Sleep(time.Millisecond)
			st.move()
			expectEnter(t, s, st, true, 0)
		}
		time.Sleep(time.Millisecond)
		all := s.fill(t, "c/a", "web")
		expectEnter(t, s, newStream("c/c", "web"), true, busyWithin)
		if all[0].cause == nil {
			t.Error("another stream ended")
		}
	})
}

// A stream that gets its place while it hangs up has it: it must give it back.
func TestPlacedWhileItHangsUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		for range 20 {
			s := newShares(16)
			all := s.fill(t, "c/a", "web")
			ctx, cancel := context.WithCancel(t.Context())
			st, entered := newStream("c/b", "web"), make(chan bool, 1)
			go func() { entered <- s.enter(ctx, st) }()
			synctest.Wait()
			s.mu.Lock()
			cancel()
			w := s.waiting[0]
			s.remove(all[0])
			s.forget(w)
			s.add(st)
			close(w.placed)
			s.mu.Unlock()
			if !<-entered {
				t.Fatal("it has a place, and does not know")
			}
		}
	})
}

func TestCounts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		one, other count
		less       bool
	}{
		{count{1, 5}, count{2, 0}, true}, {count{1, 1}, count{1, 2}, true}, {count{1, 1}, count{1, 1}, false}, {count{1, 2}, count{1, 1}, false}, {count{2, 0}, count{1, 5}, false},
	} {
		if got := test.one.less(test.other); got != test.less {
			t.Errorf("%v and %v: %t", test.one, test.other, got)
		}
	}
}

// A read after the end of a body gets no deadline: it would be one for the answer.
func TestNoReadAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := &client{ResponseRecorder: httptest.NewRecorder()}
	b := newClientBody(w, httptest.NewRequest(http.MethodPut, "/", strings.NewReader("text")))
	if text, err := io.ReadAll(b); string(text) != "text" || err != nil || w.read.IsZero() {
		t.Fatalf("%q, %v, until %s", text, err, w.read)
	}
	w.read = time.Time{}
	if n, err := b.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) || !w.read.IsZero() {
		t.Errorf("%d, %v, until %s", n, err, w.read)
	}
}

// Of those that wait, the one with the fewest streams comes first, in whatever order they came.
func TestTheFewestComeFirst(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		for _, order := range [][]string{{"c/a", "c/b"}, {"c/b", "c/a"}} {
			s := newShares(48)
			all := s.fill(t, "c/a", "web")
			placed := make(chan string, 2)
			for _, tenant := range order {
				go func() {
					if s.enter(t.Context(), newStream(tenant, "api")) {
						placed <- tenant
					}
				}()
				synctest.Wait()
			}
			s.leave(all[0])
			if got := <-placed; got != "c/b" {
				t.Errorf("%s has the place of those that came as %s", got, order)
			}
			s.leave(all[1])
			<-placed
			for _, st := range all {
				s.leave(st)
			}
			if a := s.tenants["c/a"]; len(a.holders) != 1 || a.streams != 1 {
				t.Errorf("%+v", a)
			}
		}
	})
}

// A stream whose holder is not revoked goes on.
func TestOnlyStreamsOfTheRevokedEnd(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		m := NewMemory(16)
		st := newStream("c/a", "web")
		st.handler, st.bearer = &Handler{Config: Config{Revocations: &unrevoked{}}}, &bearer{holder: &registryauth.Holder{}}
		expectEnter(t, m.shares, st, true, 0)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { m.Run(ctx); close(done) }()
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if st.cause != nil {
			t.Error(st.cause)
		}
		stop()
		<-done
	})
}

// A push outlasts its client for a while, and no longer than its stream.
func TestOutlasting(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		client, leave := context.WithCancel(t.Context())
		ctx, _ := outlasting(client)
		ended, end := outlasting(client)
		time.Sleep(time.Hour)
		leave()
		end(nil)
		began := time.Now()
		if <-ended.Done(); !time.Now().Equal(began) {
			t.Errorf("it goes on for %s after its end", time.Since(began))
		}
		if <-ctx.Done(); time.Since(began) != finishWithin {
			t.Errorf("it goes on for %s without its client", time.Since(began))
		}
	})
}
