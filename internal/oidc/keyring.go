package oidc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/refusal"
)

const (
	// fetchTimeout bounds one fetch as a whole.
	fetchTimeout = 10 * time.Second

	// demandInterval is the least time between two fetches that tokens with an unknown kid cause.
	// Up to demandJitter is added, so that replicas do not ask together.
	demandInterval = 10 * time.Second
	demandJitter   = 2 * time.Second

	// maxWait is how long a token waits for a fetch that is under way.
	maxWait = 5 * time.Second

	// MaxWaiting is how many tokens of one issuer wait at a time. Forged tokens wait as well. They
	// must not fill all request slots of the server while issuers hang.
	MaxWaiting = 64

	networkInterval = 5 * time.Minute
	fileInterval    = 10 * time.Second
	firstRetry      = time.Second

	maxCauseBytes = 512

	tracerName = "github.com/pullpass/pullpass/internal/oidc"
)

// keyring holds the keys of one issuer and decides when to fetch them. It knows
// nothing of other issuers, so one that hangs delays its own tokens only.
type keyring struct {
	fetch    func(context.Context) (map[string]*key, error)
	interval time.Duration // between background fetches
	maxAge   time.Duration
	now      func() time.Time
	log      *slog.Logger

	current atomic.Pointer[keySet] // nil before the first good fetch

	waiting atomic.Int64

	mu        sync.Mutex
	running   <-chan struct{} // closed at the end of the running fetch; nil: none is running
	startedAt time.Time       // of the most recent fetch
	pause     time.Duration   // after startedAt, before a token may cause the next one
	lastErr   error           // of the most recent finished fetch; nil if it was good
	fetches   uint64
	failures  uint64
}

// believed returns the keys that are valid now. It returns nil if none were fetched, or if all
// fetches failed for longer than maxAge.
func (r *keyring) believed(now time.Time) *keySet {
	set := r.current.Load()
	if set == nil || now.Sub(set.fetchedAt) > r.maxAge {
		return nil
	}
	return set
}

// find returns the key with this id. If the id is unknown, the keys are fetched again, unless that
// was tried a moment ago. Any number of invented ids causes one fetch per interval, because the
// interval belongs to the issuer, not to the token.
//
// If the issuer does not publish the key, the reason is refusal.TokenUnknownKey. If the issuer could not
// be asked, the reason is refusal.IssuerUnavailable, because the key may be new.
func (r *keyring) find(ctx context.Context, id string) (*key, refusal.Reason, error) {
	if k := r.believed(r.now()).find(id); k != nil {
		return k, "", nil
	}
	waitErr := r.fetchOnDemand(ctx)
	set := r.believed(r.now())
	if k := set.find(id); k != nil {
		return k, "", nil
	}
	if waitErr != nil {
		return nil, refusal.IssuerUnavailable, waitErr
	}
	r.mu.Lock()
	lastErr := r.lastErr
	r.mu.Unlock()
	switch {
	case lastErr != nil:
		return nil, refusal.IssuerUnavailable, lastErr
	case set == nil:
		return nil, refusal.IssuerUnavailable, errors.New("the keys were not fetched again for longer than discovery.maxKeyAge")
	}
	return nil, refusal.TokenUnknownKey, nil
}

// fetchOnDemand starts a fetch if none is running and the last one is long enough ago. Then it
// waits for the running fetch. The error says why the caller did not wait until its end.
func (r *keyring) fetchOnDemand(ctx context.Context) error {
	r.mu.Lock()
	done := r.running
	if done == nil {
		elapsed := r.now().Sub(r.startedAt)
		if elapsed >= 0 && elapsed < r.pause {
			r.mu.Unlock()
			return nil
		}
		done = r.start()
	}
	r.mu.Unlock()

	if r.waiting.Add(1) > MaxWaiting {
		r.waiting.Add(-1)
		return errors.New("the keys are still being fetched, and too many tokens wait for them")
	}
	defer r.waiting.Add(-1)
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, "wait for keys")
	defer span.End()
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, errors.New("the keys are still being fetched"))
	defer cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refresh fetches the keys, or waits for the fetch that is running.
func (r *keyring) refresh(ctx context.Context) error {
	r.mu.Lock()
	done := r.running
	if done == nil {
		done = r.start()
	}
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastErr
}

// start begins a fetch. The caller holds mu. The fetch has its own time limit, because it must not
// end with the request that happened to cause it.
func (r *keyring) start() <-chan struct{} {
	done := make(chan struct{})
	r.running = done
	r.startedAt = r.now()
	r.pause = demandInterval + jitter(demandJitter)
	r.fetches++
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		keys, err := r.fetch(ctx)
		r.finish(keys, err)
		close(done)
	}()
	return done
}

// finish replaces the keys after a successful fetch, so that withdrawn keys are refused at once.
// After a failed fetch it keeps the keys.
func (r *keyring) finish(keys map[string]*key, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = nil
	previousErr := r.lastErr
	set := r.current.Load()
	if err != nil {
		r.failures++
		r.lastErr = bounded(err)
		if previousErr == nil || previousErr.Error() != r.lastErr.Error() {
			r.log.Warn("fetching the issuer's keys failed", "cause", r.lastErr, "keys", set.size())
		}
		return
	}
	r.lastErr = nil
	set = newKeySet(keys, set, r.now())
	r.current.Store(set)
	level := slog.LevelDebug
	if previousErr != nil {
		level = slog.LevelInfo
	}
	r.log.Log(context.Background(), level, "fetched the issuer's keys", "keys", set.size())
}

// run fetches at once and then at every interval until ctx ends. After a
// failure it tries again sooner.
func (r *keyring) run(ctx context.Context) {
	retry := firstRetry
	for {
		wait := r.interval
		if err := r.refresh(ctx); err != nil {
			wait = min(retry, r.interval)
			retry = 2 * wait
		} else {
			retry = firstRetry
		}
		timer := time.NewTimer(wait - jitter(wait/5))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (r *keyring) status() IssuerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := IssuerStatus{Keys: r.believed(r.now()).size(), Fetches: r.fetches, Failures: r.failures}
	if set := r.current.Load(); set != nil {
		s.FetchedAt = set.fetchedAt
	}
	if r.lastErr != nil {
		s.LastFailure = r.lastErr.Error()
	}
	return s
}

// bounded cuts the cause of a failure, which can repeat text of a server.
func bounded(err error) error {
	if s := err.Error(); len(s) > maxCauseBytes {
		return errors.New(strings.ToValidUTF8(s[:maxCauseBytes], "") + "...")
	}
	return err
}

// jitter returns a random part of limit. It is not a secret, but math/rand is not used in this
// package.
func jitter(limit time.Duration) time.Duration {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return time.Duration(binary.LittleEndian.Uint64(b[:]) % uint64(max(limit, 1)))
}
