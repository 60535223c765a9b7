package diff

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// area is a set of repositories: those that a pattern matches and, of each list, one pattern. The
// patterns have no placeholders.
type area struct {
	pattern pattern.Pattern
	within  [][]pattern.Pattern
}

func (a *area) has(matches func(pattern.Pattern) bool) bool {
	return matches(a.pattern) && !slices.ContainsFunc(a.within, func(list []pattern.Pattern) bool { return !slices.ContainsFunc(list, matches) })
}

// repositoryIn returns a repository that is in the area, in none of the others, and accepted. It is
// "" if there is none.
func repositoryIn(in area, others []area, accept func(string) bool) (string, error) {
	var near []area
	for _, other := range others {
		if other.within == nil && other.pattern.Contains(in.pattern) {
			return "", nil
		}
		if other.pattern.Overlaps(in.pattern) {
			near = append(near, other)
		}
	}
	isFound := func(matches func(pattern.Pattern) bool) bool {
		return in.has(matches) && !slices.ContainsFunc(near, func(other area) bool { return other.has(matches) })
	}
	for _, word := range []string{"app", "example"} {
		name := strings.ReplaceAll(strings.ReplaceAll(string(in.pattern), "**", word), "*", word)
		if isRepository(name) && isFound(func(p pattern.Pattern) bool { return p.Match(name, nil, new(int)) }) && accept(name) {
			return name, nil
		}
	}
	s := search{grammar: repositories, needed: []int{0}}
	index := map[pattern.Pattern]int{}
	var written []string
	add := func(p pattern.Pattern) {
		if _, ok := index[p]; !ok {
			index[p] = len(written)
			written = append(written, string(p))
			s.patterns = append(s.patterns, compile(string(p)))
		}
	}
	for _, a := range append([]area{in}, near...) {
		add(a.pattern)
		for _, list := range a.within {
			for _, p := range list {
				add(p)
			}
		}
	}
	s.alphabet = letters(written) + "/"
	found := ""
	err := s.words(func(name string, matches func(int) bool) bool {
		if isFound(func(p pattern.Pattern) bool { return matches(index[p]) }) && isRepository(name) && accept(name) {
			found = name
		}
		return found != ""
	})
	return found, err
}

func isRepository(name string) bool {
	_, err := registryauth.ParseScope("repository:" + name + ":pull")
	return err == nil
}

// The states of a repository's name. The first component can be read as a host and as one of the path.
const (
	pathStart uint32 = 1 << iota
	pathText
	pathDot
	pathUnderscore
	pathUnderscores
	pathDash
	hostStart
	hostText
	hostDash
	dottedStart // of a host's second or later label
	dottedText
	dottedDash
	portStart
	portText
)

// repositories follows registryauth.ParseScope. Where the two differ, ParseScope counts.
var repositories = grammar{start: pathStart | hostStart, final: pathText, step: func(states uint32, c byte) uint32 {
	next := uint32(0)
	lower := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
	from := func(of, to uint32) {
		if states&of != 0 {
			next |= to
		}
	}
	switch {
	case lower:
		from(pathStart|pathText|pathDot|pathUnderscore|pathUnderscores|pathDash, pathText)
		if c <= '9' {
			from(portStart|portText, portText)
		}
	case c == '.':
		from(pathText, pathDot)
		from(hostText|dottedText, dottedStart)
	case c == '_':
		from(pathText, pathUnderscore)
		from(pathUnderscore, pathUnderscores)
	case c == '-':
		from(pathText|pathDash, pathDash)
		from(hostText|hostDash, hostDash)
		from(dottedText|dottedDash, dottedDash)
	case c == ':':
		from(hostText|dottedText, portStart)
	case c == '/':
		from(pathText|dottedText|portText, pathStart)
	}
	if lower || 'A' <= c && c <= 'Z' {
		from(hostStart|hostText|hostDash, hostText)
		from(dottedStart|dottedText|dottedDash, dottedText)
	}
	return next
}}
