package exchange

import (
	"context"
	"net/netip"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Limiter bounds how often something may happen, by key. It always answers, and within its own time
// limit. An implementation that shares its buckets with other replicas counts locally while they
// cannot be reached. The limit then neither admits all requests nor refuses all. Implementations
// must be safe for concurrent use.
type Limiter interface {
	// Take takes one from the bucket of key and returns 0. If the bucket is empty, it takes none
	// and returns how long it will be until one is available.
	Take(ctx context.Context, key string) time.Duration
}

// LimitError refuses a request because there were too many before it.
type LimitError struct {
	reason refusal.Reason
	what   string
	Wait   time.Duration // until the next request may come
}

// Error does not include the wait, which is in Retry-After. Kubernetes counts equal events on pods
// instead of repeating them.
func (e *LimitError) Error() string { return "too many requests " + e.what + "; try again later" }

// Reason is limited_service_account or limited_address.
func (e *LimitError) Reason() refusal.Reason { return e.reason }

// identityLimit is the limit of an identity, and what was already taken from it.
type identityLimit struct {
	bucket string
	whose  string // in words
	taken  bool
	wait   time.Duration
}

// limitOf returns the limit of a ServiceAccount on its node, or of a CI job's project, because jobs
// are short-lived. A DaemonSet has a pod on every node, and all of them ask at once when a cluster
// recovers. A limit for all of them together would have to grow with the cluster. The node comes
// from the token, so callers cannot choose it. Callers of a ServiceAccount without a known node
// share one limit.
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

// limitServiceAccount takes a request from its limit, unless that was already done.
//
// It runs after every check that refuses an identity as a whole: a caller with a revoked or stolen
// token must not use up the limit of the pods.
func (a *Authorizer) limitServiceAccount(ctx context.Context, limit identityLimit) (Verdict, error) {
	if a.ServiceAccounts == nil {
		return VerdictNotJudged, nil
	}
	if !limit.taken {
		// A canceled request counts too. Its cancellation does not make it exceed the limit.
		limit.wait = a.ServiceAccounts.Take(context.WithoutCancel(ctx), limit.bucket)
	}
	if limit.wait <= 0 {
		return VerdictPassed, nil
	}
	return VerdictRefused, &LimitError{reason: refusal.LimitedServiceAccount, what: limit.whose + " (limits.perServiceAccount)", Wait: limit.wait}
}

// spentBytes bounds the memory of addresses that have spent their limit, to 8,000 addresses. A
// forgotten address gets one more credential verified, and is then remembered again.
const spentBytes = 2 << 20

// addressLimit bounds the cost of requests without a valid credential. They must cost the sender
// more than they cost the server. All nodes of a cluster may share one address, and must not be
// refused because they are many. So
//
//   - a valid credential takes nothing. A credential that fails (400 or 401) takes one from its
//     address afterwards, and a request without a credential takes one beforehand;
//   - an address that has spent its limit is noted until the next one is available. Until then its
//     credentials are refused without verifying a signature or asking a store. Credentials that
//     are remembered as valid still pass, because they cost almost nothing;
//   - the GET with which containerd repeats a refused POST takes nothing and is judged, because
//     containerd shows its response to the user.
//
// Concurrent requests may all pass before the first of them fails. The queue bounds how many. An
// IPv6 /64 counts as one address, because a caller can choose any address within it.
type addressLimit struct{ *AddressLimit }

// check judges a request before its credential is verified and before it enters the queue. It only
// uses the noted addresses. remembers reports whether a credential was valid before.
func (l *addressLimit) check(t *tokenRequest, remembers func(registryauth.Request) bool) error {
	if t.repeats != "" {
		return nil
	}
	wait := l.Wait(Network(t.caller.Address))
	if wait <= 0 || t.parsed.GrantType != registryauth.GrantAnonymous && remembers(t.parsed) {
		return nil
	}
	return tooManyFailures(wait)
}

// charge takes the cost of a request without a credential from its address.
func (l *addressLimit) charge(ctx context.Context, t *tokenRequest) error {
	if t.repeats != "" || t.parsed.GrantType != registryauth.GrantAnonymous {
		return nil
	}
	if wait := l.Take(ctx, Network(t.caller.Address)); wait > 0 {
		return tooManyFailures(wait)
	}
	return nil
}

func tooManyFailures(wait time.Duration) *LimitError {
	return &LimitError{reason: refusal.LimitedAddress, what: "without a good credential from this address (limits.perAddress)", Wait: wait}
}

// failed takes the cost of a refused request from its address.
func (l *addressLimit) failed(t *tokenRequest, c refusal.Class) {
	if !provesNothing(c) {
		return
	}
	if t.repeats != "" || t.parsed.GrantType == registryauth.GrantAnonymous {
		return // it was paid for
	}
	if from := Network(t.caller.Address); l.Wait(from) <= 0 {
		l.Take(t.http.Context(), from)
	}
}

// AddressLimit counts requests without a valid credential by address, and notes the addresses that
// have spent their limit. It is safe for concurrent use.
type AddressLimit struct {
	limiter Limiter
	spent   *lru.Cache[netip.Prefix, spentLimit]
	now     func() time.Time
}

// spentLimit is what is noted of an address that has spent its limit.
type spentLimit struct {
	limiter Limiter // a limiter of other settings has its own waits
	until   time.Time
}

// NewAddressLimit returns a limit that notes spent addresses in memory. Limits with the same memory
// and equal limiters share them. The limiter must be comparable.
func NewAddressLimit(limiter Limiter, memory *Memory, now func() time.Time) *AddressLimit {
	return &AddressLimit{limiter: limiter, spent: memory.spent, now: now}
}

// Take takes one for an address, and returns how long it has to wait if there is none. A canceled
// request counts too, but its cancellation does not mark the address as spent.
func (l *AddressLimit) Take(ctx context.Context, from netip.Prefix) time.Duration {
	wait := l.limiter.Take(context.WithoutCancel(ctx), joined("address", from.String()))
	if wait > 0 {
		l.spent.Add(from, spentLimit{l.limiter, l.now().Add(wait)})
	}
	return wait
}

// Wait returns how long a noted address has to wait.
func (l *AddressLimit) Wait(from netip.Prefix) time.Duration {
	noted, ok := l.spent.Peek(from)
	if !ok || noted.limiter != l.limiter {
		return 0
	}
	return noted.until.Sub(l.now())
}

// Network returns the prefix that counts as one address. Callers without an address share one.
func Network(a netip.Addr) netip.Prefix {
	a = nodeproof.PlainAddress(a)
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for no address
	return p
}
