package pattern

import (
	"maps"
	"slices"
	"strings"
)

// Values holds the values of placeholders, by the text between the braces: namespace,
// serviceAccount, cluster, claims.NAME.
type Values map[string]string

const (
	maxSolutions  = 32
	maxSolveSteps = 1 << 16
)

// Solve is the inverse of Match. It returns each choice of values with which the pattern matches
// the name, sorted. A pattern without placeholders has one empty choice if it matches, and
// otherwise none. The values of claims are in lower case, as they are compared. whole is false if
// there are too many choices to list.
func (p Pattern) Solve(name string) (choices []Values, whole bool) {
	s := solver{values: Values{}, steps: maxSolveSteps, seen: map[string]bool{}}
	if IsPath(name) {
		s.components(strings.Split(string(p), "/"), strings.Split(name, "/"), true)
	}
	slices.SortFunc(s.choices, func(a, b Values) int { return strings.Compare(a.key(), b.key()) })
	return s.choices, s.steps > 0 && len(s.choices) <= maxSolutions
}

func (v Values) key() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(v)) {
		b.WriteString(name + "=" + v[name] + "\n")
	}
	return b.String()
}

type solver struct {
	values  Values // chosen so far
	choices []Values
	seen    map[string]bool
	steps   int // the remaining steps
}

func (s *solver) isSpent() bool {
	s.steps--
	return s.steps <= 0 || len(s.choices) > maxSolutions
}

// components tries each way in which the pattern can match the path.
func (s *solver) components(pattern, path []string, isStart bool) {
	if s.isSpent() {
		return
	}
	if len(pattern) == 0 {
		if key := s.values.key(); len(path) == 0 && !s.seen[key] {
			s.seen[key] = true
			s.choices = append(s.choices, maps.Clone(s.values))
		}
		return
	}
	if pattern[0] == "**" {
		for i := range len(path) + 1 {
			s.components(pattern[1:], path[i:], isStart)
		}
		return
	}
	if claim, ok := claimPlaceholder(pattern[0]); ok {
		for i := 1; i <= len(path); i++ {
			value := strings.Join(path[:i], "/")
			if isRepositoryPath(value) && !(isStart && isHost(value)) {
				s.with("claims."+claim, value, func() { s.components(pattern[1:], path[i:], false) })
			}
		}
		return
	}
	if len(path) > 0 {
		s.component(symbols(pattern[0]), path[0], func() { s.components(pattern[1:], path[1:], false) })
	}
}

// component tries each way in which the symbols can match the text, and calls then for each.
func (s *solver) component(pattern []string, text string, then func()) {
	switch {
	case s.isSpent():
	case len(pattern) == 0:
		if text == "" {
			then()
		}
	case pattern[0] == "*":
		for i := range len(text) + 1 {
			s.component(pattern[1:], text[i:], then)
		}
	case len(pattern[0]) > 1:
		for i := 1; i <= len(text); i++ {
			s.with(strings.Trim(pattern[0], "{}"), text[:i], func() { s.component(pattern[1:], text[i:], then) })
		}
	case text != "" && text[0] == pattern[0][0]:
		s.component(pattern[1:], text[1:], then)
	}
}

// with continues with a value, unless a different one was chosen before.
func (s *solver) with(name, value string, then func()) {
	before, chosen := s.values[name]
	if chosen && before != value {
		return
	}
	s.values[name] = value
	then()
	if !chosen {
		delete(s.values, name)
	}
}
