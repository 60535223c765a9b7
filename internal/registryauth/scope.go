package registryauth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Scope is one resource and the actions on it (distribution's scope document):
// type(class):name:action,action. Actions are sorted and unique.
type Scope struct {
	Type    string
	Class   string
	Name    string // literal, never a pattern; may start with host:port/
	Actions []string
}

// Limits of one scope. The limit of the path is distribution's own
// (reference.RepositoryNameTotalLengthMax) and does not include the host. The other limits only
// keep a scope small: registries know four actions and two types.
const (
	maxPathBytes   = 255
	maxHostBytes   = 255
	maxTypeBytes   = 64 // also of the class
	maxActions     = 16 // also after merging
	maxActionBytes = 32
	maxQuotedBytes = 80 // of a scope that an error quotes
)

// ParseScope parses one scope. The error is a *RequestError with the code invalid_scope.
//
// It accepts the names that distribution can serve: an optional host, then path components of
// lower-case letters and digits. Within a component, one '.', one or two '_' or any number of '-'
// separate them. The first component is a host if it contains a '.' or a ':' or is localhost. Only
// a host may have upper case and a port. A scope is split at its first and last ':', because a port
// adds a third one.
func ParseScope(s string) (Scope, error) {
	typ, rest, _ := strings.Cut(s, ":")
	split := strings.LastIndexByte(rest, ':')
	if split < 0 {
		return Scope{}, invalidScope(s, "want type:name:action,action")
	}
	scope := Scope{Type: typ, Name: rest[:split]}
	if open := strings.IndexByte(typ, '('); open >= 0 {
		class, closed := strings.CutSuffix(typ[open+1:], ")")
		if !closed || !isTypeValue(class) {
			return Scope{}, invalidScope(s, "want the class as type(class), of lower-case letters and digits")
		}
		scope.Type, scope.Class = typ[:open], class
	}
	if !isTypeValue(scope.Type) {
		return Scope{}, invalidScope(s, "the type must be 1 to %d lower-case letters and digits", maxTypeBytes)
	}
	if fault := nameFault(scope.Name); fault != "" {
		return Scope{}, invalidScope(s, "%s", fault)
	}
	actions := rest[split+1:]
	count := strings.Count(actions, ",") + 1
	if count > maxActions {
		return Scope{}, invalidScope(s, "more than %d actions", maxActions)
	}
	scope.Actions = make([]string, 0, count)
	for action := range strings.SplitSeq(actions, ",") {
		if !isAction(action) {
			return Scope{}, invalidScope(s, "an action must be 1 to %d lower-case letters, or *", maxActionBytes)
		}
		scope.Actions = append(scope.Actions, action)
	}
	slices.Sort(scope.Actions)
	scope.Actions = slices.Compact(scope.Actions)
	return scope, nil
}

// String returns the scope in the form that ParseScope reads.
func (s Scope) String() string {
	n := len(s.Type) + len(s.Class) + len("()") + len(s.Name) + len("::")
	for _, action := range s.Actions {
		n += len(action) + len(",")
	}
	return string(s.append(make([]byte, 0, n)))
}

func (s Scope) append(b []byte) []byte {
	b = append(b, s.Type...)
	if s.Class != "" {
		b = append(b, '(')
		b = append(b, s.Class...)
		b = append(b, ')')
	}
	b = append(b, ':')
	b = append(b, s.Name...)
	b = append(b, ':')
	for i, action := range s.Actions {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, action...)
	}
	return b
}

// nameFault describes the fault of a resource name, or returns an empty text.
func nameFault(name string) string {
	path := name
	if first, rest, ok := strings.Cut(name, "/"); ok && isHost(first) {
		path = rest
	}
	if len(path) > maxPathBytes {
		return "the name is longer than " + strconv.Itoa(maxPathBytes) + " bytes"
	}
	for component := range strings.SplitSeq(path, "/") {
		switch {
		case isComponent(component):
		case component == "":
			return "the name is empty or has a leading, trailing or double slash"
		case strings.ContainsRune(component, ':'):
			return "the name may hold a ':' only in host:port/ at its start, and no tag"
		case strings.ContainsFunc(component, func(r rune) bool { return 'A' <= r && r <= 'Z' }):
			return "the name must be lower case"
		default:
			return "each part of the name must be lower-case letters and digits, joined by '.', '_', '__' or '-'"
		}
	}
	return ""
}

// isHost reports whether the first component of a name is a host: it is not a valid path component,
// or it looks like a domain.
func isHost(s string) bool {
	host, port, hasPort := strings.Cut(s, ":")
	if len(s) > maxHostBytes || !hasPort && s != "localhost" && !strings.Contains(s, ".") {
		return false
	}
	if hasPort && (port == "" || strings.ContainsFunc(port, func(r rune) bool { return r < '0' || '9' < r })) {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if !isLowerAlphanumeric(c) && (c < 'A' || 'Z' < c) && c != '-' {
				return false
			}
		}
	}
	return true
}

// isComponent reports whether s is a path component of a name.
func isComponent(s string) bool {
	i := 0
	for {
		start := i
		for i < len(s) && isLowerAlphanumeric(s[i]) {
			i++
		}
		if i == start {
			return false
		}
		if i == len(s) {
			return true
		}
		switch s[i] {
		case '.':
			i++
		case '_':
			i++
			if i < len(s) && s[i] == '_' {
				i++
			}
		case '-':
			for i < len(s) && s[i] == '-' {
				i++
			}
		default:
			return false
		}
	}
}

func isTypeValue(s string) bool {
	if s == "" || len(s) > maxTypeBytes {
		return false
	}
	for i := range len(s) {
		if !isLowerAlphanumeric(s[i]) {
			return false
		}
	}
	return true
}

func isAction(s string) bool {
	if s == "*" {
		return true
	}
	if s == "" || len(s) > maxActionBytes {
		return false
	}
	for i := range len(s) {
		if s[i] < 'a' || 'z' < s[i] {
			return false
		}
	}
	return true
}

func isLowerAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
}

// invalidScope quotes the scope in plain ASCII, because logs and terminals show the message.
func invalidScope(scope, format string, args ...any) error {
	dots := ""
	if len(scope) > maxQuotedBytes {
		scope, dots = scope[:maxQuotedBytes], "..."
	}
	return &RequestError{
		Code:    "invalid_scope",
		Field:   "scope",
		Message: strconv.QuoteToASCII(scope) + dots + ": " + fmt.Sprintf(format, args...),
	}
}
