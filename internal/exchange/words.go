package exchange

import (
	"github.com/pullpass/pullpass/internal/oidc"
)

// The functions below return closed sets of words, for metric labels. This package uses no other
// values.

// Results returns all values of Event.Result.
func Results() []Result {
	return []Result{ResultGranted, ResultPartial, ResultNone, ResultRefused, ResultInvalid, ResultUnavailable, ResultError}
}

// Reasons returns all values of Event.Reason but the empty one.
func Reasons() []string {
	all := []string{
		reasonRequest, reasonMethod, reasonUnknownService, reasonAnonymous, reasonDenied, reasonNotGranted, reasonMalformedScope, reasonOmittedScopes,
		reasonNode, reasonCaller, reasonRevoked, reasonPushCredential, reasonReplayed, reasonCallerUnknown, reasonServiceAccountLimit, reasonAddressLimit,
		reasonObjects, reasonRevocations, reasonOwners, reasonSigning, reasonOverloaded, reasonCanceled, reasonInternal,
	}
	for _, kind := range []Kind{KindServiceAccount, KindPod, KindNode, KindSecret} {
		all = append(all, (&GoneError{Kind: kind}).Reason())
	}
	for _, reason := range oidc.Reasons() {
		all = append(all, string(reason))
	}
	return all
}

// ReplayReasons returns all values of Replay.Reason but the empty one.
func ReplayReasons() []ReplayReason {
	return []ReplayReason{ReplayOtherCaller, ReplayCallerUnknown, ReplayUnavailable}
}
