package oidc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
)

// ClockSkew is how far the clock of an issuer may be ahead of the local clock. It does not apply to
// exp: a token is never accepted after its expiry.
const ClockSkew = time.Minute

// usualTokenBytes is more than the size of tokens of API servers.
const usualTokenBytes = 2 << 10

// Credential is a token in compact serialization, as a caller presented it.
type Credential interface {
	Reveal() string
	Hash() [sha256.Size]byte // SHA-256 of what Reveal returns
}

// Verifier authenticates tokens of the configured issuers. It is safe for
// concurrent use.
type Verifier struct {
	issuers []*issuer
	byURL   map[string]*issuer
	cache   *cache
	now     func() time.Time
	log     *slog.Logger
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

type issuer struct {
	Issuer
	keys *keyring
}

// New checks the configuration and reports all of its faults in one error. It opens no file and
// uses no network. While a key source cannot be read, tokens of its issuer fail with
// refusal.IssuerUnavailable.
func New(c Config) (*Verifier, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return newVerifier(c.Issuers, &Verifier{cache: newCache(c.CacheBytes), now: c.Now, log: c.Logger, dial: c.Dial})
}

// WithIssuers returns a Verifier for other issuers, and checks them like New. It shares the cache
// of verified tokens with v. For each issuer whose settings are the same, it also shares keys and
// other state. v does not change.
func (v *Verifier) WithIssuers(issuers []Issuer) (*Verifier, error) {
	if err := (Config{Issuers: issuers}).validate(); err != nil {
		return nil, err
	}
	return newVerifier(issuers, v)
}

func newVerifier(issuers []Issuer, before *Verifier) (*Verifier, error) {
	v := &Verifier{byURL: map[string]*issuer{}, cache: before.cache, now: before.now, log: before.log, dial: before.dial}
	for _, settings := range issuers {
		i, err := v.newIssuer(settings, before.byURL[settings.URL])
		if err != nil {
			return nil, err
		}
		v.issuers = append(v.issuers, i)
		v.byURL[i.URL] = i
	}
	return v, nil
}

// newIssuer returns before, which may be nil, if none of its settings changed. Accepted tokens are
// remembered by the address of their issuer.
func (v *Verifier) newIssuer(settings Issuer, before *issuer) (*issuer, error) {
	if before != nil && reflect.DeepEqual(before.Issuer, settings) {
		return before, nil
	}
	settings.Audiences, settings.PullSecrets.Namespaces = slices.Clone(settings.Audiences), slices.Clone(settings.PullSecrets.Namespaces)
	if before != nil && before.name() == settings.name() && before.Discovery == settings.Discovery && before.MaxKeyAge == settings.MaxKeyAge {
		return &issuer{settings, before.keys}, nil
	}
	keys := &keyring{
		maxAge: settings.MaxKeyAge,
		now:    v.now,
		log:    v.log.With(settings.kind(), settings.name(), "issuer", settings.URL),
	}
	if file := settings.Discovery.JWKSFile; file != "" {
		keys.fetch, keys.interval = fileSource(file).fetch, fileInterval
	} else {
		source, err := newNetworkSource(settings, v.dial)
		if err != nil {
			return nil, err
		}
		keys.fetch, keys.interval = source.fetch, networkInterval
	}
	return &issuer{settings, keys}, nil
}

// Run fetches the keys of every issuer at once and refreshes them until ctx
// ends. Without it, keys are fetched only when a token needs them. Failures are
// logged and shown by Status.
func (v *Verifier) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, i := range v.issuers {
		running.Go(func() { i.keys.run(ctx) })
	}
	running.Wait()
}

// Fetch fetches the keys of every issuer now. It returns when each fetch has succeeded or failed,
// or when ctx ends. Status reports the results.
func (v *Verifier) Fetch(ctx context.Context) {
	v.fetch(ctx, func(*keyring) bool { return true })
}

// FetchFirst is Fetch for the issuers whose first fetch has not ended.
func (v *Verifier) FetchFirst(ctx context.Context) {
	v.fetch(ctx, func(r *keyring) bool { s := r.status(); return s.FetchedAt.IsZero() && s.Failures == 0 })
}

func (v *Verifier) fetch(ctx context.Context, wanted func(*keyring) bool) {
	var fetching sync.WaitGroup
	for _, i := range v.issuers {
		if wanted(i.keys) {
			fetching.Go(func() { _ = i.keys.refresh(ctx) })
		}
	}
	fetching.Wait()
}

// Status returns the state of each issuer's keys, in configured order.
func (v *Verifier) Status() []IssuerStatus {
	all := make([]IssuerStatus, len(v.issuers))
	for n, i := range v.issuers {
		all[n] = i.keys.status()
		all[n].Name, all[n].Issuer = i.name(), i.URL
	}
	return all
}

// Verify checks a token and returns the identity that it proves. Every failure is an *Error.
//
// A token that was accepted before is accepted again without a check of its signature, as long as
// it has not expired and its key is published. A token with an unknown key may wait some seconds
// for a fetch. ctx can shorten that wait.
func (v *Verifier) Verify(ctx context.Context, credential Credential) (Identity, error) {
	raw, hash, now := credential.Reveal(), credential.Hash(), v.now()
	if known, ok := v.remembered(hash, now); ok {
		return known.identity, nil
	}
	accepted, refused := v.verify(ctx, raw, now)
	if refused != nil {
		return Identity{}, refused
	}
	v.cache.add(hash, accepted)
	return accepted.identity, nil
}

// VerifyThen is Verify at an earlier moment, at which the token was accepted before. It ignores an
// expiry after that moment and makes all other checks. It does not remember the token.
func (v *Verifier) VerifyThen(ctx context.Context, credential Credential, then time.Time) (Identity, error) {
	accepted, refused := v.verify(ctx, credential.Reveal(), then)
	if refused != nil {
		return Identity{}, refused
	}
	return accepted.identity, nil
}

// Remembers reports whether Verify would accept a token now without checking its signature, because
// it was accepted before.
func (v *Verifier) Remembers(credential Credential) bool {
	_, ok := v.remembered(credential.Hash(), v.now())
	return ok
}

// remembered returns the token if an issuer accepted it with its present configuration.
func (v *Verifier) remembered(hash [sha256.Size]byte, now time.Time) (verified, bool) {
	found, ok := v.cache.find(hash, now)
	return found, ok && v.byURL[found.issuer.URL] == found.issuer
}

// verify makes cheap checks first. Checks that need a key, and perhaps the network, are last.
func (v *Verifier) verify(ctx context.Context, raw string, now time.Time) (*verified, *Error) {
	t, refused := parse(raw)
	if refused != nil {
		return nil, refused
	}
	if t.claims.isLegacy() {
		return nil, v.refuseLegacy(t, now)
	}
	i := v.byURL[t.claims.Issuer]
	if i == nil {
		return nil, refuseIssuer(&t.claims)
	}
	accepted, refused := i.verify(ctx, t, now)
	if refused != nil {
		refused.Cluster, refused.Claimed = i.Cluster, t.claims.claimed()
		if i.Provider != nil {
			refused.Provider = i.Provider.Name
		}
		return nil, refused
	}
	return accepted, nil
}

func refuseIssuer(c *claims) *Error {
	if c.Issuer == "" {
		return &Error{Reason: refusal.TokenClaims, Claimed: c.claimed(), Message: "the token's " + missing("iss")}
	}
	return &Error{
		Reason: refusal.TokenUnknownIssuer, Claimed: c.claimed(),
		Message: fmt.Sprintf("the token's issuer %s is not configured here; "+
			"it must equal that of a cluster (its API server's --service-account-issuer) or of an identity exactly", quote(c.Issuer)),
	}
}

func (i *issuer) verify(ctx context.Context, t *token, now time.Time) (*verified, *Error) {
	algorithm, keyID, refused := t.checkHeader(i.ignoredHeader()...)
	if refused != nil {
		return nil, refused
	}
	id, refused := i.verifyClaims(t, now)
	if refused != nil {
		return nil, refused
	}
	k, reason, err := i.keys.find(ctx, keyID)
	switch reason {
	case refusal.IssuerUnavailable:
		return nil, &Error{
			Reason: reason, Err: err,
			Message: "the signing keys of " + i.title() + " cannot be read at the moment; try again later",
		}
	case refusal.TokenUnknownKey:
		return nil, &Error{
			Reason: reason,
			Message: fmt.Sprintf("the token's key %s is not one that issuer %s publishes; "+
				"if the issuer has just changed its key, try again in some seconds", quote(keyID), quote(i.URL)),
		}
	}
	if k.algorithm != algorithm {
		return nil, &Error{
			Reason:  refusal.TokenAlgorithm,
			Message: fmt.Sprintf("the token's algorithm is %s, but its key is for %s", algorithm, k.algorithm),
		}
	}
	if !k.verify(t.signed, t.signature) {
		return nil, &Error{Reason: refusal.TokenSignature, Message: "the token's signature is wrong"}
	}
	id.Cluster, id.Issuer = i.Cluster, i.URL
	return &verified{identity: id, notBefore: t.claims.notBefore(), issuer: i, key: k}, nil
}

// verifyClaims returns the identity of valid claims. It is not proven yet.
func (i *issuer) verifyClaims(t *token, now time.Time) (Identity, *Error) {
	if i.Provider != nil {
		return i.verifyExternal(t, now)
	}
	if fault := t.claims.fault(); fault != "" {
		return Identity{}, &Error{Reason: refusal.TokenClaims, Message: "the token's " + fault}
	}
	for _, check := range [...]func(*issuer, *claims, time.Time) *Error{
		(*issuer).verifyAudience, (*issuer).verifyTime, (*issuer).verifyLifetime, (*issuer).verifyBinding, (*issuer).verifyNode,
	} {
		if refused := check(i, &t.claims, now); refused != nil {
			return Identity{}, refused
		}
	}
	id := t.claims.identity()
	if i.inSecret(&t.claims) {
		id.Kubernetes.Secret = t.claims.Kubernetes.Secret.ref()
	}
	return id, nil
}
