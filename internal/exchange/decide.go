package exchange

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// Decide says which of the requested scopes the subject gets at a service: the
// union of what the rules that apply allow, never more than was asked. A denial
// that matches refuses the subject as a whole. Decide is pure and safe for
// concurrent use; the decision shares memory with the policy and the request
// and must not be changed.
func (p *Policy) Decide(subject Subject, service string, requested []registryauth.Scope) Decision {
	return p.decide(subject, service, requested, nil)
}

func (p *Policy) decide(subject Subject, service string, requested []registryauth.Scope, trace *Trace) Decision {
	d := Decision{DeniedBy: p.denies(subject, trace)}
	if len(requested) > 0 {
		d.Scopes = make([]ScopeDecision, len(requested))
	}
	if d.DeniedBy != "" {
		for i, scope := range requested {
			d.Scopes[i] = ScopeDecision{
				Requested: scope,
				Reason:    "the deny rule " + d.DeniedBy + " refuses " + who(subject),
				Remedy:    denialRemedy(d.DeniedBy),
			}
		}
		return d
	}

	e := evaluation{policy: p, subject: subject, service: service}
	var few [8]int // enough for most subjects, without an allocation
	e.rules = few[:0]
	for i := range p.rules {
		if p.rules[i].applies(subject, service, trace) {
			e.rules = append(e.rules, i)
		}
	}
	for i := range requested {
		d.Scopes[i] = e.decide(requested[i], trace)
	}
	if trace != nil {
		trace.Edit = e.edit(d.Scopes)
	}
	return d
}

// denies returns the name of the first denial that matches.
func (p *Policy) denies(subject Subject, trace *Trace) string {
	denied := ""
	for i := range p.deny {
		d := &p.deny[i]
		if trace == nil {
			if matchSubject(d.subjects, subject, nil) {
				return d.name
			}
			continue
		}
		t := DenyTrace{Name: d.name, Origin: d.origin}
		if t.Matched = matchSubject(d.subjects, subject, &t.Mismatches); t.Matched {
			t.MatchedBy, t.Mismatches = matched(t.Mismatches), nil
			denied = cmp.Or(denied, d.name)
		}
		trace.Deny = append(trace.Deny, t)
	}
	return denied
}

func (r *rule) applies(subject Subject, service string, trace *Trace) bool {
	serves := r.services == nil || slices.Contains(r.services, service)
	if trace == nil {
		return serves && (r.anonymous || matchSubject(r.subjects, subject, nil))
	}
	t := RuleTrace{Name: r.name[0], Origin: r.origin, ServiceMatched: serves, Annotation: r.annotation}
	switch {
	case r.anonymous:
		t.SubjectMatched, t.MatchedBy = true, "anonymous"
	case matchSubject(r.subjects, subject, &t.Mismatches):
		t.SubjectMatched, t.MatchedBy, t.Mismatches = true, matched(t.Mismatches), nil
	}
	trace.Rules = append(trace.Rules, t)
	return serves && t.SubjectMatched
}

// evaluation is what the scopes of one request have in common.
type evaluation struct {
	policy  *Policy
	subject Subject
	service string
	rules   []int   // those that apply, as indexes
	asked   []asked // the annotations read so far, each parsed once
}

// asked is what the ServiceAccount asks for with one annotation.
type asked struct {
	key     string
	present bool
	items   []annotationItem
	fault   error // the annotation counts for nothing
}

// question is one requested scope.
type question struct {
	scope   registryauth.Scope
	kind    resource
	actions actionSet
}

func (e *evaluation) decide(scope registryauth.Scope, trace *Trace) ScopeDecision {
	d := ScopeDecision{Requested: scope}
	q := question{scope, kindOf(scope), actionsNamed(scope.Actions)}
	var allowed actionSet
	for _, i := range e.rules {
		r := &e.policy.rules[i]
		var t *RuleScope
		if trace != nil {
			t = &RuleScope{Requested: scope.String()}
		}
		granted := e.allowed(r, q, t)
		if more := allowed | granted; more.cover(q.actions) != allowed.cover(q.actions) {
			d.Rules = appendShared(d.Rules, r.name)
			allowed = more
		}
		if t != nil {
			t.Granted = granted.pick(scope.Actions)
			trace.Rules[i].Scopes = append(trace.Rules[i].Scopes, *t)
		} else if allowed.cover(q.actions) == q.actions {
			break
		}
	}
	d.Granted = allowed.pick(scope.Actions)
	if missing := allowed.missing(q.actions); missing != 0 {
		nearest := e.nearest(q, missing)
		d.Reason = e.reason(q, missing, nearest)
		d.Remedy = e.remedy(q, missing, nearest)
	}
	return d
}

// appendShared appends without copying what is shared, if it can. What is shared
// has no room to append in.
func appendShared(list, shared []string) []string {
	if list == nil {
		return shared
	}
	return append(list, shared...)
}

// allowed returns what one rule that applies allows on the resource, whatever
// actions were requested. With t it also notes how.
func (e *evaluation) allowed(r *rule, q question, t *RuleScope) actionSet {
	ceiling := r.ceiling(q, e.subject, t)
	if r.annotation == "" || ceiling == 0 && t == nil {
		return ceiling
	}
	return ceiling.intersect(e.asks(r, q, t))
}

// ceiling returns what allow gives on the resource: for a rule without
// annotation, this is all there is.
func (r *rule) ceiling(q question, subject Subject, t *RuleScope) actionSet {
	var set actionSet
	for i := range r.allow {
		a := &r.allow[i]
		if a.catalog && q.kind == catalogResource {
			set |= a.actions
			t.notePattern("registry:catalog")
		}
		if q.kind != repositoryResource || t == nil && set|a.actions == set {
			continue
		}
		for _, p := range a.repositories {
			if p.match(q.scope.Name, subject.Identity) {
				set |= a.actions
				t.notePattern(string(p))
				if t == nil {
					break
				}
			}
		}
	}
	if t != nil {
		t.Allows = set.names()
	}
	return set
}

// asks returns what the ServiceAccount asks for on the resource with the
// annotation that the rule reads.
func (e *evaluation) asks(r *rule, q question, t *RuleScope) actionSet {
	a := e.annotation(r.annotation)
	var set actionSet
	if q.kind == repositoryResource {
		for i := range a.items {
			if a.items[i].pattern.match(q.scope.Name, nil) {
				set |= a.items[i].actions
				if t != nil {
					t.Items = append(t.Items, a.items[i].String())
				}
			}
		}
	}
	if t != nil {
		t.Asks = set.names()
		if a.fault != nil {
			t.Fault = a.fault.Error()
		}
	}
	return set
}

// annotation reads one annotation of the subject, once for all scopes and rules.
func (e *evaluation) annotation(key string) *asked {
	for i := range e.asked {
		if e.asked[i].key == key {
			return &e.asked[i]
		}
	}
	a := asked{key: key}
	var text string
	if text, a.present = e.subject.Annotations[key]; a.present {
		a.items, a.fault = parseAnnotation(text)
	}
	e.asked = append(e.asked, a)
	return &e.asked[len(e.asked)-1]
}

// resource is what a scope is about, as far as rules can tell.
type resource int

const (
	unknownResource resource = iota
	repositoryResource
	catalogResource
)

// kindOf ignores the class, as registries do.
func kindOf(scope registryauth.Scope) resource {
	switch {
	case scope.Type == "repository" && isPath(scope.Name):
		return repositoryResource
	case scope.Type == "registry" && scope.Name == "catalog":
		return catalogResource
	}
	return unknownResource
}

// isPath refuses what a pattern of path components could misread. ParseScope has
// checked the whole grammar; Decide is also called with scopes made otherwise.
func isPath(name string) bool {
	for more := true; more; {
		var component string
		component, name, more = strings.Cut(name, "/")
		if component == "" || component[0] == '.' {
			return false
		}
	}
	return true
}
