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

func cautions(m *subjectMatch, known KnownIdentity, pushes bool) []string {
	compared := m.compared()
	slices.Sort(compared)
	compared = slices.Compact(compared)
	compares := func(claim string) bool {
		return slices.Contains(compared, claim) || slices.Contains(known.Require, claim)
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
	for _, a := range known.Profile.Advice() {
		if !slices.ContainsFunc(a.Claims, compares) && (a.Only == "" || compares(a.Only)) {
			texts = append(texts, strings.Join([]string{a.Risk, ": compare ", strings.Join(a.Claims, " or "), "; add ", a.Better}, ""))
		}
	}
	return texts
}

// compared returns the claims that the subject is told by.
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
