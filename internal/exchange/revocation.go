package exchange

import (
	"fmt"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Revocations knows the targets that operators have revoked for a time: token ids, pods,
// ServiceAccounts and nodes.
//
// It is asked for every request, so it answers from memory. An error means that the revocations are
// unknown. The request is then answered 503, because an identity that may be revoked is granted
// nothing. Implementations must be safe for concurrent use.
type Revocations interface {
	// Revoked returns the revocation that refuses an identity, or nil.
	Revoked(id *oidc.Identity) (*Revocation, error)
}

// Revocation is an operator's refusal of every token that names a target. It is part of an Event.
// The caller is told Reason alone.
type Revocation struct {
	Target string    `json:"target"` // its kind and name, in the form that people write
	By     string    `json:"by"`     // the operator
	Reason string    `json:"reason"`
	Until  time.Time `json:"until"`
}

// RevokedError refuses an identity that an operator has revoked.
type RevokedError struct{ Reason string }

func (e *RevokedError) Error() string { return fmt.Sprintf("revoked by an operator: %q", e.Reason) }

// revoked judges an identity whose node is known if it can be found.
func (a *Admission) revoked(id *oidc.Identity, event *Event) (Verdict, error) {
	if a.revocations == nil {
		return VerdictNotJudged, nil
	}
	revocation, err := a.revocations.Revoked(id)
	if err != nil {
		return "", &UnavailableError{reason: refusal.RevocationsUnavailable, Err: err}
	}
	if revocation == nil {
		return VerdictPassed, nil
	}
	event.Revocation = revocation
	return VerdictRefused, &RevokedError{Reason: revocation.Reason}
}
