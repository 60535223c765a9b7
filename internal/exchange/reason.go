package exchange

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxReasonBytes   = 800
	maxReasonRules   = 3 // that a reason tells about
	maxReasonEntries = 3 // of one rule's allow, and of the patterns of each
)

// How near a rule was to granting what is missing: a reason tells the nearest
// first.
const (
	nearAnnotationFault = iota // the annotation may ask for it, and cannot be read
	nearNotAsked               // the annotation does not ask for it
	nearAction                 // the repository matches, the action does not
	nearAbsent                 // there is no annotation
	nearCeiling                // the annotation asks for more than it may
	nearElsewhere              // the rule is about other repositories
)

type detail struct {
	near int
	text string
}

// reason says why the missing actions are missing. It runs the rules again, as
// explain does: only those who are refused pay for it.
func (e *evaluation) reason(scope registryauth.Scope, missing actionSet) string {
	if kindOf(scope) == unknownResource {
		return quote(scope.Type+":"+scope.Name) + " is nothing that rules can allow; they allow repositories and registry:catalog"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no rule for %s allows %s", who(e.subject), what(scope, missing))
	details := e.details(scope, missing)
	for i, d := range details {
		if i == maxReasonRules {
			fmt.Fprintf(&b, "; %d more rules do not allow it either", len(details)-i)
			break
		}
		b.WriteString("; ")
		b.WriteString(d.text)
	}
	if b.Len() > maxReasonBytes {
		return cut(b.String(), maxReasonBytes) + "..."
	}
	return b.String()
}

func (e *evaluation) details(scope registryauth.Scope, missing actionSet) []detail {
	if len(e.rules) == 0 {
		return e.noRuleApplies()
	}
	var details []detail
	for _, i := range e.rules {
		r := &e.policy.rules[i]
		var t RuleScope
		e.allowed(r, scope, &t)
		details = append(details, e.detail(r, t, missing))
	}
	slices.SortStableFunc(details, func(a, b detail) int { return cmp.Compare(a.near, b.near) })
	return details
}

func (e *evaluation) detail(r *rule, t RuleScope, missing actionSet) detail {
	name := r.name[0]
	if r.annotation == "" {
		if t.allows != 0 {
			return detail{nearAction, fmt.Sprintf("rule %s allows only %s there", name, t.allows)}
		}
		return detail{nearElsewhere, fmt.Sprintf("rule %s allows %s", name, e.describe(r))}
	}
	within := t.allows.cover(missing) != 0
	switch {
	case within && t.Fault != "":
		return detail{nearAnnotationFault, fmt.Sprintf("the annotation %s counts for nothing (rule %s): %s", r.annotation, name, t.Fault)}
	case within && t.absent:
		return detail{nearAbsent, fmt.Sprintf("rule %s would allow it to a ServiceAccount that asks for it with the annotation %s, and none is known here", name, r.annotation)}
	case within:
		return detail{nearNotAsked, fmt.Sprintf("rule %s would allow it if the annotation %s asked for it", name, r.annotation)}
	case t.asks.cover(missing) != 0:
		return detail{nearCeiling, fmt.Sprintf("the annotation %s asks for it, beyond the ceiling of rule %s: %s", r.annotation, name, e.describe(r))}
	}
	return detail{nearElsewhere, fmt.Sprintf("rule %s lets the annotation %s ask for %s", name, r.annotation, e.describe(r))}
}

// noRuleApplies says whether it is the subject or the service that no rule is
// for.
func (e *evaluation) noRuleApplies() []detail {
	for i := range e.policy.rules {
		r := &e.policy.rules[i]
		if r.anonymous || matchSubject(r.subjects, e.subject.Identity, nil) {
			return []detail{{text: fmt.Sprintf("none is for the service %s (rule %s is for %s)", quote(e.service), r.name[0], shorten(r.services))}}
		}
	}
	if e.subject.Identity == nil {
		return []detail{{text: "no rule is anonymous"}}
	}
	return []detail{{text: "the subjects of no rule match it"}}
}

// describe says what a rule allows to this subject.
func (e *evaluation) describe(r *rule) string {
	var entries []string
	for _, a := range r.allow {
		if a.catalog {
			entries = append(entries, a.actions.String()+" on registry:catalog")
			continue
		}
		patterns := make([]string, 0, len(a.repositories))
		for _, p := range a.repositories {
			patterns = append(patterns, p.expand(e.subject.Identity))
		}
		entries = append(entries, a.actions.String()+" on "+shorten(patterns))
	}
	if len(entries) > maxReasonEntries {
		entries = append(entries[:maxReasonEntries], "more")
	}
	return strings.Join(entries, " and ")
}

func shorten(list []string) string {
	if len(list) > maxReasonEntries {
		return strings.Join(list[:maxReasonEntries], ", ") + ", ..."
	}
	return strings.Join(list, ", ")
}

func who(subject Subject) string {
	if id := subject.Identity; id != nil {
		return id.Cluster + "/" + id.Namespace + "/" + id.ServiceAccount.Name // as explain --as takes it
	}
	return "anonymous callers"
}

// what names the missing actions, also those that no rule can name.
func what(scope registryauth.Scope, missing actionSet) string {
	names := missing.names()
	for _, name := range scope.Actions {
		if missing&otherAction != 0 && actionNamed(name) == otherAction {
			names = append(names, plain(name))
		}
	}
	if kindOf(scope) == catalogResource {
		return "registry:catalog:" + plain(strings.Join(scope.Actions, ","))
	}
	return strings.Join(names, ", ") + " on " + plain(scope.Name)
}

// plain returns s as it is if it can stand in a message.
func plain(s string) string {
	if len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || '~' < r }) {
		return quote(s)
	}
	return s
}
