package exchange

// The functions below return closed sets of words, for metric labels. This package uses no other
// values.

// Results returns all values of Event.Result.
func Results() []Result {
	return []Result{ResultGranted, ResultPartial, ResultNone, ResultRefused, ResultInvalid, ResultUnavailable, ResultError}
}

// ReplayReasons returns all values of Replay.Reason but the empty one.
func ReplayReasons() []ReplayReason {
	return []ReplayReason{ReplayOtherCaller, ReplayCallerUnknown, ReplayUnavailable}
}
