package exchange

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// pattern says which repositories are meant, component by component:
//
//   - any run of characters inside one component
//     **                as a whole component: any number of components, zero too
//     {namespace}       the ServiceAccount's namespace, literally;
//     also {serviceAccount} and {cluster}
//
// It is anchored at both ends, so that team-a does not match team-abc/x, and no
// regular expression is involved (docker_auth and octo-sts were hit by both).
type pattern string

// maxPatternBytes is the longest name that a registry can serve: host and path.
const maxPatternBytes = 512

// parsePattern checks that a pattern is well formed and can match a name at all.
func parsePattern(text string) (pattern, error) {
	if text == "" {
		return "", errors.New("is empty; write ** for every repository")
	}
	if len(text) > maxPatternBytes {
		return "", fmt.Errorf("%s has %d bytes; at most %d are useful", quote(text), len(text), maxPatternBytes)
	}
	// The sample has one letter for each wildcard and placeholder. Letters and
	// digits may stand anywhere in a name, so if the sample is no name, nothing
	// that the pattern could match is one.
	var sample strings.Builder
	for i, component := range splitPath(text) {
		if i > 0 {
			sample.WriteByte('/')
		}
		if component == "**" {
			sample.WriteByte('x')
			continue
		}
		if err := sampleComponent(&sample, component); err != nil {
			return "", fmt.Errorf("%s: %w", quote(text), err)
		}
	}
	if _, err := registryauth.ParseScope("repository:" + sample.String() + ":pull"); err != nil {
		return "", fmt.Errorf("%s can match no repository: names are lower-case letters and digits, joined by '.', '_', '__' or '-', and only a host at the start may have a port", quote(text))
	}
	return pattern(text), nil
}

func splitPath(text string) []string { return strings.Split(text, "/") }

// sampleComponent appends a name that the component matches.
func sampleComponent(sample *strings.Builder, component string) error {
	if component == "" {
		return errors.New("has a leading, trailing or double slash")
	}
	if strings.Contains(component, "**") {
		return errors.New("** must be a whole path component; use * inside one")
	}
	for component != "" {
		switch c := component[0]; {
		case c == '*':
			sample.WriteByte('x')
			component = component[1:]
		case c == '{':
			end := strings.IndexByte(component, '}')
			if end < 0 {
				return errors.New("a { is not closed in its path component")
			}
			if _, ok := placeholderValue(component[1:end], &oidc.Identity{}); !ok {
				return fmt.Errorf("%s is no placeholder; use {namespace}, {serviceAccount} or {cluster}", quote(component[:end+1]))
			}
			sample.WriteByte('x')
			component = component[end+1:]
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._-:", c) >= 0:
			sample.WriteByte(c)
			component = component[1:]
		default:
			return fmt.Errorf("%s cannot be part of a repository's name, and patterns are not regular expressions; use * and **", quote(firstRune(component)))
		}
	}
	return nil
}

func firstRune(s string) string {
	for i := range s {
		if i > 0 {
			return s[:i]
		}
	}
	return s
}

// hasPlaceholder reports whether the pattern needs to know who asks.
func (p pattern) hasPlaceholder() bool { return strings.IndexByte(string(p), '{') >= 0 }

// match reports whether the pattern matches the whole name. Its cost is at most
// the product of both lengths: only the last ** and, inside a component, the
// last * are ever tried again.
func (p pattern) match(name string, id *oidc.Identity) bool {
	rest := string(p)
	var afterStars, retry string // what follows the last **, and where in the name it is to be tried
	stars := false
	for name != "" {
		if rest != "" {
			component, next := cutComponent(rest)
			if component == "**" {
				if next == "" {
					return true
				}
				stars, afterStars, retry, rest = true, next, name, next
				continue
			}
			first, others := cutComponent(name)
			if matchComponent(component, first, id) {
				rest, name = next, others
				continue
			}
		}
		if !stars {
			return false
		}
		_, retry = cutComponent(retry)
		rest, name = afterStars, retry
	}
	for rest != "" {
		component, next := cutComponent(rest)
		if component != "**" {
			return false
		}
		rest = next
	}
	return true
}

func cutComponent(path string) (first, rest string) {
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return path, ""
}

// matchComponent matches one path component, or one name of a subject. A
// placeholder without a value matches nothing, and what a placeholder stands
// for is never read as a pattern.
func matchComponent(pattern, s string, id *oidc.Identity) bool {
	var afterStar, retry string
	star := false
	for {
		switch {
		case pattern == "" && s == "":
			return true
		case pattern != "" && pattern[0] == '*':
			pattern = pattern[1:]
			if pattern == "" {
				return true
			}
			star, afterStar, retry = true, pattern, s
			continue
		case pattern != "":
			literal, next, ok := nextLiteral(pattern, id)
			if !ok {
				return false
			}
			if strings.HasPrefix(s, literal) {
				pattern, s = next, s[len(literal):]
				continue
			}
		}
		if !star || retry == "" {
			return false
		}
		retry = retry[1:]
		pattern, s = afterStar, retry
	}
}

// nextLiteral cuts the text before the next * or placeholder from a pattern, or
// the placeholder at its start.
func nextLiteral(pattern string, id *oidc.Identity) (literal, rest string, ok bool) {
	if pattern[0] == '{' {
		end := strings.IndexByte(pattern, '}')
		value, _ := placeholderValue(pattern[1:end], id)
		return value, pattern[end+1:], value != ""
	}
	for i := range len(pattern) {
		if pattern[i] == '*' || pattern[i] == '{' {
			return pattern[:i], pattern[i:], true
		}
	}
	return pattern, "", true
}

// placeholderValue returns what a placeholder stands for, and whether there is
// such a placeholder.
func placeholderValue(name string, id *oidc.Identity) (string, bool) {
	if id == nil {
		return "", false
	}
	switch name {
	case "namespace":
		return id.Namespace, true
	case "serviceAccount":
		return id.ServiceAccount.Name, true
	case "cluster":
		return id.Cluster, true
	}
	return "", false
}

// expand returns the pattern as it reads for one identity. It is for people:
// matching never builds it.
func (p pattern) expand(id *oidc.Identity) string {
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
		if next < 0 {
			next = len(rest)
		}
		b.WriteString(rest[:next])
		rest = rest[next:]
	}
	return b.String()
}
