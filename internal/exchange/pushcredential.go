package exchange

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/seal"
)

const (
	pushPrefix  = "pullpass-push." // a token never starts like this: it is not base64url of a JSON object
	pushPurpose = "pullpass push credential, v1"
	// PushLifetime is how long after the exchange a push credential is valid. BuildKit keeps the
	// output of a credential helper for nearly five minutes, and then pushes for some minutes. A
	// helper gets a new credential for each call.
	PushLifetime = 15 * time.Minute
)

// pushCredential is a password that a CI job sends for some minutes. It holds the job's own token,
// sealed with the grants of its exchange. Whenever it is presented, that token is judged by
// signature, issuer, claims, revocations and policy as they are then. A push credential only lives
// longer than its token, and grants less.
type pushCredential struct {
	PushRights
	Token string    `json:"token"`
	Then  time.Time `json:"then"` // the time of the exchange: the token had not expired
	End   time.Time `json:"end"`
}

// PushRights are the rights of a push credential.
type PushRights struct {
	ID     string   `json:"id"`     // random; events contain it, and it can be revoked like a token's id
	Scopes []string `json:"scopes"` // granted at the exchange
}

// limit returns the part of a decision that the push credential covers; nil: none was presented.
func (p *PushRights) limit(d policy.Decision) policy.Decision {
	if p == nil {
		return d
	}
	return d.Within(p.Scopes, ReasonBeyondPush, "exchange the job's token for one that is")
}

// PushCredentialError refuses a push credential, or refuses to issue one.
type PushCredentialError struct{ Message string }

func (e *PushCredentialError) Error() string { return e.Message }

var (
	errPushSealed = &PushCredentialError{"the push credential has ended, or is not for this service; exchange the job's token for a new one"}
	errPushAgain  = &PushCredentialError{"a push credential cannot be exchanged for another; send the job's own token"}
	errPushPod    = &PushCredentialError{"push credentials are for identities[] alone; a ServiceAccount's token is a password itself, and can be asked to live long enough"}
	errPushNone   = &PushCredentialError{"nothing of what was asked for is granted, so that a push credential would open nothing; see the audit log for why"}
	errPushLong   = &PushCredentialError{"the token is too long to be sealed in a push credential"}
)

// IsPushCredential reports whether a password looks like one.
func IsPushCredential(password string) bool { return strings.HasPrefix(password, pushPrefix) }

// ReasonBeyondPush is the reason for a scope that the policy grants and the presented push
// credential does not cover.
const ReasonBeyondPush = "the push credential is not for it"

// PushPresented returns the id of the push credential that the request was sent with; empty: the
// request had a different credential, or none.
func (e *Event) PushPresented() string {
	if e.PushCredential == e.IssuedID { // it was issued
		return ""
	}
	return e.PushCredential
}

// IsForPush reports whether a request was for a push credential, granted or not.
func (e *Event) IsForPush() bool {
	if e.PushCredential == "" {
		return e.Reason == string(refusal.PushCredential)
	}
	return e.PushPresented() == ""
}

// PushRefusal says why no push credential is issued for the granted scopes, or returns nil.
func (a *Authorization) PushRefusal() error {
	switch id := a.subject.Identity; {
	case id == nil || id.External == nil:
		return errPushPod
	case len(a.granted) == 0:
		return errPushNone
	}
	return nil
}

// open returns the push credential of a request, or nil if the credential is of a different kind.
func (x *Exchanger) open(req registryauth.Request, keys *registryauth.Issuer) (*pushCredential, error) {
	sealed, ok := strings.CutPrefix(req.Credential.Reveal(), pushPrefix)
	if !ok {
		return nil, nil
	}
	if req.Push {
		return nil, errPushAgain
	}
	plain, err := x.sealed.Open(keys.Keys(), sealed, req.Service, x.now())
	switch {
	case errors.Is(err, seal.ErrSealed):
		return nil, errPushSealed
	case err != nil:
		return nil, issueError(err)
	}
	var p pushCredential
	if err := json.Unmarshal([]byte(plain), &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// verifyPush verifies the token in a push credential as of the time of its exchange.
func (x *Exchanger) verifyPush(ctx context.Context, p *pushCredential, event *Event) (oidc.Identity, error) {
	event.PushCredential = p.ID
	id, err := x.verifier.VerifyThen(ctx, registryauth.NewSecret(p.Token), p.Then)
	id.Expiry = p.End
	return id, err
}

// revokedPush checks revocations of the push credential's own id. Admit has checked the token's id
// and all other targets.
func (a *Admission) revokedPush(id oidc.Identity, p *PushRights, event *Event) (Verdict, error) {
	id.TokenID = p.ID
	return a.revoked(&id, event)
}

// issuePush returns a push credential for the granted scopes.
func (x *Exchanger) issuePush(req registryauth.Request, a *Authorization) (registryauth.Token, error) {
	if err := a.PushRefusal(); err != nil {
		return registryauth.Token{}, err
	}
	now := x.now().UTC()
	p := pushCredential{PushRights: PushRights{rand.Text(), a.names}, Token: req.Credential.Reveal(), Then: now, End: now.Add(PushLifetime).Truncate(time.Second)}
	plain, err := json.Marshal(p)
	if err != nil {
		return registryauth.Token{}, err
	}
	sealed, err := x.sealed.Seal(x.registries[req.Service].Keys(), string(plain), req.Service, p.End)
	if err != nil {
		return registryauth.Token{}, issueError(err)
	}
	if len(pushPrefix)+len(sealed) > registryauth.MaxTokenBytes {
		return registryauth.Token{}, errPushLong
	}
	return registryauth.Token{
		Value: registryauth.NewSecret(pushPrefix + sealed), Push: true, ID: p.ID, IssuedAt: now, Expiry: p.End, Access: a.granted,
	}, nil
}
