package policy

import (
	"fmt"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
)

const (
	maxReasonBytes   = 800
	maxReasonRules   = 3 // the rules that a reason mentions
	maxReasonEntries = 3 // of one rule's allow, and of the patterns of each
)

// near is the distance of a rule from allowing the missing actions. A reason mentions the nearest
// first.
type near int

const (
	nearFault     near = iota // the annotation may ask for it, but cannot be read
	nearNotAsked              // the annotation does not ask for it
	nearAction                // the repository matches, the action does not
	nearAbsent                // there is no annotation
	nearCeiling               // the annotation asks for more than the ceiling
	nearElsewhere             // the rule is about other repositories
)

// candidate is a rule that applies and does not allow the whole request.
type candidate struct {
	near    near
	rule    *rule
	ceiling action.Set // of the rule, on the resource
}

// nearest returns the rules that apply, the nearest first, and rules of equal distance in the
// policy's order. It evaluates them again, so that only refusals pay for reasons and remedies.
func (e *evaluation) nearest(q question, missing action.Set) []candidate {
	e.complete()
	candidates := make([]candidate, len(e.rules))
	var place [nearElsewhere + 2]int // where the candidates of each distance begin
	for i, index := range e.rules {
		r := e.rule(index)
		ceiling := e.ceiling(r, q, nil)
		candidates[i] = candidate{e.near(r, q, ceiling, missing), r, ceiling}
		place[candidates[i].near+1]++
	}
	for i := range nearElsewhere {
		place[i+1] += place[i]
	}
	sorted := make([]candidate, len(candidates))
	for _, c := range candidates {
		sorted[place[c.near]] = c
		place[c.near]++
	}
	return sorted
}

// reason explains why actions are missing.
func (e *evaluation) reason(q question, missing action.Set, candidates []candidate) string {
	if q.kind == unknownResource {
		return term.QuoteName(q.scope.Type+":"+q.scope.Name) + " is nothing that rules can allow; they allow repositories and registry:catalog"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no rule for %s allows %s", who(e.subject), what(q, missing))
	if len(candidates) == 0 {
		if e.absence == "" {
			e.absence = e.noRuleApplies()
		}
		b.WriteString("; " + e.absence)
	}
	if e.doubt != "" {
		b.WriteString("; " + e.doubt)
	}
	for i, c := range candidates {
		if i == maxReasonRules {
			fmt.Fprintf(&b, "; %d more rules do not allow it either", len(candidates)-i)
			break
		}
		b.WriteString("; " + e.explain(c))
	}
	return term.Shorten(b.String(), maxReasonBytes)
}

func (e *evaluation) near(r *rule, q question, ceiling, missing action.Set) near {
	within := ceiling.Cover(missing) != 0
	switch {
	case !r.asks() && ceiling != 0:
		return nearAction
	case !r.asks():
		return nearElsewhere
	case !within && e.asks(r, q, nil).Cover(missing) != 0:
		return nearCeiling
	case !within:
		return nearElsewhere
	}
	switch a := e.read(r); {
	case a.fault != nil:
		return nearFault
	case !a.present:
		return nearAbsent
	}
	return nearNotAsked
}

func (e *evaluation) explain(c candidate) string {
	r, name := c.rule, c.rule.name[0]
	switch c.near {
	case nearFault:
		return fmt.Sprintf("the annotation %s counts for nothing (rule %s): %v", r.annotation, name, e.read(r).fault)
	case nearNotAsked:
		if r.requests {
			return fmt.Sprintf("rule %s would allow it if a RepositoryAccess asked for it", name) + e.subject.Objects.tellBeyond()
		}
		return fmt.Sprintf("rule %s would allow it if the annotation %s asked for it", name, r.annotation)
	case nearAction:
		return fmt.Sprintf("rule %s allows only %s there", name, c.ceiling)
	case nearAbsent:
		return fmt.Sprintf("rule %s would allow it to a ServiceAccount that asks for it with the annotation %s, and none is known here", name, r.annotation)
	case nearCeiling:
		return fmt.Sprintf("%s asks for it, beyond the ceiling of rule %s: %s", r.selector(), name, e.describe(r))
	}
	if r.requests {
		return fmt.Sprintf("rule %s lets a RepositoryAccess ask for %s", name, e.describe(r))
	}
	if r.annotation != "" {
		return fmt.Sprintf("rule %s lets the annotation %s ask for %s", name, r.annotation, e.describe(r))
	}
	return fmt.Sprintf("rule %s allows %s", name, e.describe(r))
}

// noRuleApplies explains whether no rule matches the subject or no rule matches the service.
func (e *evaluation) noRuleApplies() string {
	for _, s := range e.sets() {
		if r := s.firstFor(e.subject.asker(e.service)); r != nil {
			return fmt.Sprintf("none is for the service %s (rule %s is for %s)", term.QuoteName(e.service), r.name[0], shorten(r.services))
		}
	}
	if e.subject.Identity == nil {
		return "no rule is anonymous"
	}
	return "the subjects of no rule match it"
}

// describe lists the actions that a rule allows to this subject.
func (e *evaluation) describe(r *rule) string {
	var entries []string
	for i, a := range r.allow {
		switch {
		case i == maxReasonEntries:
			return strings.Join(append(entries, "more"), " and ")
		case a.catalog:
			entries = append(entries, a.actions.String()+" on registry:catalog")
		default:
			var patterns []string
			for _, p := range a.repositories[:min(len(a.repositories), maxReasonEntries+1)] {
				patterns = append(patterns, p.Expand(e.subject.Identity))
			}
			entries = append(entries, a.actions.String()+" on "+shorten(patterns))
		}
	}
	text := strings.Join(entries, " and ")
	if r.inObject || r.requests {
		text += e.subject.Objects.beyond(e.subject.Identity)
	}
	return text
}

func shorten(list []string) string {
	if len(list) > maxReasonEntries {
		return strings.Join(list[:maxReasonEntries], ", ") + ", ..."
	}
	return strings.Join(list, ", ")
}

func who(subject Subject) string {
	if id := subject.Identity; id != nil {
		if id.External != nil {
			return id.Subject
		}
		return id.Cluster + "/" + id.Kubernetes.Namespace + "/" + id.Kubernetes.ServiceAccount.Name // in the form of explain --as
	}
	return "anonymous callers"
}

// what names the missing actions, including those that no rule can name.
func what(q question, missing action.Set) string {
	names := missing.Names()
	for _, name := range q.scope.Actions {
		if action.Named(name) == action.Other {
			names = append(names, Plain(name))
		}
	}
	if q.kind == catalogResource {
		return "registry:catalog:" + Plain(strings.Join(q.scope.Actions, ","))
	}
	return strings.Join(names, ", ") + " on " + Plain(q.scope.Name)
}

// Plain returns s unchanged if it is safe in a message, and quoted otherwise.
func Plain(s string) string {
	if len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || '~' < r }) {
		return term.QuoteName(s)
	}
	return s
}
