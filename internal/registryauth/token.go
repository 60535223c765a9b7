package registryauth

import "time"

// Grant holds the contents of one token.
type Grant struct {
	Subject  string    // system:serviceaccount:NAMESPACE:NAME, IDENTITY/sub, or empty for anonymous
	Access   []Scope   // granted, may be empty; no scope without actions
	NotAfter time.Time // expiry of the incoming token; zero: no own limit (anonymous)
	Holder   *Holder   // identity of the incoming token; nil: anonymous
}

// Holder is the identity for which a token was issued. Only the gateway, a registry that is part of
// Pullpass, reads it. It checks the holder's revocations and names the holder in its events.
type Holder struct {
	// A ServiceAccount.
	Cluster           string `json:"cluster,omitempty"`
	Namespace         string `json:"namespace,omitempty"`
	ServiceAccount    string `json:"serviceAccount,omitempty"`
	ServiceAccountUID string `json:"serviceAccountUID,omitempty"`
	Pod               string `json:"pod,omitempty"`
	PodUID            string `json:"podUID,omitempty"`
	Node              string `json:"node,omitempty"`
	NodeUID           string `json:"nodeUID,omitempty"`
	// Or another identity: identities[].name, and the ids by which it can be revoked.
	Identity string `json:"identity,omitempty"`
	Project  string `json:"project,omitempty"`
	Run      string `json:"run,omitempty"`
	// PushCredential is the id of the push credential that was presented instead of the token.
	PushCredential string `json:"pushCredential,omitempty"`

	TokenID string `json:"tokenID"` // jti of the incoming token
}

// Token is one issued token.
type Token struct {
	Value    Secret // the compact JWT, or a push credential
	Push     bool   // it is a push credential
	ID       string // jti, random
	KeyID    string // RFC 7638 thumbprint of the signing key; empty for a push credential
	IssuedAt time.Time
	Expiry   time.Time
	Access   []Scope
}

// Failure is an error response, ready to be written.
type Failure struct {
	Status     int           // HTTP status
	Code       string        // registry error code: UNAUTHORIZED, DENIED, TOOMANYREQUESTS, UNAVAILABLE, UNKNOWN, …
	OAuthError string        // RFC 6749 error code, used for POST
	Message    string        // for the user
	Detail     any           // optional; must be safe to show
	RetryAfter time.Duration // Retry-After header if positive, rounded up to seconds
	BasicRealm string        // WWW-Authenticate: Basic realm="…" if not empty
}
