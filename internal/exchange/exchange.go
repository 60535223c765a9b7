package exchange

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/seal"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// Verifier authenticates a ServiceAccount token. Its errors are *oidc.Error. Any other error counts
// as an internal error and grants nothing.
type Verifier interface {
	Verify(ctx context.Context, credential oidc.Credential) (oidc.Identity, error)
	// Remembers reports whether Verify would accept a token at almost no cost, because it accepted
	// the token before.
	Remembers(credential oidc.Credential) bool
	// VerifyThen verifies a token as of an earlier time. The token may have expired since.
	VerifyThen(ctx context.Context, credential oidc.Credential, then time.Time) (oidc.Identity, error)
}

// Config configures an Exchanger.
type Config struct {
	Verifier        Verifier
	Objects         Objects               // nil: nothing is known of any object
	Nodes           map[string]NodeChecks // by cluster; an absent cluster has no checks
	Revocations     Revocations
	Replay          ReplayMode
	Owners          Owners // of token ids; Owners, Limiter and Revocations cover the same replicas; nil: Replay is off
	ServiceAccounts Limiter
	Registries      []*registryauth.Issuer
	Policy          *policy.Policy
	Trial           *policy.Policy // decides nothing; nil: only objects may be tried
	// Scopes maps a service to a function that returns the scopes to judge for the scopes that a
	// client requests at a host. Without a function, the requested scopes are judged unchanged.
	Scopes map[string]func(host string, requested []registryauth.Scope) []registryauth.Scope
	// Memory is that of the previous Exchanger, if there was one. Issued tokens are remembered for
	// the Issuer that signed them. Changed settings therefore need a new Issuer.
	Memory *Memory
	Now    func() time.Time // nil means time.Now
}

// Exchanger turns requests into tokens. Its settings do not change: a new Exchanger replaces it. It
// is safe for concurrent use.
type Exchanger struct {
	authorizer Authorizer
	verifier   Verifier
	registries map[string]*registryauth.Issuer
	policy     *policy.Policy
	trial      *policy.Policy
	scopes     map[string]func(host string, requested []registryauth.Scope) []registryauth.Scope
	issued     *lru.Cache[issuedKey, registryauth.Token]
	sealed     *seal.Box // push credentials
	now        func() time.Time
}

// issuedKey holds everything that the content of a token depends on, except the clock: the
// credential (and with it the subject and the expiry), the registry, the grants, and the signing
// key. A caller with the same credential and the same grants may have the same token. No other
// caller can have it.
type issuedKey struct {
	credential [sha256.Size]byte // its hash; zero for anonymous
	registry   *registryauth.Issuer
	granted    string // canonical scopes, one a line: a scope holds no newline
	keyID      string
	issuer     string // the name of the cluster or identity, which a new configuration can change; empty for anonymous
	named      string // at the gateway, what else of the holder can become known or change: node, project, run
}

// maxIssuedScopes is the maximum size of the scopes of a remembered token, in bytes. A client
// chooses its scopes, and must not evict the tokens of other clients. The scopes of a pull are a
// quarter as long.
const maxIssuedScopes = 512

// New returns an Exchanger. Every field that is not optional must be set.
func New(c Config) (*Exchanger, error) {
	if c.Verifier == nil || c.Revocations == nil || c.ServiceAccounts == nil || c.Policy == nil || c.Memory == nil || len(c.Registries) == 0 {
		return nil, errors.New("exchange: a verifier, revocations, a limit of ServiceAccounts, a policy, a memory and at least one registry are required")
	}
	switch c.Replay {
	case ReplayOff:
	case ReplayAudit, ReplayEnforce:
		if c.Owners == nil {
			return nil, fmt.Errorf("exchange: replay in mode %s needs owners", c.Replay)
		}
	default:
		return nil, fmt.Errorf("exchange: unknown mode of replay %s", term.QuoteName(string(c.Replay)))
	}
	admission, err := NewAdmission(AdmissionConfig{Objects: c.Objects, Nodes: c.Nodes, Revocations: c.Revocations, Memory: c.Memory, Now: c.Now})
	if err != nil {
		return nil, err
	}
	x := &Exchanger{
		verifier:   c.Verifier,
		registries: make(map[string]*registryauth.Issuer, len(c.Registries)),
		policy:     c.Policy,
		trial:      c.Trial,
		scopes:     c.Scopes,
		issued:     c.Memory.issued,
		sealed:     c.Memory.sealed,
		now:        c.Now,
	}
	x.authorizer = Authorizer{
		Serves:          func(service string) bool { return x.registries[service] != nil },
		Identify:        x.identify,
		Admission:       admission,
		Replay:          c.Replay,
		Owners:          c.Owners,
		ServiceAccounts: c.ServiceAccounts,
		Decide:          c.Policy.Decide,
		Try:             x.try,
	}
	if x.now == nil {
		x.now = time.Now
	}
	for _, r := range c.Registries {
		if _, twice := x.registries[r.Service()]; twice {
			return nil, fmt.Errorf("exchange: service %q is configured twice", r.Service())
		}
		x.registries[r.Service()] = r
	}
	return x, nil
}

// heldByIssued returns the bytes that the cache counts for an entry. It leaves out the key id
// and the issuer's name, which many entries share.
func heldByIssued(key issuedKey, token registryauth.Token) int {
	return lru.Bytes(len(key.granted)) + lru.Bytes(len(key.named)) + lru.Bytes(len(token.Value.Reveal())) + lru.Bytes(registryauth.SecretBytes) + lru.Bytes(len(token.ID))
}

// try decides by the trial, or by the policy if only objects are tried.
func (x *Exchanger) try(subject policy.Subject, service string, requested []registryauth.Scope) (policy.Decision, bool) {
	next := x.trial
	switch {
	case subject.Objects.Trial != nil:
		subject.Objects.Policies = subject.Objects.Trial
		next = cmp.Or(next, x.policy)
	case next == nil:
		return policy.Decision{}, false
	}
	return next.Decide(subject, service, requested), true
}

// Policy returns the policy in use.
func (x *Exchanger) Policy() *policy.Policy { return x.policy }

// Issue returns a token or a push credential for the scopes that Authorize granted, and notes it in
// event. Its errors are *UnavailableError, *oidc.Error and *PushCredentialError.
func (x *Exchanger) Issue(ctx context.Context, req registryauth.Request, a *Authorization, event *Event) (token registryauth.Token, err error) {
	_, issuing := begin(ctx, stepIssue)
	var reused bool
	if req.Push {
		token, err = x.issuePush(req, a)
	} else {
		token, reused, err = x.issue(req, a)
	}
	end(issuing, err)
	if err != nil {
		return registryauth.Token{}, err
	}
	event.IssuedID, event.Reused = token.ID, reused
	if token.Push {
		event.PushCredential = token.ID
	}
	return token, nil
}

// identify verifies the credential of a request, or the token in its push credential.
func (x *Exchanger) identify(ctx context.Context, req registryauth.Request, event *Event) (oidc.Identity, *PushRights, error) {
	push, err := x.open(req, x.registries[req.Service])
	if err != nil {
		return oidc.Identity{}, nil, err
	}
	ctx, span := begin(ctx, stepVerify)
	if push != nil {
		id, err := x.verifyPush(ctx, push, event)
		end(span, err)
		return id, &push.PushRights, err
	}
	id, err := x.verifier.Verify(ctx, req.Credential)
	end(span, err)
	return id, nil, err
}

// judged returns the scopes of a request at a host that are to be judged.
func (x *Exchanger) judged(host string, req registryauth.Request) []registryauth.Scope {
	if scopes := x.scopes[req.Service]; scopes != nil {
		return scopes(host, req.Scopes)
	}
	return req.Scopes
}

// remembers reports whether the credential of a request was valid before. A push credential counts
// if it was sealed here.
func (x *Exchanger) remembers(req registryauth.Request) bool {
	if registry := x.registries[req.Service]; registry != nil {
		if push, err := x.open(req, registry); push != nil || err != nil {
			return err == nil
		}
	}
	return x.verifier.Remembers(req.Credential)
}

// issue returns the token that was last issued for the same key, if enough of its lifetime is left:
// at least half of it, and the 60 seconds that clients count on. A pull asks twice (resolve, then
// fetch). A token of the future, from before the clock was set back, is refused by registries.
func (x *Exchanger) issue(req registryauth.Request, a *Authorization) (token registryauth.Token, reused bool, err error) {
	now, registry := x.now(), x.registries[req.Service]
	keyID, err := registry.KeyID()
	if err != nil {
		return registryauth.Token{}, false, issueError(err)
	}
	key := issuedKey{credential: req.Credential.Hash(), registry: registry, granted: strings.Join(a.names, "\n"), keyID: keyID}
	if id := a.subject.Identity; id != nil {
		if key.issuer = id.Cluster; id.External != nil {
			key.issuer = id.External.Provider
		}
		if registry.NamesHolder() {
			h := holder(id, "")
			key.named = strings.Join([]string{h.Node, h.NodeUID, h.Project, h.Run}, "\n")
		}
	}
	if token, ok := x.issued.Get(key); ok {
		left := token.Expiry.Sub(now)
		if !now.Before(token.IssuedAt) && left >= signing.MinLifetime && 2*left >= token.Expiry.Sub(token.IssuedAt) && !x.isRevoked(registry, token.ID) {
			token.Access = a.granted
			return token, true, nil
		}
	}
	grant := registryauth.Grant{Access: a.granted}
	if id := a.subject.Identity; id != nil {
		grant.Subject, grant.NotAfter = id.Subject, id.Expiry
		if registry.NamesHolder() {
			grant.Holder = holder(id, a.pushID)
		}
	}
	token, err = registry.Issue(grant)
	if err != nil {
		return registryauth.Token{}, false, issueError(err)
	}
	if len(key.granted) <= maxIssuedScopes {
		kept := token
		kept.Access = nil // the key holds it, and the next request has the same
		x.issued.Add(key, kept)
	}
	return token, false, nil
}

// isRevoked reports whether the gateway would refuse a token by its own id, or may do so. Other
// registries do not ask.
func (x *Exchanger) isRevoked(registry *registryauth.Issuer, tokenID string) bool {
	if !registry.NamesHolder() {
		return false
	}
	revocation, err := x.authorizer.Admission.revocations.Revoked(&oidc.Identity{TokenID: tokenID})
	return revocation != nil || err != nil
}

func holder(id *oidc.Identity, pushID string) *registryauth.Holder {
	if x := id.External; x != nil {
		return &registryauth.Holder{Identity: x.Provider, Project: x.Project, Run: x.Run, TokenID: id.TokenID, PushCredential: pushID}
	}
	k := &id.Kubernetes
	return &registryauth.Holder{
		Cluster: id.Cluster, Namespace: k.Namespace, ServiceAccount: k.ServiceAccount.Name, ServiceAccountUID: k.ServiceAccount.UID,
		Pod: k.Pod.Name, PodUID: k.Pod.UID, Node: k.Node.Name, NodeUID: k.Node.UID, TokenID: id.TokenID,
	}
}

// issueError converts a missing signing key and an expired token to their own errors. Other errors
// are internal and returned unchanged.
func issueError(err error) error {
	switch {
	case errors.Is(err, signing.ErrNoSigningKey):
		return &UnavailableError{reason: refusal.SigningKeyUnavailable, Err: err}
	case errors.Is(err, registryauth.ErrGrantEnded):
		return &oidc.Error{Reason: refusal.TokenExpired, Message: "the token has just expired; ask for a new one"}
	}
	return err
}
