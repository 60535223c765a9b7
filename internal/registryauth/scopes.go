package registryauth

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxScopes is how many resources of one request are checked.
const MaxScopes = 64

// maxScopesRead is how many scopes of one request are parsed. It exceeds the number of resources,
// because clients request pull first and then also push.
const maxScopesRead = 2 * MaxScopes

// maxMalformedBytes bounds the stored text of a malformed scope.
const maxMalformedBytes = 80

// MalformedScope is a requested text that is not a scope. No rights can be granted for it.
type MalformedScope struct {
	Text  string        // as sent, but cut to the maximum size with "..."
	Fault *RequestError // with the code invalid_scope
}

// ReadScopes reads the scope fields of one request. Each field may hold several scopes, separated
// by spaces. Scopes of the same type, class and name become one scope with the actions of all. The
// result has the order in which the resources were first requested.
//
// It returns no error: a scope that is not granted is not an error (token specification). malformed
// holds the scopes that cannot be parsed. For example, zot requests repository::pull.
//
// Of more than MaxScopes resources it reads the last. regclient repeats in each request all scopes
// that it requested before, and puts the scopes that it needs now last. omitted counts the earlier
// scopes. So the work is bounded for any number of scopes.
func ReadScopes(fields []string) (scopes []Scope, malformed []MalformedScope, omitted int) {
	latest, omitted := latestScopes(fields)
	if len(latest) == 0 {
		return nil, nil, 0
	}
	scopes = make([]Scope, 0, min(len(latest), MaxScopes))
	for _, text := range latest {
		scope, err := ParseScope(strings.Clone(text)) // Clone, so that one scope does not keep the others in memory
		if err == nil {
			scopes, err = merge(scopes, scope, text)
		}
		if fault, ok := errors.AsType[*RequestError](err); ok {
			malformed = append(malformed, MalformedScope{Text: shortText(text), Fault: fault})
		}
	}
	return scopes, malformed, omitted
}

// ParseScopes reads scopes as ReadScopes does, but reports scopes that it cannot read, so that the
// caller can correct them. The error is a *RequestError with the code invalid_scope.
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

// latestScopes returns the last scopes of the fields in their order: at most maxScopesRead scopes
// of at most MaxScopes resources. It counts the others.
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

// resourceOf returns the resource of a scope: the text before its actions.
func resourceOf(text string) string {
	return text[:max(strings.LastIndexByte(text, ':'), 0)]
}

// merge adds a scope of a new resource, or adds its actions to the scope of the same resource.
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

// shortText returns the stored text of a malformed scope, for logs and terminals. It is quoted
// unless it is plain. The result is never a valid scope, because of its quotes or dots.
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
