package exchange

import (
	"testing"
)

func TestRemedyOfAWholeRefusal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		event Event
		want  string
	}{
		{Event{Result: ResultRefused, Reason: reasonDenied, Rule: "quarantine"}, "whoever administers Pullpass knows why the deny rule quarantine is there, and can change it"},
		{Event{Result: ResultRefused, Reason: (&GoneError{Kind: KindServiceAccount}).Reason()}, "see that the ServiceAccount is there: the kubelet gets a token for it by itself at its next try; whatever else pulls with the pod's token needs a new pod"},
		{Event{Result: ResultRefused, Reason: (&GoneError{Kind: KindNode}).Reason()}, "delete the pod: what made it makes another one, whose token names a node that is there"},
		{Event{Result: ResultRefused, Reason: reasonCaller, Caller: "192.0.2.7"}, "the token was sent from 192.0.2.7; if neither the pod's node nor a NAT of yours has this address, somebody else has the token: delete the pod to end it"},
		{Event{Result: ResultRefused, Reason: (&GoneError{Kind: KindPod}).Reason()}, ""},
		{Event{Result: ResultRefused, Reason: "token_expired"}, ""},
		{Event{Result: ResultNone, Reason: reasonNotGranted, Rule: "r"}, ""},
		{Event{Result: ResultUnavailable, Reason: reasonDenied}, ""},
	} {
		if got := test.event.Remedy(); got != test.want {
			t.Errorf("%s: got  %q\nwant %q", test.event.Reason, got, test.want)
		}
	}
}
