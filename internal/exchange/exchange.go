package exchange

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
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
	// Scopes maps a service to a function that returns the scopes to judge for the requested
	// scopes. Without a function, the requested scopes are judged unchanged.
	Scopes map[string]func([]registryauth.Scope) []registryauth.Scope
	// Memory is that of the previous Exchanger, if there was one. Issued tokens are remembered for
	// the Issuer that signed them. Changed settings therefore need a new Issuer.
	Memory *Memory
	Now    func() time.Time // nil means time.Now
}

// Exchanger turns requests into tokens. Its settings do not change: a new Exchanger replaces it. It
// is safe for concurrent use.
type Exchanger struct {
	verifier        Verifier
	admission       *Admission
	replay          ReplayMode
	owners          Owners
	serviceAccounts Limiter
	registries      map[string]*registryauth.Issuer
	policy          *policy.Policy
	scopes          map[string]func([]registryauth.Scope) []registryauth.Scope
	issued          *lru.Cache[issuedKey, registryauth.Token]
	sealed          *seal.Box // push credentials
	now             func() time.Time
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
		verifier:        c.Verifier,
		admission:       admission,
		replay:          c.Replay,
		owners:          c.Owners,
		serviceAccounts: c.ServiceAccounts,
		registries:      make(map[string]*registryauth.Issuer, len(c.Registries)),
		policy:          c.Policy,
		scopes:          c.Scopes,
		issued:          c.Memory.issued,
		sealed:          c.Memory.sealed,
		now:             c.Now,
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

// heldByIssued returns the bytes that the cache counts for an entry. It leaves out the key id,
// which is shared by all entries of a signing key.
func heldByIssued(key issuedKey, token registryauth.Token) int {
	return lru.Bytes(len(key.granted)) + lru.Bytes(len(token.Value.Reveal())) + lru.Bytes(registryauth.SecretBytes) + lru.Bytes(len(token.ID))
}

// Policy returns the policy in use.
func (x *Exchanger) Policy() *policy.Policy { return x.policy }

// Authorization is the access of a request: the outcome of Authorize, for Issue.
type Authorization struct {
	subject    policy.Subject
	credential [sha256.Size]byte // its hash; zero for anonymous
	registry   *registryauth.Issuer
	granted    []registryauth.Scope
	lines      string              // the granted scopes as an issuedKey holds them
	token      registryauth.Secret // for a push credential; zero: issue a token
	pushID     string              // of the push credential that was presented
}

// Authorize judges one request: it identifies the caller and decides which scopes are granted. It
// notes its findings in event as it goes, so that the event is complete also when it fails.
//
// Steps run from cheap to expensive. Each has its own error: *UnknownServiceError, *oidc.Error,
// *GoneError, *NodeError, *RevokedError, *ReplayError, *LimitError, *UnavailableError,
// *DeniedError, *AnonymousError, *PushCredentialError. A scope that is not granted is not an error
// (token specification): the token just has less access.
func (x *Exchanger) Authorize(ctx context.Context, req registryauth.Request, caller nodeproof.Caller, event *Event) (Authorization, error) {
	registry, ok := x.registries[req.Service]
	if !ok {
		return Authorization{}, &UnknownServiceError{Service: req.Service}
	}
	event.Service = req.Service

	push, err := x.open(req, registry)
	if err != nil {
		return Authorization{}, err
	}
	subject, err := x.identify(ctx, req, push, caller, event)
	if err != nil {
		return Authorization{}, err
	}

	_, deciding := begin(ctx, stepDecide)
	decision := x.policy.Decide(subject, req.Service, req.Scopes)
	deciding.End()
	if push != nil {
		decision = WithinPush(decision, push.Scopes)
	}
	granted := decision.Granted()
	names := policy.ScopeStrings(granted)
	event.decide(decision, names)
	if err := decisionError(decision, subject); err != nil {
		return Authorization{}, err
	}
	event.unread(req)
	a := Authorization{subject: subject, credential: req.Credential.Hash(), registry: registry, granted: granted, lines: strings.Join(names, "\n")}
	if req.Push {
		a.token = req.Credential
	}
	if push != nil {
		a.pushID = push.ID
	}
	return a, nil
}

// Issue returns a token or a push credential for the scopes that Authorize granted, and notes it in
// event. Its errors are *UnavailableError, *oidc.Error and *PushCredentialError.
func (x *Exchanger) Issue(ctx context.Context, a Authorization, event *Event) (token registryauth.Token, err error) {
	_, issuing := begin(ctx, stepIssue)
	var reused bool
	if a.token.IsZero() {
		token, reused, err = x.issue(a)
	} else {
		token, err = x.issuePush(a)
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

// identify verifies the credential, if there is one, and has its identity admitted. Then it checks
// replay and the limit of the identity. A request that another check refuses does not count towards
// them. An anonymous caller needs no proof.
func (x *Exchanger) identify(ctx context.Context, req registryauth.Request, push *pushCredential, caller nodeproof.Caller, event *Event) (policy.Subject, error) {
	if req.GrantType == registryauth.GrantAnonymous {
		return policy.Subject{}, nil
	}
	verifying, span := begin(ctx, stepVerify)
	var id oidc.Identity
	var err error
	if push != nil {
		id, err = x.verifyPush(verifying, push, event)
	} else {
		id, err = x.verifier.Verify(verifying, req.Credential)
	}
	end(span, err)
	if err != nil {
		var failure *oidc.Error
		if errors.As(err, &failure) {
			event.claim(failure)
		}
		return policy.Subject{}, err
	}
	subject, _, err := x.admission.Admit(ctx, id, req.Credential, caller, event)
	if err != nil {
		return policy.Subject{}, err
	}
	if push != nil {
		if err := x.admission.revokedPush(id, push, event); err != nil {
			return policy.Subject{}, err
		}
	}
	sharing, span := begin(ctx, stepState)
	limit := limitOf(subject.Identity)
	event.Replay, err = x.verifyOwner(sharing, subject.Identity, caller, event.Proof, &limit)
	if err == nil {
		err = x.limitServiceAccount(sharing, limit)
	}
	end(span, err)
	if err != nil {
		return policy.Subject{}, err
	}
	return subject, nil
}

// judged returns the scopes of a request that are to be judged.
func (x *Exchanger) judged(req registryauth.Request) []registryauth.Scope {
	if scopes := x.scopes[req.Service]; scopes != nil {
		return scopes(req.Scopes)
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
// fetch).
func (x *Exchanger) issue(a Authorization) (token registryauth.Token, reused bool, err error) {
	now := x.now()
	keyID, err := a.registry.KeyID()
	if err != nil {
		return registryauth.Token{}, false, issueError(err)
	}
	key := issuedKey{credential: a.credential, registry: a.registry, granted: a.lines, keyID: keyID}
	if token, ok := x.issued.Get(key); ok {
		left := token.Expiry.Sub(now)
		if left >= signing.MinLifetime && 2*left >= token.Expiry.Sub(token.IssuedAt) {
			token.Access = a.granted
			return token, true, nil
		}
	}
	grant := registryauth.Grant{Access: a.granted}
	if id := a.subject.Identity; id != nil {
		grant.Subject, grant.NotAfter = id.Subject, id.Expiry
		if a.registry.NamesHolder() {
			grant.Holder = holder(id, a.pushID)
		}
	}
	token, err = a.registry.Issue(grant)
	if err != nil {
		return registryauth.Token{}, false, issueError(err)
	}
	if len(a.lines) <= maxIssuedScopes {
		kept := token
		kept.Access = nil // the key holds it, and the next request has the same
		x.issued.Add(key, kept)
	}
	return token, false, nil
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
