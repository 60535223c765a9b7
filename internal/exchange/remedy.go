package exchange

import (
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

// Remedy returns advice about a refusal as a whole, in addition to Message, or is empty. Messages
// about tokens and requests hold their own.
func (e *Event) Remedy() string {
	if e.Result != ResultRefused {
		return ""
	}
	entry, _ := refusal.Find(refusal.Reason(e.Reason))
	switch {
	case entry.Reason == refusal.SubjectDenied:
		return policy.DenialRemedy(e.Rule)
	case entry.Reason == refusal.CallerNotNode:
		return "the token was sent from " + e.Caller + "; if neither the pod's node nor a NAT of yours has this address, another client has the token: delete the pod to end it"
	case entry.Class == refusal.Forbidden, entry.Class == refusal.Limited:
		return entry.Remedy
	}
	return ""
}
