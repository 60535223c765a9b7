package pattern

import (
	"slices"
	"strings"
)

// Contains reports whether p matches every name that q matches, for every identity. True is always
// correct. False can be wrong for a few patterns, because Contains does not know the grammar of
// names.
//
// The wildcards of q can stand for any text, so only a wildcard of p can contain them. So q is
// compared like a name, in which its wildcards are special letters.
func (p Pattern) Contains(q Pattern) bool {
	if isAboutOthers(string(p), string(q)) {
		return false
	}
	c := containment{p: spread(strings.Split(string(p), "/")), q: strings.Split(string(q), "/")}
	if isStart(c.q) { // every name has a component
		c.q = []string{"*", "**"}
	}
	c.width = len(c.q) + 1
	c.refuted = make([]bool, (len(c.p)+1)*c.width)
	return c.from(0, 0)
}

// spread writes ** on both sides of a * that is beside one. The position of the other components
// makes no difference.
func spread(components []string) []string {
	var all []string
	for len(components) > 0 {
		run := slices.IndexFunc(components, func(component string) bool { return strings.Trim(component, "*") != "" })
		if run < 0 {
			run = len(components)
		}
		if !slices.Contains(components[:run], "**") {
			run = max(run, 1)
			all, components = append(all, components[:run]...), components[run:]
			continue
		}
		all = append(all, "**")
		for _, component := range components[:run] {
			if component == "*" {
				all = append(all, "*", "**")
			}
		}
		components = components[run:]
	}
	return all
}

type containment struct {
	p, q    []string
	width   int
	refuted []bool // by the index in p, and that in q
}

// from compares the components of p from i on with those of q from j on.
func (c *containment) from(i, j int) bool {
	if c.refuted[i*c.width+j] {
		return false
	}
	if c.holds(i, j) {
		return true
	}
	c.refuted[i*c.width+j] = true
	return false
}

func (c *containment) holds(i, j int) bool {
	if i == len(c.p) {
		return j == len(c.q)
	}
	if c.p[i] == "**" {
		return c.from(i+1, j) || j < len(c.q) && c.from(i, j+1)
	}
	if j == len(c.q) || c.q[j] == "**" {
		return false
	}
	_, isClaim := claimPlaceholder(c.p[i])
	_, isTheirs := claimPlaceholder(c.q[j])
	switch {
	case isClaim:
		// At the start, a value that looks like a host is not accepted: see withClaims.
		if c.p[i] != c.q[j] || isStart(c.p[:i]) && !isStart(c.q[:j]) {
			return false
		}
	case isTheirs: // it can be several
		if c.p[i] != "*" || i+1 == len(c.p) || c.p[i+1] != "**" {
			return false
		}
	case !componentContains(c.p[i], c.q[j]):
		return false
	}
	return c.from(i+1, j+1)
}

func isStart(before []string) bool {
	return !slices.ContainsFunc(before, func(component string) bool { return component != "**" })
}

// NameContains is Contains for names of subjects, in which * matches any run of characters.
func NameContains(p, q string) bool { return componentContains(p, q) }

// componentContains goes from the left, and back only to the latest * of p. A * that takes as
// little as possible leaves the most to the rest.
func componentContains(p, q string) bool {
	if p == "*" {
		return true
	}
	if isAboutOthers(p, q) {
		return false
	}
	ours, theirs := symbols(p), symbols(q)
	i, j, star, taken := 0, 0, -1, 0
	for j < len(theirs) {
		switch {
		case i < len(ours) && ours[i] == "*":
			star, taken = i, j
			i++
		case i < len(ours) && ours[i] == theirs[j]:
			i++
			j++
		case star >= 0:
			taken++
			i, j = star+1, taken
		default:
			return false
		}
	}
	for i < len(ours) && ours[i] == "*" {
		i++
	}
	return i == len(ours)
}

// symbols returns the letters of a component. A * or a placeholder is one symbol.
func symbols(component string) []string {
	all := make([]string, 0, len(component))
	for component != "" {
		length := 1
		if component[0] == '{' {
			length = max(strings.IndexByte(component, '}'), 0) + 1
		}
		all = append(all, component[:length])
		component = component[length:]
	}
	return all
}

// Overlaps reports whether some name is matched by both, as far as their text shows. A placeholder
// could have any value.
func (p Pattern) Overlaps(q Pattern) bool {
	return overlap(strings.Split(string(p), "/"), strings.Split(string(q), "/"), func(c string) bool {
		_, isClaim := claimPlaceholder(c)
		return c == "**" || isClaim
	}, func(a, b string) bool {
		isWild := func(symbol string) bool { return symbol == "*" || len(symbol) > 1 }
		return overlap(symbols(a), symbols(b), isWild, func(a, b string) bool { return a == b })
	})
}

// overlap compares two lists in which wild elements stand for any number of elements.
func overlap(a, b []string, isWild func(string) bool, meets func(a, b string) bool) bool {
	row := make([]bool, len(b)+1) // of the elements of a so far
	row[0] = true
	for j, element := range b {
		row[j+1] = row[j] && isWild(element)
	}
	for _, element := range a {
		next := make([]bool, len(b)+1)
		next[0] = row[0] && isWild(element)
		for j, other := range b {
			if isWild(element) || isWild(other) { // it stands for no element here, or for the other element
				next[j+1] = row[j+1] || next[j]
			} else {
				next[j+1] = row[j] && meets(element, other)
			}
		}
		row = next
	}
	return row[len(b)]
}
