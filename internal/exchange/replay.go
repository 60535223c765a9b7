package exchange

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Owners remembers the first user of a key. An error means that the owner is unknown now. The
// Authorizer decides the outcome of the request then. Implementations must be safe for concurrent
// use and return within their own time limit.
type Owners interface {
	// Own makes owner the owner of key until the given time, unless it has one, and returns the
	// current owner.
	//
	// bucket is the bucket from which the owner will Take. An implementation that keeps buckets in
	// the same store may take from it in the same call, for the owner alone. The result says
	// whether it did.
	Own(ctx context.Context, key, owner string, until time.Time, bucket string) (Owned, error)
}

// Owned is the result of Own.
type Owned struct {
	Owner string
	Taken bool          // whether Own took from the bucket too
	Wait  time.Duration // as Take returns it
}

// ReplayMode decides what happens to a caller that presents a token after a different caller did.
type ReplayMode string

// The modes.
const (
	ReplayOff     ReplayMode = "off"
	ReplayAudit   ReplayMode = "audit"   // grant, but record the refusal of enforce
	ReplayEnforce ReplayMode = "enforce" // refuse
)

// Values returns all modes.
func (ReplayMode) Values() []ReplayMode { return []ReplayMode{ReplayOff, ReplayAudit, ReplayEnforce} }

// ReplayReason says in one word why a caller did not pass. The set is closed because it is a metric
// label.
type ReplayReason string

// The reasons.
const (
	ReplayOtherCaller   ReplayReason = "other_caller"
	ReplayCallerUnknown ReplayReason = "caller_unknown" // the caller has no address of its own
	ReplayUnavailable   ReplayReason = "unavailable"    // the owner is unknown
)

// Replay says whether a caller was the first to present its token. Both callers are named
// node/NAME/UID if they proved to be the token's node, or else address/IP.
type Replay struct {
	Mode   ReplayMode `json:"mode"`
	Passed bool       `json:"passed"`
	Owner  string     `json:"owner,omitempty"`  // the first caller
	Caller string     `json:"caller,omitempty"` // this caller
	// Reason says in one word why the caller did not pass. Message says more.
	Reason  ReplayReason `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
}

// ReplayError refuses a caller that is not the first to present its token, or that cannot be
// identified.
type ReplayError struct {
	reason            refusal.Reason
	message, operator string
}

func (e *ReplayError) Error() string { return e.message }

// Reason is token_replayed or caller_unknown.
func (e *ReplayError) Reason() refusal.Reason { return e.reason }

// verifyOwner makes the first caller of a token id its owner until the token expires, and refuses
// every other caller. The kubelet gives a token to the runtime of its own node alone. All requests
// of a pull, including repeated ones, therefore come from one caller.
//
// The best known fact about a caller identifies it. A caller that proved to be the token's node is
// that node, whichever of its addresses it uses. It is also still the caller at its address, which
// it was before node.proof was switched on, or before it had a certificate. Any other caller is its whole address, also for
// IPv6, because all nodes of a network share one /64. Address translation weakens this: nodes
// behind the same translator look like one, and a node behind several looks like several.
//
// If Owners took from the limit in the same call, that is noted in limit.
func (a *Authorizer) verifyOwner(ctx context.Context, id *oidc.Identity, caller nodeproof.Caller, proof *nodeproof.Proof, limit *identityLimit) (*Replay, Verdict, error) {
	switch {
	case a.Replay == ReplayOff, id.InSecret(): // every node of a namespace may present a token from a Secret
		return nil, VerdictOff, nil
	case a.Owners == nil:
		return nil, VerdictNotJudged, nil
	}
	r := &Replay{Mode: a.Replay, Caller: ownerOf(id, proof, caller)}
	if r.Caller == "" {
		r.Reason = ReplayCallerUnknown
		r.Message = "it cannot be said whether the caller is the first one that presented this token (state.replay): its address is not known, " +
			"or is that of a trusted proxy; let the proxy send X-Forwarded-For, or leave it out of trustedProxies if it is a node"
		return r.notPassed(refusal.CallerUnknown)
	}
	until := id.Expiry
	if id.External != nil {
		until = until.Add(PushLifetime) // its push credentials expire later
	}
	// A canceled request is recorded as the owner too. Its cancellation must not look like a
	// failure of the store of owners.
	owned, err := a.Owners.Own(context.WithoutCancel(ctx), joined(id.IssuerName(), id.TokenID), r.Caller, until, limit.bucket)
	owner := owned.Owner
	limit.taken, limit.wait = owned.Taken, owned.Wait
	switch {
	case err != nil:
		r.Reason, r.Message = ReplayUnavailable, err.Error()
		if r.Mode == ReplayEnforce {
			return r, "", &UnavailableError{reason: refusal.ReplayUnavailable, Err: err}
		}
		return r, VerdictNoted, nil
	case owner != r.Caller && owner != addressOf(caller):
		r.Owner, r.Reason = owner, ReplayOtherCaller
		r.Message = fmt.Sprintf("%s presented this token, which is that of %s (state.replay)", r.Caller, owner)
		return r.notPassed(refusal.TokenReplayed)
	}
	r.Owner, r.Passed = owner, true
	return r, VerdictPassed, nil
}

// notPassed refuses a caller, if the mode says so.
func (r *Replay) notPassed(reason refusal.Reason) (*Replay, Verdict, error) {
	if r.Mode != ReplayEnforce {
		return r, VerdictNoted, nil
	}
	if reason == refusal.TokenReplayed {
		// Only the operator learns the first caller, because this caller may be a thief.
		return r, VerdictRefused, &ReplayError{reason, "another caller presented this token first, and it counts for that one alone (state.replay)", r.Message}
	}
	return r, VerdictRefused, &ReplayError{reason: reason, message: r.Message}
}

// ownerOf returns the name of a caller, or "" if nothing distinguishes it from others.
func ownerOf(id *oidc.Identity, proof *nodeproof.Proof, caller nodeproof.Caller) string {
	if proof != nil && proof.Passed {
		return "node/" + id.Kubernetes.Node.Name + "/" + id.Kubernetes.Node.UID
	}
	return addressOf(caller)
}

func addressOf(caller nodeproof.Caller) string {
	address := nodeproof.PlainAddress(caller.Address)
	if !address.IsValid() || caller.ViaProxy {
		return ""
	}
	return "address/" + address.String()
}

// joined returns a key made of several parts. Different parts make different keys.
func joined(parts ...string) string {
	size := 0
	for _, part := range parts {
		size += len(part) + len("123:")
	}
	var b strings.Builder
	b.Grow(size)
	for _, part := range parts {
		b.WriteString(strconv.Itoa(len(part)))
		b.WriteByte(':')
		b.WriteString(part)
	}
	return b.String()
}
