package objectstatus

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policyobjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	// Patterns of rules with more components than maxComponents are not understood: of
	// what only they allow it is said that it is not granted whole.
	maxComponents  = 16
	manyComponents = 3 * maxComponents

	maxMeetSteps = 4096
	maxParts     = 3
)

// asker is who asks, where, for what may be done.
type asker struct {
	policy  *policy.Policy
	subject policy.Subject
	service string
	actions []string // sorted
}

func (a *asker) scope(name string) []registryauth.Scope {
	return []registryauth.Scope{{Type: "repository", Name: name, Actions: a.actions}}
}

// asked returns what is decided about one name.
func (a *asker) asked(name string) policy.ScopeDecision {
	return a.policy.Decide(a.subject, a.service, a.scope(name)).Scopes[0]
}

// sample is a name that the pattern, which has one ** at most, matches. ** is so many
// components in it, and the wildcards are letters of their own: nothing matches such a
// letter but a wildcard, which matches whatever could stand there. So what is decided
// about the sample is decided about all names that look like it.
func sample(p pattern.Pattern, components int) string {
	all := strings.Split(string(p), "/")
	if i := slices.Index(all, "**"); i >= 0 {
		all = slices.Replace(all, i, i+1, slices.Repeat([]string{"*"}, components)...)
	}
	return strings.Join(all, "/")
}

// covers reports whether all actions are granted on whatever the pattern matches, and
// whether any is; isSure: some is of all that it matches. It is by decisions about samples.
func (a *asker) covers(p pattern.Pattern, within []pattern.Pattern) (all, some, isSure bool) {
	if !strings.Contains(string(p), "**") {
		d := a.asked(sample(p, 0))
		return d.Reason == "", len(d.Granted) > 0, true
	}
	// Whatever matches very many components has a ** of its own, and matches from as
	// many on as the rest of it needs. Fewer are asked for one by one.
	decision, trace := a.policy.Explain(a.subject, a.service, a.scope(sample(p, manyComponents)))
	d := &decision.Scopes[0]
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

// partial is what is granted of a pattern that is not granted whole.
type partial struct {
	patterns []string // maxParts at most
	rules    []string
	unclear  bool // there may be others
}

// parts asks about what the pattern has in common with what each rule allows.
func (a *asker) parts(p pattern.Pattern, trace policy.Trace, allows map[string][]pattern.Pattern, within []pattern.Pattern) (found partial) {
	for i := range trace.Rules {
		t := &trace.Rules[i]
		_, hasAnnotation := a.subject.Annotations[t.Annotation]
		if !t.SubjectMatched || !t.ServiceMatched || t.Annotation != "" && !hasAnnotation {
			continue
		}
		for _, allowed := range allows[t.Name] {
			allowed = pattern.Pattern(allowed.Expand(a.subject.Identity))
			if allowed.HasPlaceholder() || !p.Overlaps(allowed) {
				continue
			}
			granted, isAll := a.common(p, allowed, within)
			if t.Requests || strings.Contains(t.Name, "/") { // nothing goes beyond within
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

// common returns a pattern of what both match, and is granted; empty: nothing that was
// asked about is. isAll says that this was all they have in common.
func (a *asker) common(p, allowed pattern.Pattern, within []pattern.Pattern) (granted pattern.Pattern, isAll bool) {
	met, ok := meet(p, allowed)
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
	both := met // which may be less
	switch {
	case p.Contains(allowed):
		both, isAll = allowed, true
	case allowed.Contains(p):
		both, isAll = p, true
	}
	for _, w := range within {
		w = pattern.Pattern(w.Expand(a.subject.Identity))
		if narrower, ok := meet(both, w); ok {
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

// meet returns a pattern with one ** at most whose names both match: all of them if one
// of the two contains the other, and else some. It finds none if they have none in
// common, and may find none if components have only parts in common, such as a* and *b.
func meet(p, q pattern.Pattern) (pattern.Pattern, bool) {
	switch {
	case q.Contains(p):
		return single(p), true
	case p.Contains(q):
		return single(q), true
	}
	steps := 0
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
			if len(b) > 0 { // it takes as much as it can
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

// single has a * for every ** but the first.
func single(p pattern.Pattern) pattern.Pattern {
	before, after, ok := strings.Cut(string(p), "**")
	if !ok {
		return p
	}
	return pattern.Pattern(before + "**" + strings.ReplaceAll(after, "**", "*"))
}

// merge is the extent for two who ask, or for one in two respects.
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
