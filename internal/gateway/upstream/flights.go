package upstream

import (
	"context"
	"sync"
)

// flights lets concurrent callers with the same key wait for one request. The request continues
// when its first caller hangs up, because others wait for it. It ends when no caller waits any
// more. Otherwise a caller that asks and hangs up repeatedly would leave any number of requests
// behind.
type flights[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]*flight[V]
}

type flight[V any] struct {
	done    chan struct{} // closed when value is set
	value   V
	waiting int
	cancel  context.CancelFunc
}

// do returns the result of ask, which is called once for all callers that wait for key. The error
// is that of ctx.
func (f *flights[K, V]) do(ctx context.Context, key K, ask func(context.Context) V) (V, error) {
	f.mu.Lock()
	one := f.all[key]
	if one == nil {
		asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one = &flight[V]{done: make(chan struct{}), cancel: cancel}
		if f.all == nil {
			f.all = map[K]*flight[V]{}
		}
		f.all[key] = one
		go func() {
			defer cancel()
			one.value = ask(asking)
			f.mu.Lock()
			f.forget(key, one)
			f.mu.Unlock()
			close(one.done)
		}()
	}
	one.waiting++
	f.mu.Unlock()
	select {
	case <-one.done:
		return one.value, nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.waiting--; one.waiting == 0 {
		f.forget(key, one)
		one.cancel()
	}
	var none V
	return none, ctx.Err()
}

// forget must be called with the lock held.
func (f *flights[K, V]) forget(key K, one *flight[V]) {
	if f.all[key] == one {
		delete(f.all, key)
	}
}
