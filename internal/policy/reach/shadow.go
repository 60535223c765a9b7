package reach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// Shadowed names rules whose grants a different rule covers for every identity, and rules and
// denials whose subjects a denial refuses anyway. It is a warning: such a rule does no harm, but
// editing it has no effect. A rule that is not named may still be shadowed, by several rules
// together or because of the grammar of names.
func Shadowed(p *policy.Policy) []string {
	return written{rules: shadows(p.WrittenRules()), denials: denialsOf("", p.WrittenDenials())}.shadowed(func(*shadow) string { return "" })
}

// written is rules and denials, those of files before those of the objects of a cluster.
type written struct {
	rules   []shadow
	denials []Denial
	// Nothing is reported about the first knownRules and knownDenials, which are those of files.
	knownRules, knownDenials int
}

// shadowed also reports each rule for which idle returns a reason.
func (w written) shadowed(idle func(*shadow) string) (found []string) {
	rules, denials := w.rules, w.denials
	// Of two rules with equal grants, the first stays.
	replaces := func(j, i int) bool {
		return ruleContains(rules, j, i) && (j < i || !ruleContains(rules, i, j))
	}
	shadowed := make([]bool, len(rules))
	for i := range rules {
		for j := 0; j < len(rules) && !shadowed[i]; j++ {
			shadowed[i] = replaces(j, i)
		}
	}
	for i := w.knownRules; i < len(rules); i++ {
		r := &rules[i]
		if why := idle(r); why != "" {
			found = append(found, fmt.Sprintf("rule %s: grants nothing: %s", r.Name, why))
			continue
		}
		if d := slices.IndexFunc(denials, func(d Denial) bool { return !r.Anonymous && allWithin(r.whom, d.Subjects) }); d >= 0 {
			found = append(found, fmt.Sprintf("rule %s: grants nothing: the deny rule %s (%s) refuses every caller that the rule is for: remove the rule, or narrow the denial", r.Name, denials[d].Name, denials[d].Origin))
			continue
		}
		by := -1 // a rule that stays if the named rules are removed
		for j := range rules {
			if shadowed[i] && !shadowed[j] && replaces(j, i) {
				by = j
				break
			}
		}
		if by >= 0 {
			found = append(found, fmt.Sprintf("rule %s: grants nothing that the rule %s (%s) does not: remove it, or narrow the other", r.Name, rules[by].Name, rules[by].Origin))
		}
	}
	for i := w.knownDenials; i < len(denials); i++ {
		for j := range denials {
			if allWithin(denials[i].Subjects, denials[j].Subjects) && (j < i || !allWithin(denials[j].Subjects, denials[i].Subjects)) {
				found = append(found, fmt.Sprintf("deny rule %s: refuses no caller that the deny rule %s (%s) does not refuse: remove it, or narrow the other", denials[i].Name, denials[j].Name, denials[j].Origin))
				break
			}
		}
	}
	return found
}

// shadow is a rule, with its subjects in a form for comparison.
type shadow struct {
	policy.WrittenRule
	whom []Whom
}

func shadows(rules []policy.WrittenRule) []shadow {
	all := make([]shadow, len(rules))
	for i, r := range rules {
		all[i] = shadow{r, whomOf(r.Subjects)}
	}
	return all
}

// ruleContains reports whether the rule at index o grants everything that the rule at index i
// grants.
func ruleContains(rules []shadow, o, i int) bool {
	outer, inner := &rules[o], &rules[i]
	switch {
	case outer.Services != nil && (inner.Services == nil || !isSubset(inner.Services, outer.Services)):
		return false
	case outer.Annotation != "" && outer.Annotation != inner.Annotation, outer.Requests && !inner.Requests:
		return false
	case outer.Anonymous:
		return allowContains(outer.Allow, inner.Allow, &oidc.Identity{})
	case inner.Anonymous:
		return false
	}
	for s := range inner.whom {
		subject := &inner.whom[s]
		if !slices.ContainsFunc(outer.whom, func(w Whom) bool {
			// The cost of claims and conditions is bounded for each request, so a later rule may
			// not be evaluated.
			return subjectContains(&w, subject) && (o < i || w.Claims == nil && w.Condition == "")
		}) {
			return false
		}
		for _, id := range literalNames(subject) {
			if !allowContains(outer.Allow, inner.Allow, id) {
				return false
			}
		}
	}
	return true
}

// allWithin reports whether each of the subjects is within one of the others.
func allWithin(subjects, others []Whom) bool {
	return !slices.ContainsFunc(subjects, func(inner Whom) bool {
		return !slices.ContainsFunc(others, func(outer Whom) bool { return subjectContains(&outer, &inner) })
	})
}

// subjectContains reports whether outer matches every identity that inner matches.
func subjectContains(outer, inner *Whom) bool {
	switch {
	case isOnlyTokens(inner) && !isOnlyTokens(outer): // inner matches ServiceAccounts and other identities
		return false
	case (outer.Identities == nil) != (inner.Identities == nil) || !isSubset(inner.Identities, outer.Identities):
		return false
	case outer.TokenIDs != nil && (inner.TokenIDs == nil || !isSubset(inner.TokenIDs, outer.TokenIDs)):
		return false
	case outer.NamespaceSelector != "" && outer.NamespaceSelector != inner.NamespaceSelector:
		return false
	case outer.Condition != "" && outer.Condition != inner.Condition:
		return false
	case outer.Nodes != nil && (inner.Nodes == nil || !namesContain(outer.Nodes, inner.Nodes)):
		return false // a token may name no node, which * does not match either
	}
	for claim, values := range outer.Claims {
		if compared, ok := inner.Claims[claim]; !ok || !isSubset(compared, values) {
			return false
		}
	}
	return everyNameWithin(outer.Clusters, inner.Clusters) && everyNameWithin(outer.Namespaces, inner.Namespaces) && everyNameWithin(outer.ServiceAccounts, inner.ServiceAccounts)
}

func isOnlyTokens(s *Whom) bool {
	return s.TokenIDs != nil && s.Identities == nil && s.Clusters == nil && s.Namespaces == nil && s.NamespaceSelector == "" && s.ServiceAccounts == nil && s.Nodes == nil
}

// everyNameWithin is for names that every ServiceAccount has.
func everyNameWithin(outer, inner []string) bool {
	return outer == nil || slices.ContainsFunc(outer, func(glob string) bool { return strings.Trim(glob, "*") == "" }) ||
		inner != nil && namesContain(outer, inner)
}

func namesContain(outer, inner []string) bool {
	return !slices.ContainsFunc(inner, func(q string) bool {
		return !slices.ContainsFunc(outer, func(p string) bool { return pattern.NameContains(p, q) })
	})
}

func isSubset(list, of []string) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(of, s) })
}

// maxLiteralNames bounds the names that are put into patterns for one subject.
const maxLiteralNames = 64

// literalNames returns each choice of the literal names of a subject. With them, {namespace}/x may
// equal team-a/x.
func literalNames(s *Whom) []*oidc.Identity {
	all := []*oidc.Identity{{}}
	choose := func(globs []string, set func(id *oidc.Identity, name string)) {
		if globs == nil || len(globs)*len(all) > maxLiteralNames || slices.ContainsFunc(globs, func(glob string) bool { return strings.Contains(glob, "*") }) {
			return
		}
		var chosen []*oidc.Identity
		for _, before := range all {
			for _, name := range globs {
				id := *before
				set(&id, name)
				chosen = append(chosen, &id)
			}
		}
		all = chosen
	}
	choose(s.Clusters, func(id *oidc.Identity, name string) { id.Cluster = name })
	choose(s.Namespaces, func(id *oidc.Identity, name string) { id.Kubernetes.Namespace = name })
	choose(s.ServiceAccounts, func(id *oidc.Identity, name string) { id.Kubernetes.ServiceAccount.Name = name })
	return all
}

// allowContains reports whether outer allows everything that inner allows, for an identity with
// these names.
func allowContains(outer, inner []policy.WrittenAllowance, id *oidc.Identity) bool {
	for _, allowed := range inner {
		if allowed.Repositories == nil && !covers(outer, nil, allowed.Actions, id) {
			return false
		}
		for i := range allowed.Repositories {
			if !covers(outer, &allowed.Repositories[i], allowed.Actions, id) {
				return false
			}
		}
	}
	return true
}

// covers reports whether the allowances together grant all actions on the repositories of the
// pattern, or on the catalog if there is no pattern.
func covers(all []policy.WrittenAllowance, inner *pattern.Pattern, actions action.Set, id *oidc.Identity) bool {
	var given action.Set
	for _, a := range all {
		if inner == nil && a.Repositories == nil || inner != nil && slices.ContainsFunc(a.Repositories, func(outer pattern.Pattern) bool {
			return expand(outer, id).Contains(expand(*inner, id))
		}) {
			given |= a.Actions
		}
	}
	return given&action.All != 0 || given&actions == actions
}

func expand(p pattern.Pattern, id *oidc.Identity) pattern.Pattern {
	if !p.HasPlaceholder() {
		return p
	}
	return pattern.Pattern(p.Expand(id))
}
