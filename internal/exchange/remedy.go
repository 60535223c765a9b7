package exchange

import (
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Remedy returns advice about a refusal as a whole, in addition to Message, or is empty.
func (e *Event) Remedy() string {
	if e.Result != ResultRefused {
		return ""
	}
	switch refusal.Reason(e.Reason) {
	case refusal.SubjectDenied:
		return policy.DenialRemedy(e.Rule)
	case refusal.ServiceAccountGone:
		return "see that the ServiceAccount is there: the kubelet gets a token for it by itself at its next try; whatever else pulls with the pod's token needs a new pod"
	case refusal.SecretGone:
		return "see that \"pullpass pull-secrets controller\" runs: it makes a Secret with a new token"
	case refusal.NodeGone:
		return "delete the pod: its controller creates a new pod, whose token names an existing node"
	case refusal.CallerNotNode:
		return "the token was sent from " + e.Caller + "; if neither the pod's node nor a NAT of yours has this address, another client has the token: delete the pod to end it"
	case refusal.TokenReplayed:
		return "if both callers are the pod's node, by two of its addresses, let node.proof say so; if not, another client has the token: delete the pod to end it"
	case refusal.LimitedServiceAccount:
		return "the runtime tries again by itself; if it goes on, see who uses this ServiceAccount, or let " + policy.Administrator + " raise limits.perServiceAccount"
	case refusal.Revoked:
		return policy.Administrator + " can end a revocation (pullpass revoke undo)"
	}
	return ""
}
