package warning

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Cautions names rules for identities that are known to allow more than they seem to. identities
// are by name.
func Cautions(p *policy.Policy, identities map[string]subjects.KnownIdentity) []string {
	pull := action.Of([]string{"pull"})
	var found []string
	for _, r := range p.WrittenRules() {
		var actions action.Set
		for _, a := range r.Allow {
			actions |= a.Actions
		}
		found = append(found, repeated(&r, identities)...)
		for i := range r.Subjects {
			for _, name := range r.Subjects[i].Identities {
				known, ok := identities[name]
				if !ok {
					continue
				}
				where := fmt.Sprintf("rule %s: subjects[%d], identity %s: ", r.Name, i, term.QuoteName(name))
				for _, text := range r.Subjects[i].Cautions(known, actions&^pull != 0) {
					found = append(found, where+text)
				}
			}
		}
	}
	return found
}

// repeated finds claims whose values have a different owner at each of the rule's identities.
func repeated(r *policy.WrittenRule, identities map[string]subjects.KnownIdentity) []string {
	var found []string
	repeats := func(names []string, claim string) bool {
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !identities[name].Profile.Repeats(claim) })
		return len(names) > 1
	}
	var all []string
	for i := range r.Subjects {
		m := &r.Subjects[i]
		all = append(all, m.Identities...)
		for _, claim := range m.Told() {
			if repeats(slices.Clone(m.Identities), claim) {
				found = append(found, fmt.Sprintf("rule %s: subjects[%d]: claims.%s can have the same value at several of its identities, and mean a different caller at each: "+
					"write a subject for each identity", r.Name, i, claim))
			}
		}
	}
	for i, a := range r.Allow {
		for j, repositories := range a.Repositories {
			for _, claim := range repositories.Claims() {
				if repeats(slices.Clone(all), claim) {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: {claims.%s} can have the same value at several of the rule's identities, and mean a different caller at each: "+
						"write a rule for each identity, with other repositories", r.Name, i, j, claim))
				}
			}
		}
	}
	return found
}
