package fair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestShare(t *testing.T) {
	t.Parallel()
	const most = 256
	s := NewShare(most)
	fill := func(tenant string) (held int) {
		for s.Enter(tenant) {
			held++
		}
		return held
	}
	if a, b, c := fill("a"), fill("b"), fill("c"); a != most*3/4 || b != 48 || c != 12 {
		t.Errorf("they hold %d, %d and %d", a, b, c)
	}
	for range 192 {
		s.Leave("a")
	}
	if more := fill("b"); more != 135 || fill("a") == 0 {
		t.Errorf("%d more", more)
	}
	// However many tenants there are, no more than all is held.
	for i := range 2 * most {
		fill(fmt.Sprint(i))
	}
	all := 0
	for _, held := range s.held {
		all += held
	}
	if all != most || s.Enter("one more") {
		t.Errorf("%d are held", all)
	}
	for tenant, held := range s.held {
		for range held {
			s.Leave(tenant)
		}
	}
	if len(s.held) != 0 || s.free != most {
		t.Errorf("%+v, when nothing is held", s)
	}
}

func TestPlaces(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		p := NewPlaces(2)
		events := make(chan string, 10)
		gone, cancel := context.WithCancelCause(t.Context())
		enter := func(ctx context.Context, tenant string) {
			go func() {
				if err := p.Enter(ctx, tenant); err != nil {
					events <- err.Error()
					return
				}
				events <- tenant
				time.Sleep(time.Second)
				p.Leave()
			}()
			synctest.Wait()
		}
		for range 5 {
			enter(t.Context(), "a")
		}
		enter(gone, "b")
		enter(t.Context(), "c")
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(events) > 0 {
				got = append(got, <-events)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		expect("a", "a")
		cancel(errors.New("b has gone"))
		expect("b has gone")
		time.Sleep(time.Second)
		expect("a", "c")
		time.Sleep(time.Second)
		expect("a", "a")
		time.Sleep(time.Second)
		for range 2 { // all are free again
			enter(t.Context(), "d")
		}
		expect("d", "d")
		time.Sleep(time.Second)
	})
}

// A place that is given to one who just gives up is not lost.
func TestPlaceOfOneWhoGivesUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		p := NewPlaces(1)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := p.Enter(ctx, "a"); err != nil {
				t.Fatal("a place was lost")
			}
			entered := make(chan error)
			go func() { entered <- p.Enter(ctx, "b") }()
			synctest.Wait()
			cancel()
			p.Leave()
			if <-entered == nil {
				p.Leave()
			}
		}
	})
}
