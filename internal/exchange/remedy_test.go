package exchange

import (
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
)

func TestRemedyOfAWholeRefusal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		event Event
		want  string
	}{
		{Event{Result: ResultRefused, Reason: string(refusal.SubjectDenied), Rule: "quarantine"}, "an administrator of Pullpass knows why the deny rule quarantine is there, and can change it"},
		{Event{Result: ResultRefused, Reason: string((&GoneError{Kind: KindServiceAccount}).Reason())}, "recreate the ServiceAccount if it is missing; the kubelet gets a new token at its next try, other clients need a new pod"},
		{Event{Result: ResultRefused, Reason: string((&GoneError{Kind: KindNode}).Reason())}, "delete the pod; its controller creates a new one on a node that exists"},
		{Event{Result: ResultRefused, Reason: string(refusal.CallerNotNode), Caller: "192.0.2.7"}, "the token was sent from 192.0.2.7; if neither the pod's node nor a NAT of yours has this address, another client has the token: delete the pod to end it"},
		{Event{Result: ResultRefused, Reason: string((&GoneError{Kind: KindPod}).Reason())}, "pull with the token of a pod that exists"},
		{Event{Result: ResultRefused, Reason: "token_expired"}, ""},
		{Event{Result: ResultNone, Reason: string(refusal.ScopeNotGranted), Rule: "r"}, ""},
		{Event{Result: ResultUnavailable, Reason: string(refusal.SubjectDenied)}, ""},
	} {
		if got := test.event.Remedy(); got != test.want {
			t.Errorf("%s: got  %q\nwant %q", test.event.Reason, got, test.want)
		}
	}
}
