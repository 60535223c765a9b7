package oidc

import (
	"errors"

	"github.com/pullpass/pullpass/internal/refusal"
)

// ErrInvalidToken and ErrUnavailable are the two kinds of failure that a caller must distinguish.
// The first is final for the token. The second may be temporary.
var (
	ErrInvalidToken = errors.New("invalid token")
	ErrUnavailable  = errors.New("issuer keys unavailable")
)

// Claimed holds the claims of a refused token. They are not proven unless Error.Verified is set.
// They help an operator to find the client and must never be used for a decision. Each value is cut
// to a bounded length.
type Claimed struct {
	Issuer         string
	Subject        string
	TokenID        string
	Namespace      string
	ServiceAccount ObjectRef
	Pod            ObjectRef
	Node           ObjectRef
	Secret         string // legacy tokens: the Secret that holds the token
}

// Error is the type of every failure of Verify. It matches ErrUnavailable when Reason is
// refusal.IssuerUnavailable, and ErrInvalidToken otherwise.
type Error struct {
	Reason   refusal.Reason
	Message  string // for the caller: which claim or setting, and the remedy; never the token
	Cluster  string // set once the issuer is known to be the issuer of a cluster
	Provider string // likewise, if the issuer has a Provider
	Claimed  Claimed
	Verified bool  // the signature of the refused token is valid (legacy tokens)
	Err      error // the cause, for the log only; may be nil
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the kind of this failure.
func (e *Error) Is(target error) bool {
	if e.Reason == refusal.IssuerUnavailable {
		return target == ErrUnavailable
	}
	return target == ErrInvalidToken
}
