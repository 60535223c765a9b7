package exchange

import (
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Result is the outcome of one request in one word. The set is closed because it is a metric label.
type Result string

// The results.
const (
	ResultGranted     Result = "granted"     // all scopes of the request; also a login
	ResultPartial     Result = "partial"     // fewer scopes than requested
	ResultNone        Result = "none"        // a valid token that opens nothing
	ResultRefused     Result = "refused"     // no token: credential or subject refused, or too many requests
	ResultInvalid     Result = "invalid"     // not a token request
	ResultUnavailable Result = "unavailable" // a dependency of the response is down
	ResultError       Result = "error"       // a fault of Pullpass
)

// Object names a Kubernetes object in an Event.
type Object struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// Identity names a caller that is not a ServiceAccount in an Event.
type Identity struct {
	Name    string `json:"name"`              // identities[].name
	Subject string `json:"subject,omitempty"` // sub of the issued token: NAME/sub; empty for a token that was refused
	Project string `json:"project,omitempty"` // the id of its repository or project, as it can be revoked
	Run     string `json:"run,omitempty"`     // the id of the CI run
	// Claims are those that the profile names, as policies compare them.
	Claims map[string]string `json:"claims,omitempty"`
}

// Event is the record of one request: one line of the audit log. It never holds a token. Fields are
// present only when known.
type Event struct {
	Time    time.Time `json:"time"`
	ID      string    `json:"id"`                // of this request, random
	TraceID string    `json:"traceID,omitempty"` // of the trace that the request is part of; the caller may have chosen it
	Result  Result    `json:"result"`
	Status  int       `json:"status"`
	// Reason is a word of the catalogue (package refusal). Message explains it to people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`

	// The identity, proven by the token's signature.
	Cluster        string  `json:"cluster,omitempty"`
	Namespace      string  `json:"namespace,omitempty"`
	ServiceAccount *Object `json:"serviceAccount,omitempty"`
	Pod            *Object `json:"pod,omitempty"`
	Node           *Object `json:"node,omitempty"`
	// Identity is the caller if it is not a ServiceAccount.
	Identity *Identity `json:"identity,omitempty"`
	// NodeFromAPI marks a node that is not in the token: the API server named it
	// for the token's pod.
	NodeFromAPI bool `json:"nodeFromAPI,omitempty"`
	// PullSecret is the Secret that held the token. Such a token proves neither a pod nor a node,
	// and can only pull.
	PullSecret *Object `json:"pullSecret,omitempty"`
	// CredentialID is JTI=<jti>, as the API server's audit log writes it in
	// authentication.kubernetes.io/credential-id (KEP-4193).
	CredentialID string `json:"credentialID,omitempty"`
	// Claimed holds the unproven claims of a refused token.
	Claimed *Claimed `json:"claimed,omitempty"`

	// The request and its outcome.
	Service   string       `json:"service,omitempty"`
	GrantType string       `json:"grantType,omitempty"`
	Requested []string     `json:"requested,omitempty"` // the scopes that were read; malformed ones come last
	Omitted   int          `json:"omitted,omitempty"`   // scopes asked for before these, which were not read
	Granted   []string     `json:"granted,omitempty"`
	Rule      string       `json:"rule,omitempty"` // the rules that granted, or the one that denied; comma-separated
	Scopes    []ScopeEvent `json:"scopes,omitempty"`
	Trial     *Trial       `json:"trial,omitempty"`    // what the policy that is only tried would have decided, if that differs
	IssuedID  string       `json:"issuedID,omitempty"` // jti of the issued token
	Reused    bool         `json:"reused,omitempty"`   // the issued token was issued before
	// PushCredential is the id of the push credential that was presented or issued.
	PushCredential string `json:"pushCredential,omitempty"`

	// Gateway describes a request to the gateway; nil: it was a token request.
	Gateway *GatewayRequest `json:"gateway,omitempty"`

	// The origin of the request. Only the address is trusted.
	Caller string `json:"caller,omitempty"` // IP address
	// Proof says whether the caller proved to be the node; nil: no proof was required.
	Proof *nodeproof.Proof `json:"proof,omitempty"`
	// Replay says whether the caller was the first to present this token; nil: not checked.
	Replay *Replay `json:"replay,omitempty"`
	// Revocation is the revocation that refused the request.
	Revocation *Revocation `json:"revocation,omitempty"`

	Client   string `json:"client,omitempty"` // User-Agent
	ClientID string `json:"clientID,omitempty"`
	Account  string `json:"account,omitempty"`
	// Retry marks the GET with which containerd repeats a refused POST, if it is refused for the same
	// reason. It is the same attempt and must not be counted again.
	Retry bool `json:"retry,omitempty"`

	Latency float64 `json:"latency"` // seconds
}

// GatewayRequest describes a request to the gateway and its outcome at the upstream.
type GatewayRequest struct {
	Method     string `json:"method"`
	Upstream   string `json:"upstream,omitempty"`   // upstreams[].name
	Repository string `json:"repository,omitempty"` // as policies name it, with the upstream
	Kind       string `json:"kind,omitempty"`
	Reference  string `json:"reference,omitempty"` // tag or digest; of an upload, the digest of the blob that it mounts
	Digest     string `json:"digest,omitempty"`    // of a manifest that was pulled or pushed: as the upstream says, or else as requested; of what was sent, if the upstream did not take it
	// Tags are the requested tags of a manifest that was pushed by its digest.
	Tags    []string `json:"tags,omitempty"`
	TokenID string   `json:"tokenID,omitempty"` // jti of the gateway's token: issuedID of the line that issued it
	// UpstreamStatus is the status of the upstream's response. It is zero if the upstream was not
	// asked or did not respond.
	UpstreamStatus int    `json:"upstreamStatus,omitempty"`
	RedirectHost   string `json:"redirectHost,omitempty"` // the host alone: the rest of the address may be signed
	Sent           int64  `json:"sent,omitempty"`         // bytes of the body, to the client
	Received       int64  `json:"received,omitempty"`     // bytes of the body, from the client
}

// Trial is a decision of the policy that is only tried, in the words of an Event.
type Trial struct {
	Result  Result   `json:"result"`
	Granted []string `json:"granted,omitempty"`
	Rule    string   `json:"rule,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// TrialChange reports whether the trial grants something that was not granted, and the other way
// round. Without a trial, both are false.
func (e *Event) TrialChange() (gained, lost bool) {
	if e.Trial == nil {
		return false, false
	}
	if refused := e.Result == ResultRefused; refused != (e.Trial.Result == ResultRefused) {
		return refused, !refused
	}
	now, next := scopesOf(e.Granted), scopesOf(e.Trial.Granted)
	return exceeds(next, now), exceeds(now, next)
}

func scopesOf(texts []string) (scopes []registryauth.Scope) {
	for _, text := range texts {
		scope, _ := registryauth.ParseScope(text) // a redacted one has no actions
		scopes = append(scopes, scope)
	}
	return scopes
}

// ScopeEvent says why one requested scope was not granted in full.
type ScopeEvent struct {
	Scope   string   `json:"scope"`
	Granted []string `json:"granted,omitempty"` // actions
	Rules   []string `json:"rules,omitempty"`
	Reason  string   `json:"reason"`
	Remedy  string   `json:"remedy,omitempty"`
}

// Claimed holds the unproven claims of a refused token. Verified is set if at least the signature
// is good (a legacy token).
type Claimed struct {
	Issuer       string `json:"issuer,omitempty"`
	Subject      string `json:"subject,omitempty"`
	CredentialID string `json:"credentialID,omitempty"`
	Pod          string `json:"pod,omitempty"`
	Node         string `json:"node,omitempty"`
	Secret       string `json:"secret,omitempty"`
	Verified     bool   `json:"verified,omitempty"`
}

// ClaimedBy returns the claims of a refused token, or nil if it has none that an event records.
func ClaimedBy(failure *oidc.Error) *Claimed {
	c := failure.Claimed
	claimed := Claimed{
		Issuer:       c.Issuer,
		Subject:      c.Subject,
		CredentialID: credentialID(c.TokenID),
		Pod:          c.Pod.Name,
		Node:         c.Node.Name,
		Secret:       c.Secret,
		Verified:     failure.Verified,
	}
	if claimed == (Claimed{}) {
		return nil
	}
	return &claimed
}

// IssuerName is that of Identity.IssuerName, proven or not; empty: not known.
func (e *Event) IssuerName() string {
	if e.Identity != nil {
		return e.Identity.Name
	}
	return e.Cluster
}

func object(ref oidc.ObjectRef) *Object {
	if ref == (oidc.ObjectRef{}) {
		return nil
	}
	return &Object{Name: ref.Name, UID: ref.UID}
}

func credentialID(jti string) string {
	if jti == "" {
		return ""
	}
	return "JTI=" + jti
}

// Recorder receives the event of every request, after the response was decided. Implementations
// must be safe for concurrent use and delay a response for a bounded time at most. An event that
// cannot be written does not fail the exchange, so implementations count their own failures. The
// event does not change after Record is called.
type Recorder interface {
	Record(*Event)
}
