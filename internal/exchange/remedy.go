package exchange

import (
	"github.com/pullpass/pullpass/internal/policy"
)

// Remedy returns advice about a refusal as a whole, in addition to Message, or is empty.
func (e *Event) Remedy() string {
	if e.Result != ResultRefused {
		return ""
	}
	switch e.Reason {
	case reasonDenied:
		return policy.DenialRemedy(e.Rule)
	case "service_account" + reasonGone:
		return "see that the ServiceAccount is there: the kubelet gets a token for it by itself at its next try; whatever else pulls with the pod's token needs a new pod"
	case "secret" + reasonGone:
		return "see that \"pullpass pull-secrets controller\" runs: it makes a Secret with a new token"
	case "node" + reasonGone:
		return "delete the pod: what made it makes another one, whose token names a node that is there"
	case reasonCaller:
		return "the token was sent from " + e.Caller + "; if neither the pod's node nor a NAT of yours has this address, somebody else has the token: delete the pod to end it"
	case reasonReplayed:
		return "if both callers are the pod's node, by two of its addresses, let node.proof say so; if not, somebody else has the token: delete the pod to end it"
	case reasonServiceAccountLimit:
		return "the runtime tries again by itself; if it goes on, see who uses this ServiceAccount, or let " + policy.Administrator + " raise limits.perServiceAccount"
	case reasonRevoked:
		return policy.Administrator + " can end a revocation (pullpass revoke undo)"
	}
	return ""
}
