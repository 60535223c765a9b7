package registryauth

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxScopes is how many resources of one request are judged.
const MaxScopes = 64

// maxScopesRead is how many scopes of one request are parsed. There may be more
// of them than resources: clients ask for pull, and then for push as well.
const maxScopesRead = 2 * MaxScopes

// maxMalformedBytes is what is kept of a scope that is none.
const maxMalformedBytes = 80

// MalformedScope is what was asked for and is no scope: nothing can be granted
// for it.
type MalformedScope struct {
	Text  string        // as it was sent, with "..." in place of what is too long to keep
	Fault *RequestError // with the code invalid_scope
}

// ReadScopes reads the scope fields of one request, each of which may hold
// several scopes, separated by spaces. Scopes of the same type, class and name
// become one that has the actions of all; the result is in the order in which the
// resources were first asked for.
//
// Nothing that it is given is an error, because a scope that is not granted is
// none (token specification). What cannot be parsed is returned in malformed; zot
// asks for repository::pull. Of more than MaxScopes resources it reads those that
// were asked for last: regclient asks in each request for everything that it has
// asked for before, and puts last what it needs now. omitted counts the scopes
// before these. So the work is bounded, however many there are.
func ReadScopes(fields []string) (scopes []Scope, malformed []MalformedScope, omitted int) {
	latest, omitted := latestScopes(fields)
	if len(latest) == 0 {
		return nil, nil, 0
	}
	scopes = make([]Scope, 0, min(len(latest), MaxScopes))
	for _, text := range latest {
		scope, err := ParseScope(strings.Clone(text)) // what is remembered of one must not hold on to the others
		if err == nil {
			scopes, err = merge(scopes, scope, text)
		}
		if fault, ok := errors.AsType[*RequestError](err); ok {
			malformed = append(malformed, MalformedScope{Text: shortText(text), Fault: fault})
		}
	}
	return scopes, malformed, omitted
}

// ParseScopes reads scopes as ReadScopes does, for those who have to correct what
// cannot be read. The error is a *RequestError with the code invalid_scope.
func ParseScopes(fields []string) ([]Scope, error) {
	scopes, malformed, omitted := ReadScopes(fields)
	switch {
	case omitted > 0:
		return nil, &RequestError{Code: "invalid_scope", Field: "scope", Message: fmt.Sprintf("more than %d scopes; ask for fewer in one request", MaxScopes)}
	case malformed != nil:
		return nil, malformed[0].Fault
	}
	return scopes, nil
}

// latestScopes returns the last scopes of the fields, in their order: at most
// maxScopesRead, about at most MaxScopes resources. It counts the others.
func latestScopes(fields []string) (latest []string, omitted int) {
	var few [8]string // enough for most requests, without an allocation
	resources := few[:0]
	isFull := func(text string) bool {
		resource := resourceOf(text)
		if len(latest) == maxScopesRead {
			return true
		}
		if slices.Contains(resources, resource) {
			return false
		}
		resources = append(resources, resource)
		return len(resources) > MaxScopes
	}
	for _, field := range slices.Backward(fields) {
		for field != "" {
			space := strings.LastIndexByte(field, ' ')
			text := field[space+1:]
			field = field[:max(space, 0)]
			switch {
			case text == "":
			case omitted > 0 || isFull(text):
				omitted++
			default:
				latest = append(latest, text)
			}
		}
	}
	slices.Reverse(latest)
	return latest, omitted
}

// resourceOf returns what a scope is about: all that stands before its actions.
func resourceOf(text string) string {
	return text[:max(strings.LastIndexByte(text, ':'), 0)]
}

// merge adds a scope to those of other resources, or its actions to those that
// were asked for on the same one.
func merge(scopes []Scope, scope Scope, text string) ([]Scope, error) {
	same := slices.IndexFunc(scopes, func(other Scope) bool {
		return other.Name == scope.Name && other.Type == scope.Type && other.Class == scope.Class
	})
	if same < 0 {
		return append(scopes, scope), nil
	}
	actions := slices.Concat(scopes[same].Actions, scope.Actions)
	slices.Sort(actions)
	actions = slices.Compact(actions)
	if len(actions) > maxActions {
		return scopes, invalidScope(text, "more than %d actions with those already asked for", maxActions)
	}
	scopes[same].Actions = actions
	return scopes, nil
}

// shortText returns what is kept of a scope that is none, for logs and
// terminals: in quotes, unless it is plain. It is never a scope again: neither
// quotes nor dots can stand where they then stand.
func shortText(text string) string {
	short, dots := text, ""
	if len(text) > maxMalformedBytes {
		short, dots = text[:maxMalformedBytes], "..."
	}
	if strings.ContainsFunc(short, func(r rune) bool { return r <= ' ' || '~' < r }) {
		return strconv.QuoteToASCII(short) + dots
	}
	return strings.Clone(short) + dots
}
