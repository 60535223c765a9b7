package policy

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/subjects"
	"github.com/pullpass/pullpass/internal/term"
)

// Cautions names rules for identities, by their names, that are known to allow more
// than they seem to. It is a warning, as Unused.
func (p *Policy) Cautions(identities map[string]subjects.KnownIdentity) []string {
	var found []string
	for _, r := range p.rules {
		var actions ActionSet
		for _, a := range r.allow {
			actions |= a.actions
		}
		found = append(found, repeated(&r, identities)...)
		for i := range r.subjects {
			for _, name := range r.subjects[i].Identities {
				known, ok := identities[name]
				if !ok {
					continue
				}
				where := fmt.Sprintf("rule %s: subjects[%d], identity %s: ", r.name[0], i, term.QuoteName(name))
				for _, text := range r.subjects[i].Cautions(known, actions&^pullAction != 0) {
					found = append(found, where+text)
				}
			}
		}
	}
	return found
}

// repeated finds claims whose values are somebody else's at another of the identities
// that are meant.
func repeated(r *rule, identities map[string]subjects.KnownIdentity) []string {
	var found []string
	repeats := func(names []string, claim string) bool {
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !identities[name].Profile.Repeats(claim) })
		return len(names) > 1
	}
	var all []string
	for i := range r.subjects {
		m := &r.subjects[i]
		all = append(all, m.Identities...)
		for _, claim := range m.Told() {
			if repeats(slices.Clone(m.Identities), claim) {
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

// Compared returns the claims that rules and denials for an identity compare, by
// their names, sorted.
func (p *Policy) Compared(identity string) []string {
	var all []string
	note := func(list []subjects.Match) {
		for i := range list {
			if slices.Contains(list[i].Identities, identity) {
				all = append(all, list[i].Compared()...)
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
