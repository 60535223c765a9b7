package objectstatus

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// Patterns of rules with more than maxComponents components are not analyzed. A repository that
	// only they allow is reported as not granted as a whole.
	maxComponents  = 16
	manyComponents = 3 * maxComponents

	maxMeetSteps = 4096
	maxParts     = 3

	// maxSteps is the cost limit for the status of one object, about a quarter of a second of a
	// processor. An author can write an object that would cost minutes while other objects wait.
	maxSteps = 1 << 24
	// The fixed costs of a decision, of an explanation, and of a look at one rule or pattern there.
	// The cost of comparisons is added.
	decideSteps  = 500
	explainSteps = 2000
	lookSteps    = 50
)

// asker is the subject, the registry and the actions of a question to the policy.
type asker struct {
	policy  *policy.Policy
	subject policy.Subject
	service string
	actions []string // sorted
	spent   *int     // steps
}

func (a *asker) decide(name string) policy.Decision {
	d := a.policy.Decide(a.subject, a.service, a.scope(name))
	*a.spent += decideSteps + d.Steps()
	return d
}

func (a *asker) explain(name string) (policy.ScopeDecision, policy.Trace) {
	d, trace := a.policy.Explain(a.subject, a.service, a.scope(name))
	*a.spent += explainSteps + d.Steps() + lookSteps*(len(trace.Rules)+len(trace.Deny))
	return d.Scopes[0], trace
}

func (a *asker) scope(name string) []registryauth.Scope {
	return []registryauth.Scope{{Type: "repository", Name: name, Actions: a.actions}}
}

// asked returns the decision about one name.
func (a *asker) asked(name string) policy.ScopeDecision {
	return a.decide(name).Scopes[0]
}

// sample returns a name that the pattern matches. The pattern has at most one **, which becomes the
// given number of components.
//
// The name has special letters for the wildcards. Only a wildcard matches such a letter, and it
// matches any name in that place. So the decision about the sample holds for all names of the same
// form.
func sample(p pattern.Pattern, components int) string {
	all := strings.Split(string(p), "/")
	if i := slices.Index(all, "**"); i >= 0 {
		all = slices.Replace(all, i, i+1, slices.Repeat([]string{"*"}, components)...)
	}
	return strings.Join(all, "/")
}

// covers reports whether all actions are granted on every name of the pattern, and whether some
// are. isSure means that some holds for every name. It decides by samples.
func (a *asker) covers(p pattern.Pattern, within []pattern.Pattern) (all, some, isSure bool) {
	if !strings.Contains(string(p), "**") {
		d := a.asked(sample(p, 0))
		return d.Reason == "", len(d.Granted) > 0, true
	}
	// A pattern that matches very many components has a ** of its own. It matches every number from
	// the length of its other components on. Smaller numbers are tested one by one.
	d, trace := a.explain(sample(p, manyComponents))
	all, some = d.Reason == "", len(d.Granted) > 0
	if !some {
		return false, false, true
	}
	most := strings.Count(string(p), "/") + 1
	for _, w := range within {
		most = max(most, strings.Count(string(w), "/")+1)
	}
	for i := range trace.Rules {
		for _, s := range trace.Rules[i].Scopes {
			for _, text := range slices.Concat(s.Patterns, s.Items) {
				most = max(most, strings.Count(text, "/")+1)
			}
		}
	}
	if most > maxComponents {
		return false, true, false
	}
	for n := range most + 1 {
		if name := sample(p, n); name != "" {
			d := a.asked(name)
			all, some = all && d.Reason == "", some && len(d.Granted) > 0
		}
	}
	return all, some, true
}

// partial describes the grants of a pattern that is not granted as a whole.
type partial struct {
	patterns []string // at most maxParts
	rules    []string
	unclear  bool // further grants are possible
}

// parts asks about the intersections of the pattern with the patterns of each rule.
func (a *asker) parts(p pattern.Pattern, trace policy.Trace, allows map[string][]pattern.Pattern, within []pattern.Pattern) (found partial) {
	for i := range trace.Rules {
		t := &trace.Rules[i]
		_, hasAnnotation := a.subject.Annotations[t.Annotation]
		if !t.SubjectMatched || !t.ServiceMatched || t.Annotation != "" && !hasAnnotation {
			continue
		}
		for _, allowed := range allows[t.Name] {
			if *a.spent += lookSteps; *a.spent > maxSteps {
				return found
			}
			allowed = pattern.Pattern(allowed.Expand(a.subject.Identity))
			if allowed.HasPlaceholder() || !p.Overlaps(allowed) {
				continue
			}
			granted, isAll := a.common(p, allowed, within)
			if t.Requests || strings.Contains(t.Name, "/") { // within limits these
				isAll = isAll || !slices.ContainsFunc(within, func(w pattern.Pattern) bool {
					w = pattern.Pattern(w.Expand(a.subject.Identity))
					return p.Overlaps(w) && allowed.Overlaps(w)
				})
			}
			if granted == "" {
				found.unclear = found.unclear || !isAll
				continue
			}
			if !slices.Contains(found.patterns, string(granted)) {
				found.patterns = append(found.patterns, string(granted))
			}
			if !slices.Contains(found.rules, t.Name) {
				found.rules = append(found.rules, t.Name)
			}
			if len(found.patterns) >= maxParts {
				return found
			}
		}
	}
	return found
}

// common returns a pattern within both patterns on which something is granted. It is empty if the
// test finds no grant. isAll reports whether the tested pattern was the whole intersection.
func (a *asker) common(p, allowed pattern.Pattern, within []pattern.Pattern) (granted pattern.Pattern, isAll bool) {
	met, ok := a.intersect(p, allowed)
	if !ok {
		return "", false
	}
	_, some, isSure := a.covers(met, within)
	if !isSure {
		return "", false
	}
	if some {
		return met, true
	}
	both := met // may match less
	switch {
	case p.Contains(allowed):
		both, isAll = allowed, true
	case allowed.Contains(p):
		both, isAll = p, true
	}
	for _, w := range within {
		w = pattern.Pattern(w.Expand(a.subject.Identity))
		if narrower, ok := a.intersect(both, w); ok {
			_, some, isSure := a.covers(narrower, within)
			if some && isSure {
				return narrower, true
			}
			isAll = isAll && isSure
		}
		isAll = isAll && (both.Contains(w) || w.Contains(both) || !both.Overlaps(w))
	}
	return "", isAll
}

// intersect returns a pattern with at most one ** whose names match both patterns. If one pattern
// contains the other, the result is the whole intersection. Otherwise it is a part. It finds none
// if the patterns have no name in common. It may also find none if components overlap only partly,
// such as a* and *b.
func (a *asker) intersect(p, q pattern.Pattern) (pattern.Pattern, bool) {
	switch {
	case q.Contains(p):
		return single(p), true
	case p.Contains(q):
		return single(q), true
	}
	steps := 0
	defer func() { *a.spent += lookSteps * steps }()
	var from func(a, b []string) ([]string, bool)
	from = func(a, b []string) ([]string, bool) {
		if steps++; steps > maxMeetSteps {
			return nil, false
		}
		if len(b) > 0 && b[0] == "**" {
			a, b = b, a
		}
		switch {
		case len(a) == 0:
			return nil, len(b) == 0
		case a[0] == "**":
			if len(b) > 0 { // it takes as many components as possible
				if rest, ok := from(a, b[1:]); ok {
					return append([]string{b[0]}, rest...), true
				}
			}
			return from(a[1:], b)
		case len(b) == 0:
			return nil, false
		}
		narrower := a[0]
		switch {
		case pattern.NameContains(a[0], b[0]):
			narrower = b[0]
		case !pattern.NameContains(b[0], a[0]):
			return nil, false
		}
		rest, ok := from(a[1:], b[1:])
		return append([]string{narrower}, rest...), ok
	}
	components, ok := from(strings.Split(string(p), "/"), strings.Split(string(q), "/"))
	met := single(pattern.Pattern(strings.Join(components, "/")))
	return met, ok && p.Contains(met) && q.Contains(met)
}

// single replaces every ** but the first by *.
func single(p pattern.Pattern) pattern.Pattern {
	before, after, ok := strings.Cut(string(p), "**")
	if !ok {
		return p
	}
	return pattern.Pattern(before + "**" + strings.ReplaceAll(after, "**", "*"))
}

// merge combines the extents of two subjects, or of one subject in two respects.
func merge(a, b policyobjects.Extent) policyobjects.Extent {
	switch {
	case a == b:
		return a
	case slices.ContainsFunc([]policyobjects.Extent{a, b}, func(e policyobjects.Extent) bool {
		return e == policyobjects.All || e == policyobjects.Part
	}):
		return policyobjects.Part
	}
	return policyobjects.Unknown
}
