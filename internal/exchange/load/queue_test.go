package load

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func request(ctx context.Context) *http.Request {
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/token", nil)
}

func TestQueue(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		q := NewQueue(2, 1)
		for range 2 {
			if !q.Enter(request(t.Context())) {
				t.Fatal("no place in an empty queue")
			}
		}
		result := make(chan bool)
		wait := func(ctx context.Context) { result <- q.Enter(request(ctx)) }

		go wait(t.Context())
		synctest.Wait()
		if q.Enter(request(t.Context())) {
			t.Error("more wait than may")
		}
		if load := q.Counts(); load != (Counts{InFlight: 2, Waiting: 1}) {
			t.Errorf("load %+v", load)
		}
		q.Leave()
		if !<-result {
			t.Error("the one that waited got no place")
		}

		begin := time.Now()
		go wait(t.Context())
		if <-result || time.Since(begin) != maxQueueTime {
			t.Errorf("waited %s, though no place became free", time.Since(begin))
		}

		canceled, cancel := context.WithCancel(t.Context())
		go wait(canceled)
		synctest.Wait()
		cancel()
		if <-result {
			t.Error("a place for a caller that has gone")
		}
		if load := q.Counts(); load != (Counts{InFlight: 2}) {
			t.Errorf("load %+v", load)
		}
		q.Leave()
		q.Leave()
		if !q.Enter(request(t.Context())) {
			t.Error("places were lost")
		}
	})
}

// Requests of the maximum size do not fill the memory while they wait.
func TestQueueBoundsBytes(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		const most = 4096
		q := NewQueue(1, most)
		q.Enter(request(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		large := map[string]func() *http.Request{
			"URL":    func() *http.Request { r := request(ctx); r.RequestURI = strings.Repeat("a", 60<<10); return r },
			"header": func() *http.Request { r := request(ctx); r.Header.Set("Cookie", strings.Repeat("a", 60<<10)); return r },
			"body":   func() *http.Request { r := request(ctx); r.ContentLength = registryauth.MaxBodyBytes; return r },
			"chunks": func() *http.Request { r := request(ctx); r.ContentLength = -1; return r },
		}
		for range most / 8 {
			for _, make := range large {
				go q.Enter(make())
			}
		}
		synctest.Wait()
		if waiting := q.Counts().Waiting; waiting < 280 || waiting > 320 {
			t.Errorf("%d large requests wait, want about 300: 16 MiB", waiting)
		}
		for range 100 { // refused requests do not affect the others
			if q.Enter(large["URL"]()) {
				t.Error("a place")
			}
		}
		before := q.Counts().Waiting
		usual := request(ctx)
		usual.Header.Set("Authorization", strings.Repeat("a", usualBytes-100))
		go q.Enter(usual)
		synctest.Wait()
		if q.Counts().Waiting != before+1 {
			t.Error("a usual request may not wait any more")
		}
		cancel()
		synctest.Wait()
		if load, excess := q.Counts(), q.excess.Load(); load.Waiting != 0 || excess != 0 {
			t.Errorf("load %+v, excess %d, but no request waits", load, excess)
		}
	})
}

// The bytes of a refused request are not subtracted from those of waiting requests.
func TestQueueCountsBytesOfAll(t *testing.T) {
	t.Parallel()
	q := NewQueue(1, 0)
	q.Enter(request(t.Context()))
	large := request(t.Context())
	large.ContentLength = registryauth.MaxBodyBytes
	if q.Enter(large) || q.excess.Load() != 0 || q.Counts().Waiting != 0 {
		t.Errorf("excess %d, load %+v, but no request waits", q.excess.Load(), q.Counts())
	}
}

// A field without a text costs memory too.
func TestHeadBytes(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := range 1000 {
		r.Header[fmt.Sprint(i)] = []string{"", ""}
	}
	if got := HeadBytes(r); got < 2000*fieldBytes {
		t.Errorf("%d bytes", got)
	}
}
