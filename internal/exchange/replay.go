package exchange

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
)

// Owners remembers who was the first to use something. An error means that this
// cannot be known now; Exchanger says what becomes of the request.
// Implementations must be safe for concurrent use and return within their own
// time limit.
type Owners interface {
	// Own makes owner the owner of key until the given time, unless it has one,
	// and returns whose it is.
	//
	// bucket is that of which the owner is going to Take. An implementation that
	// keeps it in the same place may do that at once, for the owner alone; what is
	// returned says whether it has.
	Own(ctx context.Context, key, owner string, until time.Time, bucket string) (Owned, error)
}

// Owned is what Owners answer.
type Owned struct {
	Owner string
	Taken bool          // of the bucket, too
	Wait  time.Duration // as Take returns it
}

// ReplayMode says what becomes of a caller who presents a token that another
// one presented first.
type ReplayMode string

// The modes.
const (
	ReplayOff     ReplayMode = "off"
	ReplayAudit   ReplayMode = "audit"   // grant, but write down what enforce would have done
	ReplayEnforce ReplayMode = "enforce" // refuse
)

// Values returns all that there are.
func (ReplayMode) Values() []ReplayMode { return []ReplayMode{ReplayOff, ReplayAudit, ReplayEnforce} }

// ReplayReason says in one word why a caller did not pass. The set is closed:
// it is a metric label.
type ReplayReason string

// The reasons.
const (
	ReplayOtherCaller   ReplayReason = "other_caller"
	ReplayCallerUnknown ReplayReason = "caller_unknown" // it has no address of its own
	ReplayUnavailable   ReplayReason = "unavailable"    // nobody can say who came first
)

// Replay says whether a caller is the first one that presented its token. Both
// are named node/NAME/UID if they proved to be the token's node, or else
// address/IP.
type Replay struct {
	Mode   ReplayMode `json:"mode"`
	Passed bool       `json:"passed"`
	Owner  string     `json:"owner,omitempty"`  // who came first
	Caller string     `json:"caller,omitempty"` // who came now
	// Reason says in one word why the caller did not pass, Message in more.
	Reason  ReplayReason `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
}

// ReplayError refuses a caller who is not the first one that presented its
// token, or of whom that cannot be said.
type ReplayError struct{ reason, message, operator string }

func (e *ReplayError) Error() string { return e.message }

// Reason is token_replayed or caller_unknown.
func (e *ReplayError) Reason() string { return e.reason }

// judgeReplay makes the first caller of a token id its owner until the token
// ends, and refuses every other one. The kubelet gives a token to the runtime of
// its own node alone, so all requests of a pull, and those that are repeated,
// come from one caller.
//
// What makes a caller is the best that is known of it. One that proved to be
// the token's node is that node, by whichever of its addresses it comes. Of
// any other, the whole address counts, also of IPv6: all nodes of a network
// share one /64. It says less where addresses are translated on the way:
// nodes behind the same one look like one, and a node behind several looks
// like several.
//
// What was taken of the limit meanwhile, if anything was, is noted in it.
func (x *Exchanger) judgeReplay(ctx context.Context, id *oidc.Identity, caller nodeproof.Caller, proof *nodeproof.Proof, limit *identityLimit) (*Replay, error) {
	if x.replay == ReplayOff || id.InSecret() { // every node of a namespace may present that one
		return nil, nil
	}
	r := &Replay{Mode: x.replay, Caller: ownerOf(id, proof, caller)}
	if r.Caller == "" {
		r.Reason = ReplayCallerUnknown
		r.Message = "it cannot be said whether the caller is the first one that presented this token (state.replay): its address is not known, " +
			"or is that of a trusted proxy; let the proxy send X-Forwarded-For, or leave it out of trustedProxies if it is a node"
		return r, r.refusal(reasonCallerUnknown)
	}
	until := id.Expiry
	if id.External != nil {
		until = until.Add(pushLifetime) // its push credentials end later
	}
	// A caller that hangs up came first all the same, and that it did says nothing
	// of what keeps the owners.
	owned, err := x.owners.Own(context.WithoutCancel(ctx), joined(id.IssuerName(), id.TokenID), r.Caller, until, limit.bucket)
	owner := owned.Owner
	limit.taken, limit.wait = owned.Taken, owned.Wait
	switch {
	case err != nil:
		r.Reason, r.Message = ReplayUnavailable, err.Error()
		if r.Mode == ReplayEnforce {
			return r, &UnavailableError{reason: reasonOwners, Err: err}
		}
		return r, nil
	case owner != r.Caller:
		r.Owner, r.Reason = owner, ReplayOtherCaller
		r.Message = fmt.Sprintf("%s presented this token, which is that of %s (state.replay)", r.Caller, owner)
		return r, r.refusal(reasonReplayed)
	}
	r.Owner, r.Passed = owner, true
	return r, nil
}

func (r *Replay) refusal(reason string) error {
	if r.Mode != ReplayEnforce {
		return nil
	}
	if reason == reasonReplayed {
		// Who came first is for the operator: the caller may be a thief.
		return &ReplayError{reason, "another caller presented this token first, and it counts for that one alone (state.replay)", r.Message}
	}
	return &ReplayError{reason: reason, message: r.Message}
}

// ownerOf names a caller, or is empty if nothing tells it from others.
func ownerOf(id *oidc.Identity, proof *nodeproof.Proof, caller nodeproof.Caller) string {
	if proof != nil && proof.Passed {
		return "node/" + id.Kubernetes.Node.Name + "/" + id.Kubernetes.Node.UID
	}
	address := nodeproof.PlainAddress(caller.Address)
	if !address.IsValid() || caller.ViaProxy {
		return ""
	}
	return "address/" + address.String()
}

// joined returns a key of several parts. Different parts make different keys.
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
