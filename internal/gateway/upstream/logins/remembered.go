package logins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unsafe"

	"golang.org/x/sync/singleflight"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// askWithin is the time limit of a call of Ask, with all of its requests.
	askWithin = 15 * time.Second
	// maxAsking bounds the callers whose logins are requested at a time. Half as many may be of one
	// namespace. Clouds count requests.
	maxAsking = 32

	// A login is renewed when a tenth of its lifetime is left, but at most renewBefore.
	renewBefore = 5 * time.Minute
	// renewAgain is the time from a failed renewal to the next attempt.
	renewAgain = 30 * time.Second
	// askAgain is the shortest time between requests for the same caller without a usable login,
	// because clients repeat a failed pull at once.
	askAgain = 5 * time.Second

	maxLoginBytes    = 8 << 20  // of all logins of an upstream, some thousand
	maxRejectedBytes = 64 << 10 // of hashes of rejected logins
	maxPasswordBytes = 32 << 10 // far longer than the tokens of clouds
)

// Assertions issues assertions that tell a cloud which ServiceAccount is the caller. Package
// internal/registryauth/assertion implements it.
type Assertions interface {
	// Sign returns an assertion for the audience about the caller,
	// CLUSTER/NAMESPACE/SERVICEACCOUNT. It must be exchanged within a minute. For an
	// anonymous caller it returns an error.
	Sign(caller, audience string) (registryauth.Secret, error)
}

// Ask gets a new login, before ctx ends. caller is empty if all callers have the same login, or if
// the caller is anonymous. Its errors hold no secret.
type Ask func(ctx context.Context, caller string) (upstream.Login, error)

// Config configures Remembered.
type Config struct {
	Upstream  string // its name, for messages
	Ask       Ask
	PerCaller bool // each caller has its own login; false: all have the same
	Now       func() time.Time
	Logger    *slog.Logger // nil: silent
}

// Remembered keeps logins until shortly before they expire. For a caller it makes one request at a
// time, and at most one every five seconds. While a login is usable, callers do not wait for its
// renewal.
type Remembered struct {
	cfg      Config
	known    *lru.Shared[string, *known]    // by namespace
	rejected *lru.Cache[[32]byte, struct{}] // by the hash of the password
	flights  singleflight.Group
	places   *places
}

var _ upstream.Logins = (*Remembered)(nil)

// known is the immutable result of one request.
type known struct {
	login     upstream.Login // zero: there is none
	renewFrom time.Time      // zero: there is no need to
	askedAt   time.Time
	err       error // nil: it succeeded
}

// bytes returns the size of k, as package lru counts it.
func (k *known) bytes() int {
	bytes := lru.Bytes(int(unsafe.Sizeof(*k))) + lru.Bytes(registryauth.SecretBytes) + lru.Bytes(len(k.login.Username)) + lru.Bytes(len(k.login.Password.Reveal()))
	if k.err != nil {
		bytes += lru.Bytes(len(k.err.Error()))
	}
	return bytes
}

// New returns an empty Remembered.
func New(cfg Config) *Remembered {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Remembered{
		cfg:      cfg,
		known:    lru.NewShared(maxLoginBytes, func(caller string, k *known) int { return lru.Bytes(len(caller)) + k.bytes() }),
		rejected: lru.New[[32]byte, struct{}](maxRejectedBytes, nil),
		places:   newPlaces(maxAsking),
	}
}

// Login returns the known login, or waits for one. It implements upstream.Logins.
func (r *Remembered) Login(ctx context.Context, caller string) (upstream.Login, error) {
	switch {
	case !r.cfg.PerCaller:
		caller = ""
	case caller == "":
		return upstream.Login{}, upstream.ErrNoCaller
	}
	now := r.cfg.Now()
	have, _ := r.known.Get(caller)
	usable := r.usable(have, now)
	if usable && !have.isDue(now) {
		return have.login, nil
	}
	if have != nil && !usable && !have.hasEnded(now) && now.Sub(have.askedAt) < askAgain {
		// No other login can be requested yet. A rejected one is returned too, because the upstream may accept
		// it again.
		return have.login, have.err
	}
	flight := r.flights.DoChan(caller, func() (any, error) {
		return r.renew(context.WithoutCancel(ctx), caller, have), nil
	})
	if usable {
		return have.login, nil
	}
	select {
	case <-ctx.Done():
		return upstream.Login{}, fmt.Errorf("a login for %s: %w", r.cfg.Upstream, context.Cause(ctx))
	case result := <-flight:
		got := result.Val.(*known)
		return got.login, got.err
	}
}

// Reject marks the login as unusable. It implements upstream.Logins.
func (r *Remembered) Reject(login upstream.Login) {
	r.rejected.Add(login.Password.Hash(), struct{}{})
}

func (r *Remembered) usable(k *known, now time.Time) bool {
	if k == nil || k.login.Password.IsZero() || k.hasEnded(now) {
		return false
	}
	_, rejected := r.rejected.Peek(k.login.Password.Hash())
	return !rejected
}

func (k *known) hasEnded(now time.Time) bool {
	return !k.login.Expiry.IsZero() && !now.Before(k.login.Expiry)
}

// isDue reports whether a usable login is to be renewed now.
func (k *known) isDue(now time.Time) bool {
	if k.err != nil && now.Sub(k.askedAt) < renewAgain {
		return false
	}
	return !k.renewFrom.IsZero() && !now.Before(k.renewFrom)
}

// renew requests a login, unless a concurrent call has replaced had since.
func (r *Remembered) renew(ctx context.Context, caller string, had *known) *known {
	if have, _ := r.known.Peek(caller); have != nil && have != had {
		return have
	}
	login, err := r.ask(ctx, caller)
	now := r.cfg.Now()
	next := &known{login: login, askedAt: now}
	switch {
	case err == nil:
		// A rejected login that is issued again is the only one: some clouds issue the same login
		// until shortly before its expiry. The upstream may accept it again.
		r.rejected.Remove(login.Password.Hash())
		if !login.Expiry.IsZero() {
			left := login.Expiry.Sub(now)
			next.renewFrom = login.Expiry.Add(-min(left/10, renewBefore))
		}
	case r.usable(had, now):
		next.login, next.renewFrom, next.err = had.login, had.renewFrom, err
		r.cfg.Logger.Warn("a login for an upstream could not be renewed; the last one is used until it ends",
			"upstream", r.cfg.Upstream, "caller", caller, "until", had.login.Expiry, "error", err)
		r.known.Add(namespaceOf(caller), caller, next)
		return next
	default:
		next.login, next.err = upstream.Login{}, err
	}
	r.known.Add(namespaceOf(caller), caller, next)
	return next
}

func (r *Remembered) ask(ctx context.Context, caller string) (upstream.Login, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, fmt.Errorf("it took longer than %s: %w", askWithin, context.DeadlineExceeded))
	defer cancel()
	leave, err := r.places.enter(ctx, caller)
	if err != nil {
		return upstream.Login{}, fmt.Errorf("a login for %s: %w", r.cfg.Upstream, err)
	}
	defer leave()
	login, err := r.cfg.Ask(ctx, caller)
	if err == nil {
		err = r.verifyLogin(login)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return upstream.Login{}, fmt.Errorf("a login for %s: %w", r.cfg.Upstream, err)
	}
	return login, nil
}

func (r *Remembered) verifyLogin(login upstream.Login) error {
	switch {
	case login.Password.IsZero():
		return errors.New("the answer has none")
	case len(login.Password.Reveal())+len(login.Username) > maxPasswordBytes:
		return fmt.Errorf("the one in the answer is longer than %d bytes", maxPasswordBytes)
	case !login.Expiry.IsZero() && !login.Expiry.After(r.cfg.Now()):
		return fmt.Errorf("the one in the answer ended at %s; are the clocks right?", login.Expiry.UTC().Format(time.RFC3339))
	}
	return nil
}
