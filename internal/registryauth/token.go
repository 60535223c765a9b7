package registryauth

import "time"

// Grant is what one token is to say.
type Grant struct {
	Subject  string    // system:serviceaccount:NAMESPACE:NAME, IDENTITY/sub, or empty for anonymous
	Access   []Scope   // granted, may be empty; no scope without actions
	NotAfter time.Time // the end of the incoming token; zero: no limit of its own (anonymous)
	Holder   *Holder   // whom the incoming token identifies; nil: nobody (anonymous)
}

// Holder is whom a token was issued to, for a registry that is Pullpass itself: the
// gateway. It knows by it whom operators have revoked, and whom to name in its events.
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
	// Or somebody else: identities[].name, and what of it can be revoked.
	Identity string `json:"identity,omitempty"`
	Project  string `json:"project,omitempty"`
	Run      string `json:"run,omitempty"`
	// PushCredential is the id of the one that was presented instead of the token.
	PushCredential string `json:"pushCredential,omitempty"`

	TokenID string `json:"tokenID"` // jti of the incoming token
}

// Token is one issued token.
type Token struct {
	Value    Secret // the compact JWT, or a push credential
	Push     bool   // it is a push credential
	ID       string // jti, random
	KeyID    string // RFC 7638 thumbprint of the key that signed it; of a push credential empty
	IssuedAt time.Time
	Expiry   time.Time
	Access   []Scope
}

// Failure is an error answer, ready to be written.
type Failure struct {
	Status     int           // HTTP status
	Code       string        // registry error code: UNAUTHORIZED, DENIED, TOOMANYREQUESTS, UNAVAILABLE, UNKNOWN, …
	OAuthError string        // RFC 6749 error code, used for POST
	Message    string        // for the user
	Detail     any           // optional; must be safe to show
	RetryAfter time.Duration // Retry-After header if positive, rounded up to seconds
	BasicRealm string        // WWW-Authenticate: Basic realm="…" if not empty
}
