package pattern

import (
	"fmt"
	"slices"
	"strings"
)

// Collision reports whether a name in one component of the pattern can be read in more than one
// way. It returns an example if there is a simple one.
func (p Pattern) Collision(clusters []string) (example string, found bool) {
	components := strings.Split(string(p), "/")
	for _, component := range components {
		parts := componentParts(component)
		// A whole component has one reading, unless it is between two ** and can be at any
		// position.
		for i, part := range parts {
			if part[0] == '{' && slices.Contains(components, part) && strings.Count(string(p), "**") < 2 {
				parts[i] = "x"
			}
		}
		rest := cutClear(parts, func(cluster, other string) bool { return strings.HasPrefix(other, cluster) }, clusters)
		slices.Reverse(rest)
		rest = cutClear(rest, func(cluster, other string) bool { return strings.HasSuffix(other, cluster) }, clusters)
		slices.Reverse(rest)
		if slices.ContainsFunc(rest, func(part string) bool { return part[0] == '{' }) {
			return collisionExample(component, rest), true
		}
	}
	return "", false
}

// componentParts splits a component into wildcards, placeholders and the text between them.
func componentParts(component string) (parts []string) {
	for component != "" {
		end := strings.IndexAny(component, "*{")
		switch {
		case end < 0:
			end = len(component)
		case end > 0:
		case component[0] == '*':
			end = 1
		default:
			end = strings.IndexByte(component, '}') + 1
		}
		parts, component = append(parts, component[:end]), component[end:]
	}
	return parts
}

// cutClear removes the leading parts whose end in a name is unambiguous: texts, and placeholders
// before a character that they cannot hold. A single remaining part ends with the component.
func cutClear(parts []string, mistaken func(cluster, other string) bool, clusters []string) []string {
	apart := func() bool {
		return !slices.ContainsFunc(clusters, func(cluster string) bool {
			return slices.ContainsFunc(clusters, func(other string) bool { return other != cluster && mistaken(cluster, other) })
		})
	}
	for len(parts) > 1 {
		part, next := parts[0], parts[1]
		if isVariable(part) && (isVariable(next) || holds(part, next)) && !(part == "{cluster}" && apart()) {
			return parts
		}
		parts = parts[1:]
	}
	return nil
}

func isVariable(part string) bool { return part[0] == '*' || part[0] == '{' }

// holds reports whether a text can be part of the value of a wildcard or a placeholder. Names of
// clusters and namespaces are DNS labels; names of ServiceAccounts are DNS subdomains.
func holds(variable, text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool {
		inLabel := 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-'
		return variable != "*" && !inLabel && !(variable == "{serviceAccount}" && c == '.')
	})
}

// collisionExample returns one name that two identities can have, or "" if there is no simple one.
func collisionExample(component string, unclear []string) string {
	for i, left := range unclear[:len(unclear)-1] {
		between, right := "", unclear[i+1]
		if !isVariable(right) { // the last part is variable, so there is a next one
			between, right = right, unclear[i+2]
		}
		if !isVariable(left) || !holds(left, between) || !holds(right, between) ||
			left[0] == '{' && strings.Count(component, left) > 1 || right[0] == '{' && strings.Count(component, right) > 1 {
			continue
		}
		var first, second []string // the values of the two identities: a and b-c, or a-b and c
		if left != "*" {
			first, second = append(first, left+" a"), append(second, left+" a"+between+"b")
		}
		if right != "*" {
			first, second = append(first, right+" b"+between+"c"), append(second, right+" c")
		}
		before, after, ok := strings.Cut(component, left+between+right)
		if !ok {
			continue
		}
		name := strings.Join([]string{"a", "b", "c"}, between)
		for _, text := range []*string{&before, &after} {
			parts := componentParts(*text)
			for i, part := range parts {
				if isVariable(part) {
					parts[i] = "x"
				}
			}
			*text = strings.Join(parts, "")
		}
		return fmt.Sprintf(" (for example, %s and %s both have %s)", strings.Join(first, " with "), strings.Join(second, " with "), before+name+after)
	}
	return ""
}
