package logins

import (
	"context"
	"strings"
	"sync"
)

// places bounds how many callers' logins are requested at a time, in total and for each namespace.
// If a cloud responds slowly for the callers of one namespace, the others must not wait. It is safe
// for concurrent use.
type places struct {
	all chan struct{}

	mu         sync.Mutex
	namespaces map[string]*namespacePlaces
}

type namespacePlaces struct {
	places chan struct{}
	users  int // that hold a place or wait for one
}

func newPlaces(most int) *places {
	return &places{all: make(chan struct{}, most), namespaces: map[string]*namespacePlaces{}}
}

// enter waits for a place, and returns a function that gives it back. The error is the cause of
// ctx's end.
func (p *places) enter(ctx context.Context, caller string) (leave func(), err error) {
	namespace := namespaceOf(caller)
	p.mu.Lock()
	own := p.namespaces[namespace]
	if own == nil {
		own = &namespacePlaces{places: make(chan struct{}, max(cap(p.all)/2, 1))}
		p.namespaces[namespace] = own
	}
	own.users++
	p.mu.Unlock()
	forget := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(p.namespaces, namespace)
		}
	}
	select {
	case own.places <- struct{}{}:
	case <-ctx.Done():
		forget()
		return nil, context.Cause(ctx)
	}
	select {
	case p.all <- struct{}{}:
	case <-ctx.Done():
		<-own.places
		forget()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-p.all
		<-own.places
		forget()
	}, nil
}

// namespaceOf returns CLUSTER/NAMESPACE of a caller.
func namespaceOf(caller string) string { return caller[:max(strings.LastIndexByte(caller, '/'), 0)] }
