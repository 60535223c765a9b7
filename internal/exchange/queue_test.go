package exchange

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, 1)
		for range 2 {
			if !q.enter(t.Context()) {
				t.Fatal("no place in an empty queue")
			}
		}
		result := make(chan bool)
		wait := func(ctx context.Context) { result <- q.enter(ctx) }

		go wait(t.Context())
		synctest.Wait()
		if q.enter(t.Context()) {
			t.Error("more wait than may")
		}
		if load := q.load(); load != (Load{InFlight: 2, Waiting: 1}) {
			t.Errorf("load %+v", load)
		}
		q.leave()
		if !<-result {
			t.Error("the one that waited got no place")
		}

		begin := time.Now()
		go wait(t.Context())
		if <-result || time.Since(begin) != maxQueueTime {
			t.Errorf("waited %s for a place that nobody left", time.Since(begin))
		}

		canceled, cancel := context.WithCancel(t.Context())
		go wait(canceled)
		synctest.Wait()
		cancel()
		if <-result {
			t.Error("a place for a caller that has gone")
		}
		if load := q.load(); load != (Load{InFlight: 2}) {
			t.Errorf("load %+v", load)
		}
		q.leave()
		q.leave()
		if !q.enter(t.Context()) {
			t.Error("places were lost")
		}
	})
}
