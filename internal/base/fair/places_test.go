package fair

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A tenant whose waiters often give up still gets its turns, and none of those waiters is kept.
func TestWaitersThatGaveUpUseNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(2)
		served := map[string]int{}
		done := make(chan string, 10_000)
		use := func(tenant string) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if p.Enter(ctx, tenant) == nil {
				time.Sleep(time.Second)
				p.Leave()
				done <- tenant
			}
		}
		end := time.Now().Add(time.Minute)
		for range 4 {
			go func() {
				for time.Now().Before(end) {
					use("patient")
				}
			}()
		}
		for time.Now().Before(end) {
			go use("hasty")
			time.Sleep(250 * time.Millisecond)
			p.mu.Lock()
			n := p.waiting.Len()
			p.mu.Unlock()
			if n > 4+3*4 {
				t.Fatalf("%d wait", n)
			}
		}
		time.Sleep(time.Minute)
		for len(done) > 0 {
			served[<-done]++
		}
		if served["hasty"] < 50 || served["patient"] < 50 {
			t.Errorf("served %v; each has a right to 60", served)
		}
	})
}
