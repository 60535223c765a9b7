package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/term"
)

// KnownIdentity is what the configuration says of an identity.
type KnownIdentity struct {
	Profile identity.Profile
	Require []string // the claims that all of its tokens have as configured
}

// Cautions names rules for identities, by their names, that are known to allow more
// than they seem to. It is a warning, as Unused.
func (p *Policy) Cautions(identities map[string]KnownIdentity) []string {
	var found []string
	for _, r := range p.rules {
		var actions ActionSet
		for _, a := range r.allow {
			actions |= a.actions
		}
		found = append(found, repeated(&r, identities)...)
		for i := range r.subjects {
			for _, name := range r.subjects[i].identities {
				known, ok := identities[name]
				if !ok {
					continue
				}
				where := fmt.Sprintf("rule %s: subjects[%d], identity %s: ", r.name[0], i, term.QuoteName(name))
				for _, text := range cautions(&r.subjects[i], known, actions&^pullAction != 0) {
					found = append(found, where+text)
				}
			}
		}
	}
	return found
}

// repeated finds claims whose values are somebody else's at another of the identities
// that are meant.
func repeated(r *rule, identities map[string]KnownIdentity) []string {
	var found []string
	repeats := func(names []string, claim string) bool {
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !identities[name].Profile.Repeats(claim) })
		return len(names) > 1
	}
	var all []string
	for i := range r.subjects {
		m := &r.subjects[i]
		all = append(all, m.identities...)
		for _, claim := range m.told() {
			if repeats(slices.Clone(m.identities), claim) {
				found = append(found, fmt.Sprintf("rule %s: subjects[%d]: claims.%s can have the same value at several of its identities, and mean somebody else at each: "+
					"write a subject for each identity", r.name[0], i, claim))
			}
		}
	}
	for i, a := range r.allow {
		for j, repositories := range a.repositories {
			for _, claim := range repositories.Claims() {
				if repeats(slices.Clone(all), claim) {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: {claims.%s} can have the same value at several of the rule's identities, and mean somebody else at each: "+
						"write a rule for each identity, with other repositories", r.name[0], i, j, claim))
				}
			}
		}
	}
	return found
}

func cautions(m *subjectMatch, known KnownIdentity, pushes bool) []string {
	compared, told := m.compared(), m.told()
	slices.Sort(compared)
	compared = slices.Compact(compared)
	compares := func(claim string) bool {
		return slices.Contains(told, claim) || slices.Contains(known.Require, claim)
	}
	var texts []string
	for _, claim := range compared {
		switch c, named := known.Profile.Claim(claim); {
		case !named && known.Profile != identity.Generic:
			texts = append(texts, fmt.Sprintf("claims.%s is none that tokens of profile %s are known to have: if it is missing, nobody matches", claim, known.Profile))
		case c.Instead != "" && !compares(c.Instead):
			texts = append(texts, fmt.Sprintf("claims.%s is a name, which somebody else can have later: compare %s, which nobody else gets", claim, c.Instead))
		}
	}
	if !pushes {
		return texts
	}
	for _, c := range m.claims {
		for _, value := range c.values {
			if who := known.Profile.Strangers(c.name, value); who != "" {
				texts = append(texts, fmt.Sprintf("claims.%s may be %s, and %s: let jobs push that nobody else starts", c.name, value, who))
			}
		}
	}
	for _, a := range known.Profile.Advice() {
		if !slices.ContainsFunc(a.Claims, compares) && (a.Only == "" || compares(a.Only)) {
			texts = append(texts, strings.Join([]string{a.Risk, ": compare ", strings.Join(a.Claims, " or "), "; add ", a.Better}, ""))
		}
	}
	return texts
}

// told returns the claims by whose values the subject is told, sorted: not those that
// only have to be there.
func (m *subjectMatch) told() []string {
	var told []string
	for _, c := range m.claims {
		if !slices.ContainsFunc(c.values, func(value string) bool { return strings.Trim(value, "*") == "" }) {
			told = append(told, c.name)
		}
	}
	if m.condition != nil {
		for _, use := range m.condition.Uses() {
			if !use.IsPresence {
				told = append(told, use.Claim)
			}
		}
	}
	slices.Sort(told)
	return slices.Compact(told)
}

// compared returns the claims that the subject looks at.
func (m *subjectMatch) compared() []string {
	var compared []string
	for _, c := range m.claims {
		compared = append(compared, c.name)
	}
	if m.condition != nil {
		for _, use := range m.condition.Uses() {
			compared = append(compared, use.Claim)
		}
	}
	return compared
}

// Compared returns the claims that rules and denials for an identity compare, by
// their names, sorted.
func (p *Policy) Compared(identity string) []string {
	var all []string
	note := func(subjects []subjectMatch) {
		for i := range subjects {
			if slices.Contains(subjects[i].identities, identity) {
				all = append(all, subjects[i].compared()...)
			}
		}
	}
	for i := range p.rules {
		note(p.rules[i].subjects)
	}
	for i := range p.deny {
		note(p.deny[i].subjects)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
