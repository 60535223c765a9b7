package podevents

import (
	"strings"
	"unicode"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
)

const (
	// maxMessageBytes is the limit of the API (events.k8s.io/v1, note), less the prefix that
	// client-go adds to joined events.
	maxMessageBytes = 1024 - len("(combined from similar events): ")
	maxWhatBytes    = 240
	maxServiceBytes = 120
	maxRemedyBytes  = 500 // the limit that exchange observes

	// maxScopes of one request get events. A pod does not usually request more than the two scopes
	// of a push with a mount.
	maxScopes = 3
)

// messages returns the refusals with their reasons and remedies. The text is the same for repeated
// requests, so that repeated refusals are counted in one event.
func messages(e *exchange.Event) []string {
	if e.Result == exchange.ResultRefused || e.Gateway != nil {
		what := "a login"
		if len(e.Requested) > 0 {
			what = strings.Join(e.Requested, " ")
		}
		verdict := "refused "
		if e.Result == exchange.ResultUnavailable {
			verdict = "cannot get "
		}
		return []string{message(verdict+what, e.Service, way(e), e.Message, e.Remedy())}
	}
	scopes := e.Scopes[:min(len(e.Scopes), maxScopes)]
	list := make([]string, 0, len(scopes))
	for _, s := range scopes {
		what := "refused " + s.Scope
		if len(s.Granted) > 0 {
			what = "allowed only " + strings.Join(s.Granted, ", ") + " of " + s.Scope
		}
		list = append(list, message(what, e.Service, way(e), s.Reason, s.Remedy))
	}
	return list
}

// way names the Secret of a token that the kubelet did not request for its pod.
func way(e *exchange.Event) string {
	if e.PullSecret == nil {
		return ""
	}
	return ", with the token in the Secret " + term.Shorten(clean(e.PullSecret.Name), maxServiceBytes)
}

func message(what, service, way, why, remedy string) string {
	head := "Pullpass " + term.Shorten(clean(what), maxWhatBytes) + " at " + term.Shorten(clean(service), maxServiceBytes) + way + ": "
	tail := ""
	// A truncated command could still be run, so a remedy is complete or left out.
	if remedy = clean(remedy); remedy != "" && len(remedy) <= maxRemedyBytes {
		tail = ". Remedy: " + remedy
	}
	return head + term.Shorten(clean(why), maxMessageBytes-len(head)-len(tail)) + tail
}

// clean removes characters that could forge a line in a terminal. Invalid UTF-8 becomes U+FFFD.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
