package oidc

import "errors"

// ErrInvalidToken and ErrUnavailable are the two kinds of failure that a caller must distinguish.
// The first is final for the token. The second may be temporary.
var (
	ErrInvalidToken = errors.New("invalid token")
	ErrUnavailable  = errors.New("issuer keys unavailable")
)

// Reason is the short, stable name of the cause of a refusal. It is a metric label and appears in
// the audit log, so the set is closed.
type Reason string

// The reasons, in the order in which Verify checks them.
const (
	ReasonMalformed     Reason = "token_malformed"
	ReasonLegacy        Reason = "token_legacy" // secret-based token, KEP-2799
	ReasonUnknownIssuer Reason = "token_unknown_issuer"
	ReasonAlgorithm     Reason = "token_algorithm"
	ReasonHeader        Reason = "token_header" // crit, b64, jku, x5u, jwk, x5c
	ReasonClaims        Reason = "token_claims" // a claim is missing, of the wrong type, or contradicts another
	ReasonAudience      Reason = "token_audience"
	ReasonExpired       Reason = "token_expired"
	ReasonNotYetValid   Reason = "token_not_yet_valid"
	ReasonLifetime      Reason = "token_lifetime"
	ReasonNotBound      Reason = "token_not_bound"
	ReasonPullSecret    Reason = "token_pull_secret" // its namespace is not one whose pull secrets are accepted
	ReasonNoNode        Reason = "token_no_node"
	ReasonRequire       Reason = "token_require" // a claim is not what identities[].require says, as in another tenant's token
	ReasonUnavailable   Reason = "issuer_unavailable"
	ReasonUnknownKey    Reason = "token_unknown_key"
	ReasonSignature     Reason = "token_signature"
)

// Reasons returns every Reason.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformed, ReasonLegacy, ReasonUnknownIssuer, ReasonAlgorithm, ReasonHeader, ReasonClaims, ReasonAudience,
		ReasonExpired, ReasonNotYetValid, ReasonLifetime, ReasonNotBound, ReasonPullSecret, ReasonNoNode, ReasonRequire,
		ReasonUnavailable, ReasonUnknownKey, ReasonSignature,
	}
}

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
// ReasonUnavailable, and ErrInvalidToken otherwise.
type Error struct {
	Reason   Reason
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
	if e.Reason == ReasonUnavailable {
		return target == ErrUnavailable
	}
	return target == ErrInvalidToken
}
