package tokensecrets

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A namespace whose requests are slow neither takes the workers of others nor keeps the API server busy.
func TestSlowNamespace(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Put("namespaces", object("", "team-b", "uid-other", Enabled))
		for i := range 3 * workers {
			name := string(rune('a'+i%26)) + string(rune('a'+i/26))
			r.api.Put("serviceaccounts", object("team-b", name, "uid-"+name, Enabled))
		}
		var now, most, all atomic.Int32
		r.api.Fail("create secrets", func(w http.ResponseWriter, request *http.Request) {
			switch request.URL.Path {
			case "/api/v1/namespaces/team-a/secrets":
				r.api.Write(w, request)
				return
			case "/api/v1/namespaces/pullpass/secrets":
				denied(optInWords)(w, request)
				return
			}
			all.Add(1)
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			select {
			case <-time.After(time.Hour):
			case <-request.Context().Done():
			}
		})
		defer r.leads(t)()
		if s := r.api.Object("secrets", "team-a", NamePrefix+"web"); s == nil {
			t.Error("another namespace waits")
		}
		time.Sleep(syncTimeout + restFactor*syncTimeout - 5*time.Second)
		if most.Load() != namespaceWorkers || all.Load() != namespaceWorkers {
			t.Errorf("%d requests at a time, %d in all", most.Load(), all.Load())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := all.Load(); got != 2*namespaceWorkers {
			t.Errorf("%d requests after the rest", got)
		}
	})
}

// A ServiceAccount that is gone when its turn comes leaves the turn to the next one.
func TestTurnsOfServiceAccountsThatAreGone(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		going := make(chan struct{})
		r.api.Fail("create secrets", func(w http.ResponseWriter, request *http.Request) {
			if request.URL.Path == "/api/v1/namespaces/pullpass/secrets" {
				denied(optInWords)(w, request)
				return
			}
			select {
			case <-going:
				r.api.Write(w, request)
			case <-request.Context().Done():
			}
		})
		var names []string
		for i := range 3 * workers {
			names = append(names, fmt.Sprint("sa-", i))
			r.api.Put("serviceaccounts", object("team-a", names[i], "uid-"+names[i], Enabled))
		}
		defer r.leads(t)()
		for _, name := range names[:len(names)-1] {
			r.api.Remove("serviceaccounts", "team-a", name)
		}
		close(going)
		time.Sleep(2 * restFactor * syncTimeout)
		synctest.Wait()
		if r.api.Object("secrets", "team-a", NamePrefix+names[len(names)-1]) == nil {
			t.Error("the last ServiceAccount waits for ever")
		}
	})
}

func TestShares(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var added []string
		s := newShares(func(key string) { added = append(added, key) })
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Equal(added, want) {
				t.Errorf("%s: %q", what, added)
			}
		}
		if !s.begin("a", "a/1") || !s.begin("a", "a/2") || s.begin("a", "a/3") || s.begin("a", "a/3") || !s.begin("b", "b/1") {
			t.Error("not two of a namespace")
		}
		s.end("b", 0)
		expect("the place of another namespace")
		if rest := s.end("a", slowSync-1); rest != 0 {
			t.Errorf("it rests for %s", rest)
		}
		expect("a place is free", "a/3")
		if !s.begin("a", "a/3") || s.begin("a", "a/4") {
			t.Error("more than the free place")
		}
		if rest := s.end("a", slowSync); rest != restFactor*slowSync {
			t.Errorf("it rests for %s", rest)
		}
		time.Sleep(restFactor*slowSync - 1)
		expect("it rests", "a/3")
		time.Sleep(time.Nanosecond)
		expect("it has rested", "a/3", "a/4")
		s.end("a", 0)
		if len(s.working) != 0 || len(s.waiting) != 0 {
			t.Errorf("left: %v %v", s.working, s.waiting)
		}
	})
}
