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
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/seal"
)

const (
	pushPrefix  = "pullpass-push." // no token begins so: it is no base64url of a JSON object
	pushPurpose = "pullpass push credential, v1"
	// pushLifetime is how long after the exchange a push credential counts. BuildKit
	// keeps what a credential helper said for nearly five minutes, and then pushes for
	// some; helpers get a new one each time that they are asked.
	pushLifetime = 15 * time.Minute
)

// pushCredential is what a CI job sends as its password for some minutes. It is the
// job's own token, sealed with what it was exchanged for, and it is judged as that
// token whenever it is presented: by signature, issuer, claims, revocations and the
// policy as they are then. It only counts longer than the token does, and for less.
type pushCredential struct {
	ID     string    `json:"id"` // random; events name it, and it can be revoked as a token's id
	Token  string    `json:"token"`
	Then   time.Time `json:"then"` // when it was exchanged: the token had not ended
	End    time.Time `json:"end"`
	Scopes []string  `json:"scopes"` // what was granted then
}

// PushCredentialError refuses a push credential, or to make one.
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

// ReasonBeyondPush is that of a scope which the policy gives, and the push credential
// that was presented is not for.
const ReasonBeyondPush = "the push credential is not for it"

// WithinPush leaves of a decision what a push credential is for.
func WithinPush(decision policy.Decision, scopes []string) policy.Decision {
	return decision.Within(scopes, ReasonBeyondPush, "exchange the job's token for one that is")
}

// PushPresented is the id of the push credential that a request came with; empty: it
// came with another credential, or with none.
func (e *Event) PushPresented() string {
	if e.PushCredential == e.IssuedID { // it was issued
		return ""
	}
	return e.PushCredential
}

// IsForPush reports whether a request was for a push credential, which it got or not.
func (e *Event) IsForPush() bool {
	if e.PushCredential == "" {
		return e.Reason == reasonPushCredential
	}
	return e.PushPresented() == ""
}

// PushRefusal says why nobody gets a push credential for what was granted, or nil.
func PushRefusal(subject policy.Subject, granted []registryauth.Scope) error {
	switch id := subject.Identity; {
	case id == nil || id.External == nil:
		return errPushPod
	case len(granted) == 0:
		return errPushNone
	}
	return nil
}

// open returns the push credential that a request brings, or nil if it brings
// another one.
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

// verifyPush judges the token in a push credential, as of when it was exchanged.
func (x *Exchanger) verifyPush(ctx context.Context, p *pushCredential, event *Event) (oidc.Identity, error) {
	event.PushCredential = p.ID
	id, err := x.verifier.VerifyThen(ctx, registryauth.NewSecret(p.Token), p.Then)
	id.Expiry = p.End
	return id, err
}

// revokedPush judges the credential's own id: by that of the token in it, and by all
// else, it was judged already.
func (a *Admission) revokedPush(id oidc.Identity, p *pushCredential, event *Event) error {
	id.TokenID = p.ID
	_, err := a.revoked(&id, event)
	return err
}

// issuePush returns a push credential for what was granted.
func (x *Exchanger) issuePush(a Authorization) (registryauth.Token, error) {
	if err := PushRefusal(a.subject, a.granted); err != nil {
		return registryauth.Token{}, err
	}
	now := x.now().UTC()
	p := pushCredential{ID: rand.Text(), Token: a.token.Reveal(), Then: now, End: now.Add(pushLifetime).Truncate(time.Second), Scopes: strings.Split(a.lines, "\n")}
	plain, err := json.Marshal(p)
	if err != nil {
		return registryauth.Token{}, err
	}
	sealed, err := x.sealed.Seal(a.registry.Keys(), string(plain), a.registry.Service(), p.End)
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
