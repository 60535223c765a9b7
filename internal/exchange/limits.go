package exchange

import (
	"context"
	"net/netip"
	"time"

	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Limiter bounds how often something may happen, by key. It always answers,
// and within its own time limit: an implementation that shares its buckets with
// other replicas counts by itself while they cannot be reached. A limit is then
// neither open to everybody nor closed to all. Implementations must be safe for
// concurrent use.
type Limiter interface {
	// Take takes one from the bucket of key and returns 0; or it takes none and
	// returns how long it will be until one is there.
	Take(ctx context.Context, key string) time.Duration
}

// LimitError refuses a request because there were too many before it.
type LimitError struct {
	reason string
	what   string
	Wait   time.Duration // until the next one may come
}

// Error does not say how long to wait, which is in Retry-After: events on pods
// that are the same are counted and not repeated.
func (e *LimitError) Error() string { return "too many requests " + e.what + "; try again later" }

// Reason is limited_service_account or limited_address.
func (e *LimitError) Reason() string { return e.reason }

// identityLimit is the limit of an identity, and what was taken of it already.
type identityLimit struct {
	bucket string
	whose  string // in words
	taken  bool
	wait   time.Duration
}

// limitOf returns the limit of a ServiceAccount on its node, or of the project
// whose job it is: jobs come and go. A DaemonSet has a pod
// on every node, and when a cluster comes back, they all ask at once: a limit for
// all of them together would have to grow with the cluster. The node is the token's,
// so that nobody chooses it; those whose node nobody knows have one limit together.
func limitOf(id *oidc.Identity) identityLimit {
	if x := id.External; x != nil {
		return identityLimit{bucket: joined("identity", x.Provider, x.Project), whose: "of this identity's project"}
	}
	k := &id.Kubernetes
	if k.Node == (oidc.ObjectRef{}) {
		return identityLimit{bucket: joined("serviceAccount", id.Cluster, k.Namespace, k.ServiceAccount.Name, k.ServiceAccount.UID), whose: "of this ServiceAccount"}
	}
	return identityLimit{
		bucket: joined("serviceAccount", id.Cluster, k.Namespace, k.ServiceAccount.Name, k.ServiceAccount.UID, k.Node.Name, k.Node.UID),
		whose:  "of this ServiceAccount on its node",
	}
}

// limitServiceAccount takes a request from its limit, unless that was done.
//
// It comes after everything that refuses an identity as a whole: who holds a revoked
// or a stolen token must not use up what the pods need.
func (x *Exchanger) limitServiceAccount(ctx context.Context, limit identityLimit) error {
	if !limit.taken {
		// A caller that hangs up pays all the same, and was not one too many.
		limit.wait = x.serviceAccounts.Take(context.WithoutCancel(ctx), limit.bucket)
	}
	if limit.wait <= 0 {
		return nil
	}
	return &LimitError{reason: reasonServiceAccountLimit, what: limit.whose + " (limits.perServiceAccount)", Wait: limit.wait}
}

// spentBytes bounds the addresses that are known to have spent their limit, to
// 8,000. One that is forgotten has another credential checked, and is back.
const spentBytes = 2 << 20

// addressLimit bounds what strangers make of us: garbage must cost those who
// send it more than it costs us. Behind one address may be all nodes of a
// cluster, which must not be starved by their own number. So
//
//   - a good credential takes nothing. One that fails (400 or 401) takes one from
//     its address afterwards, and a request without any takes one beforehand;
//   - an address that has spent its limit is noted until the next one is there.
//     Until then its credentials are refused before any signature is checked,
//     and without a question to a store, save those that are remembered as good:
//     they cost next to nothing;
//   - the GET with which containerd repeats a refused POST takes nothing and is
//     judged: its answer is the one that people are shown.
//
// Requests that are worked on at the same time may all pass before the first of
// them fails; the queue bounds how many. Of IPv6, a /64 counts as one
// address: a caller can choose freely within it.
type addressLimit struct{ *AddressLimit }

// check judges a request before its credential is, and before it has a place in
// the queue: by what is noted alone. remembers says whether a credential was good
// before.
func (l *addressLimit) check(t *tokenRequest, remembers func(registryauth.Request) bool) error {
	if t.event.Retry {
		return nil
	}
	wait := l.Wait(Network(t.caller.Address))
	if wait <= 0 || t.parsed.GrantType != registryauth.GrantAnonymous && remembers(t.parsed) {
		return nil
	}
	return tooManyFailures(wait)
}

// charge takes what a request without a credential costs its address.
func (l *addressLimit) charge(ctx context.Context, t *tokenRequest) error {
	if t.event.Retry || t.parsed.GrantType != registryauth.GrantAnonymous {
		return nil
	}
	if wait := l.Take(ctx, Network(t.caller.Address)); wait > 0 {
		return tooManyFailures(wait)
	}
	return nil
}

func tooManyFailures(wait time.Duration) *LimitError {
	return &LimitError{reason: reasonAddressLimit, what: "without a good credential from this address (limits.perAddress)", Wait: wait}
}

// failed takes what a refused request costs its address.
func (l *addressLimit) failed(t *tokenRequest, c class) {
	if !c.provesNothing() {
		return
	}
	if t.event.Retry || t.parsed.GrantType == registryauth.GrantAnonymous {
		return // it was paid for
	}
	if from := Network(t.caller.Address); l.Wait(from) <= 0 {
		l.Take(t.http.Context(), from)
	}
}

// AddressLimit counts what strangers cost, by their address, and notes which have
// spent their limit. It is safe for concurrent use.
type AddressLimit struct {
	limiter Limiter
	spent   *lru.Cache[netip.Prefix, time.Time] // until when
	now     func() time.Time
}

// NewAddressLimit returns a limit that notes in memory who has spent it, so that it is
// the same for all that share that. now nil means time.Now.
func NewAddressLimit(limiter Limiter, memory *Memory, now func() time.Time) *AddressLimit {
	if now == nil {
		now = time.Now
	}
	return &AddressLimit{limiter: limiter, spent: memory.spent, now: now}
}

// Take takes one for an address, and returns how long it has to wait if there is none.
// A caller that hangs up pays all the same, and does not make the address one that has
// spent its limit.
func (l *AddressLimit) Take(ctx context.Context, from netip.Prefix) time.Duration {
	wait := l.limiter.Take(context.WithoutCancel(ctx), joined("address", from.String()))
	if wait > 0 {
		l.spent.Add(from, l.now().Add(wait))
	}
	return wait
}

// Wait returns how long the address has to wait, as far as that is noted.
func (l *AddressLimit) Wait(from netip.Prefix) time.Duration {
	until, ok := l.spent.Peek(from)
	if !ok {
		return 0
	}
	return until.Sub(l.now())
}

// Network is what counts as one address. All that have none are one.
func Network(a netip.Addr) netip.Prefix {
	a = nodeproof.PlainAddress(a)
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for no address
	return p
}
