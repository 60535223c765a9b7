// Package pattern matches repositories, component by component. It is the language of allow and of
// annotations, and of names with * in subjects.
package pattern

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Pattern selects repositories, component by component:
//
//	**             as a whole component: any number of components, zero too
//	*              any run of characters inside one component
//	{namespace}    the ServiceAccount's namespace, literally; also {serviceAccount}
//	               and {cluster}
//	{claims.NAME}  as a whole component: a path in the token of an identity
//
// It is anchored at both ends, so that team-a does not match team-abc/x. It does not use regular
// expressions. docker_auth and octo-sts had bugs of both kinds.
type Pattern string

// MaxBytes is the longest Pattern, and the longest name that a registry can serve:
// host and path.
const MaxBytes = 512

// Parse checks that a pattern is well formed and can match a name at all.
func Parse(text string) (Pattern, error) {
	if text == "" {
		return "", errors.New("is empty; write ** for every repository")
	}
	if len(text) > MaxBytes {
		return "", fmt.Errorf("%s has %d bytes; at most %d are useful", term.QuoteName(text), len(text), MaxBytes)
	}
	// The sample has one letter for each wildcard and placeholder. Letters and digits may stand
	// anywhere in a name. So if the sample is not a valid name, the pattern matches no valid name.
	var buffer [len("repository:") + MaxBytes + len(":pull")]byte
	sample := append(buffer[:0], "repository:"...)
	for component := range strings.SplitSeq(text, "/") {
		if name, ok := claimPlaceholder(component); ok {
			if name == "" {
				return "", fmt.Errorf("%s: {claims.NAME} lacks the name of a claim", term.QuoteName(text))
			}
			sample = append(sample, "x/"...)
			continue
		}
		var err error
		if sample, err = appendSample(sample, component); err != nil {
			return "", fmt.Errorf("%s: %w", term.QuoteName(text), err)
		}
		sample = append(sample, '/')
	}
	sample = append(sample[:len(sample)-1], ":pull"...)
	if _, err := registryauth.ParseScope(string(sample)); err != nil {
		return "", fmt.Errorf("%s can match no repository: names are lower-case letters and digits, joined by '.', '_', '__' or '-', and only a host at the start may have a port", term.QuoteName(text))
	}
	return Pattern(text), nil
}

// appendSample appends a text that the component matches.
func appendSample(sample []byte, component string) ([]byte, error) {
	switch {
	case component == "":
		return nil, errors.New("has a leading, trailing or double slash")
	case component == "**":
		return append(sample, 'x'), nil
	case strings.Contains(component, "**"):
		return nil, errors.New("** must be a whole path component; use * inside one")
	}
	for component != "" {
		switch c := component[0]; {
		case c == '*':
			sample = append(sample, 'x')
		case c == '{':
			name, _, closed := strings.Cut(component[1:], "}")
			if !closed {
				return nil, errors.New("a { is not closed in its path component")
			}
			if strings.HasPrefix(name, "claims.") {
				return nil, fmt.Errorf("%s must be a whole path component: its value is a path", term.QuoteName("{"+name+"}"))
			}
			if _, ok := placeholderValue(name, &oidc.Identity{}); !ok {
				return nil, fmt.Errorf("%s is not a placeholder; use {namespace}, {serviceAccount} or {cluster}, or {claims.NAME} for an identity", term.QuoteName("{"+name+"}"))
			}
			sample = append(sample, 'x')
			component = component[len(name)+1:]
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._-:", c) >= 0:
			sample = append(sample, c)
		default:
			return nil, fmt.Errorf("%s cannot be part of a repository's name, and patterns are not regular expressions; use * and **", term.QuoteName(firstRune(component)))
		}
		component = component[1:]
	}
	return sample, nil
}

func firstRune(s string) string {
	for i := range s {
		if i > 0 {
			return s[:i]
		}
	}
	return s
}

// HasPlaceholder reports whether the pattern depends on the identity.
func (p Pattern) HasPlaceholder() bool { return strings.Contains(string(p), "{") }

// Match reports whether the pattern matches the whole name, which must have no empty component. The
// parts before the first ** and after the last are compared in place. The parts between two ** are
// searched from the left. The first match found is as good as any later one, so there is no
// backtracking. A pattern with one ** costs at most the sum of both lengths, any pattern at most
// their product. Match adds its cost to steps, in units of about 5 ns.
func (p Pattern) Match(name string, id *oidc.Identity, steps *int) bool {
	*steps++
	if isAboutOthers(string(p), name) {
		return false
	}
	*steps += 8
	if p.hasClaims() {
		var ok bool
		if p, ok = p.withClaims(id); !ok {
			return false
		}
	}
	segment, rest, more := cutStars(string(p))
	name, ok := cutMatch(segment, name, id, steps)
	if !ok || !more {
		return ok && name == ""
	}
	for {
		segment, rest, more = cutStars(rest)
		if !more {
			_, ok = cutMatch(segment, lastComponents(segment, name), id, steps)
			return ok
		}
		after, ok := cutMatch(segment, name, id, steps)
		for ; !ok; after, ok = cutMatch(segment, name, id, steps) {
			if name == "" {
				return false
			}
			_, name = cutComponent(name)
		}
		name = after
	}
}

// isAboutOthers rejects most patterns that do not match, by both ends of the name.
func isAboutOthers(pattern, name string) bool {
	if pattern != "" && name != "" && pattern[0] != name[0] && pattern[0] != '*' && pattern[0] != '{' {
		return true
	}
	for i, j := len(pattern)-1, len(name)-1; i >= 0 && j >= 0 && pattern[i] != '*' && pattern[i] != '}'; i, j = i-1, j-1 {
		if pattern[i] != name[j] {
			return true
		}
	}
	return false
}

// cutStars cuts a pattern at its first **, which is always a whole component.
func cutStars(pattern string) (before, after string, found bool) {
	before, after, found = strings.Cut(pattern, "**")
	return strings.TrimSuffix(before, "/"), strings.TrimPrefix(after, "/"), found
}

func cutComponent(path string) (first, rest string) {
	first, rest, _ = strings.Cut(path, "/")
	return first, rest
}

// cutMatch matches a pattern without ** against the first components of a name,
// and returns the others.
func cutMatch(pattern, name string, id *oidc.Identity, steps *int) (rest string, ok bool) {
	for pattern != "" {
		if name == "" {
			return "", false
		}
		var want, first string
		want, pattern = cutComponent(pattern)
		first, name = cutComponent(name)
		*steps += 2 + len(want)/2 + 4*strings.Count(want, "*")
		if !matchComponent(want, first, id) {
			return "", false
		}
	}
	return name, true
}

// lastComponents returns the last components of a name, as many as the pattern has. It returns "" if
// the name has fewer, which no component matches.
func lastComponents(pattern, name string) string {
	end := len(name)
	for range strings.Count(pattern, "/") {
		if end = strings.LastIndexByte(name[:end], '/'); end == -1 {
			return ""
		}
	}
	return name[strings.LastIndexByte(name[:end], '/')+1:]
}

// MatchName matches a name of a subject, in which * matches any run of characters.
func MatchName(glob, name string) bool { return matchComponent(glob, name, nil) }

// MatchText is MatchName for values that may hold braces.
func MatchText(glob, value string) bool {
	before, rest, more := strings.Cut(glob, "*")
	value, ok := strings.CutPrefix(value, before)
	for ok && more {
		before, rest, more = strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(value, before)
		}
		_, value, ok = strings.Cut(value, before)
	}
	return ok && value == ""
}

// matchComponent matches one path component, or one name of a subject. It treats * as Match treats
// **. A placeholder without a value matches nothing, and the value of a placeholder is never read
// as a pattern.
func matchComponent(pattern, s string, id *oidc.Identity) bool {
	if pattern == "*" {
		return true
	}
	if pattern != "" && s != "" && pattern[0] != s[0] && pattern[0] != '*' && pattern[0] != '{' {
		return false // most rules are for other subjects: leave early
	}
	text, rest, more := strings.Cut(pattern, "*")
	s, ok := cutText(text, s, id)
	if !ok || !more {
		return ok && s == ""
	}
	for {
		text, rest, more = strings.Cut(rest, "*")
		if !more {
			length := textLength(text, id)
			if len(s) < length {
				return false
			}
			_, ok = cutText(text, s[len(s)-length:], id)
			return ok
		}
		if s, ok = findText(text, s, id); !ok {
			return false
		}
	}
}

// cutText removes a text, with its placeholders replaced, from the start of s.
func cutText(text, s string, id *oidc.Identity) (rest string, ok bool) {
	for text != "" {
		literal, next, ok := nextLiteral(text, id)
		if !ok {
			return "", false
		}
		if s, ok = strings.CutPrefix(s, literal); !ok {
			return "", false
		}
		text = next
	}
	return s, true
}

// findText returns the rest of s after the first occurrence of the text.
func findText(text, s string, id *oidc.Identity) (rest string, ok bool) {
	if strings.IndexByte(text, '{') < 0 {
		_, rest, ok = strings.Cut(s, text)
		return rest, ok
	}
	for i := range len(s) {
		if rest, ok = cutText(text, s[i:], id); ok {
			return rest, true
		}
	}
	return "", false
}

func textLength(text string, id *oidc.Identity) int {
	length := 0
	for text != "" {
		literal, next, _ := nextLiteral(text, id)
		length += len(literal)
		text = next
	}
	return length
}

// nextLiteral returns the text up to the next placeholder, or the value of the placeholder at the
// start.
func nextLiteral(text string, id *oidc.Identity) (literal, rest string, ok bool) {
	if text[0] == '{' {
		name, rest, _ := strings.Cut(text[1:], "}")
		value, _ := placeholderValue(name, id)
		return value, rest, value != ""
	}
	if next := strings.IndexByte(text, '{'); next != -1 {
		return text[:next], text[next:], true
	}
	return text, "", true
}

// placeholderValue returns the value of a placeholder, and whether that placeholder exists.
func placeholderValue(name string, id *oidc.Identity) (string, bool) {
	if id == nil {
		id = &oidc.Identity{}
	}
	switch name {
	case "namespace":
		return id.Kubernetes.Namespace, true
	case "serviceAccount":
		return id.Kubernetes.ServiceAccount.Name, true
	case "cluster":
		return id.Cluster, true
	}
	return "", false
}

// Expand returns the pattern with the values of one identity. It is for messages: matching never
// builds it.
func (p Pattern) Expand(id *oidc.Identity) string {
	if whole, ok := p.withClaims(id); ok {
		p = whole
	}
	var b strings.Builder
	for rest := string(p); rest != ""; {
		if end := strings.IndexByte(rest, '}'); rest[0] == '{' {
			if value, _ := placeholderValue(rest[1:end], id); value != "" {
				b.WriteString(value)
			} else {
				b.WriteString(rest[:end+1])
			}
			rest = rest[end+1:]
			continue
		}
		next := strings.IndexByte(rest, '{')
		if next == -1 {
			next = len(rest)
		}
		b.WriteString(rest[:next])
		rest = rest[next:]
	}
	return b.String()
}

// IsPath rejects names that a pattern of path components could misread. ParseScope checks the whole
// grammar, but policies are also asked about scopes from other sources.
func IsPath(name string) bool {
	for more := true; more; {
		var component string
		component, name, more = strings.Cut(name, "/")
		if component == "" || component[0] == '.' {
			return false
		}
	}
	return true
}

// FirstComponent returns the first component of all names that the pattern matches, if it is the
// same for all names and identities.
func (p Pattern) FirstComponent() (string, bool) {
	first, _ := cutComponent(string(p))
	return first, !strings.ContainsAny(first, "*{")
}
