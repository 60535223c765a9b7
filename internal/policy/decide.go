package policy

import (
	"slices"

	"github.com/pullpass/pullpass/internal/action"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/subjects"
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
	asker := subject.asker(service)
	deniedBy, doubt := p.denies(subject.Objects.ruleSet(), &asker, trace)
	d := Decision{DeniedBy: deniedBy}
	if len(requested) > 0 {
		d.Scopes = make([]ScopeDecision, len(requested))
	}
	if d.DeniedBy != "" {
		reason, remedy := "the deny rule "+d.DeniedBy+" refuses "+who(subject), DenialRemedy(d.DeniedBy)
		if doubt != "" {
			reason += ", because its condition cannot be judged: " + doubt
		}
		for i, scope := range requested {
			d.Scopes[i] = ScopeDecision{Requested: scope, Reason: reason, Remedy: remedy}
		}
		return d
	}

	e := evaluation{policy: p, subject: subject, service: service, asker: &asker}
	var few [8]int // enough for most subjects, without an allocation
	e.rules = few[:0]
	e.compare(trace)
	e.decide(requested, d.Scopes)
	e.tell(d.Scopes, trace != nil)
	d.steps = e.steps
	if trace != nil {
		e.trace(requested, trace)
		trace.Edit = e.edit(d.Scopes)
	}
	if subject.Identity != nil && subject.Identity.InSecret() {
		pullOnly(d.Scopes)
	}
	return d
}

// pullOnly leaves of what rules grant what the token of a pull secret may have: whoever
// reads the Secret has it, and nothing shows where from it is sent.
func pullOnly(decisions []ScopeDecision) {
	for i := range decisions {
		d := &decisions[i]
		var granted []string
		if kindOf(d.Requested) == repositoryResource {
			granted = action.Pull.Pick(d.Granted)
		}
		if slices.Equal(granted, d.Granted) {
			continue
		}
		if d.Granted = granted; len(granted) == 0 {
			d.Rules = nil
		}
		d.Reason, d.Remedy = "the token is that of a pull secret, which only pulls", "use the token of a pod for more"
	}
}

// denies returns the name of the first denial that matches, and why if it does so
// only because its condition cannot be judged.
func (p *Policy) denies(own *ruleSet, a *subjects.Asker, trace *Trace) (denied, doubt string) {
	if trace == nil {
		for _, s := range [...]*ruleSet{&p.ruleSet, own} {
			var few [fewFound]int
			found := s.denied.Find(a, few[:])
			for i, ok := found.Next(); ok; i, ok = found.Next() {
				if a.MatchAny(s.deny[i].subjects, nil) {
					return s.deny[i].name, a.Doubt
				}
			}
		}
		return "", ""
	}
	for i := range len(p.deny) + len(own.deny) {
		d := at(p.deny, own.deny, i)
		t := DenyTrace{Name: d.name, Origin: d.origin}
		if t.Matched = a.MatchAny(d.subjects, &t.Mismatches); t.Matched {
			t.MatchedBy, t.Mismatches = matched(t.Mismatches), nil
			if denied == "" {
				denied, doubt = d.name, a.Doubt
			}
		}
		trace.Deny = append(trace.Deny, t)
	}
	return denied, doubt
}

// matches reports whether the rule is for who asks, and notes a condition that
// cannot be judged: nothing is granted by it, and whoever is refused is told.
func (e *evaluation) matches(r *rule, a *subjects.Asker, mismatches *[]string) bool {
	ok := a.MatchAny(r.subjects, mismatches)
	if !ok && a.Doubt != "" && e.doubt == "" {
		e.doubt = "the condition of rule " + r.name[0] + " cannot be judged: " + a.Doubt
	}
	return ok
}

func (e *evaluation) applies(r *rule, a *subjects.Asker, trace *Trace) bool {
	serves := r.services == nil || slices.Contains(r.services, a.Service)
	if trace == nil {
		return serves && (r.anonymous || e.matches(r, a, nil))
	}
	t := RuleTrace{Name: r.name[0], Origin: r.origin, ServiceMatched: serves, Annotation: r.annotation, Requests: r.requests}
	switch {
	case r.anonymous:
		t.SubjectMatched, t.MatchedBy = true, "anonymous"
	case serves:
		t.SubjectMatched = e.matches(r, a, &t.Mismatches)
	default: // its subjects are compared for people alone: the decision must not change by it
		a.Unserved(func() { t.SubjectMatched = a.MatchAny(r.subjects, &t.Mismatches) })
	}
	if t.SubjectMatched && !r.anonymous {
		t.MatchedBy, t.Mismatches = matched(t.Mismatches), nil
	}
	trace.Rules = append(trace.Rules, t)
	return serves && t.SubjectMatched
}

// maxSteps bounds what the scopes of one request have compared, in the unit of
// Pattern.Match: names and annotations come from strangers, and both can be long.
// It is enough for as many scopes as there can be and some dozens of patterns, or hundreds of literal ones.
const maxSteps = 1 << 15

// MaxScopesTold is for how many scopes a decision says why they were not granted,
// and how many an event has of a request that a limit refused. A pull asks for one
// or two; neither the work nor a line of the audit log must be many times that of a
// pull.
const MaxScopesTold = 8

const (
	tooMuchReason = "it was not judged: to compare the scopes that were asked for after it with rules and annotations was too much for one request"
	tooMuchRemedy = "ask for fewer scopes in one request, or with fewer wildcards in the annotation"
	untoldReason  = "it is not granted whole; of one request, only the first scopes are told why"
	untoldRemedy  = "ask for fewer scopes in one request, or see pullpass explain"
)

// evaluation is what the scopes of one request have in common.
type evaluation struct {
	policy  *Policy
	subject Subject
	service string
	asker   *subjects.Asker
	rules   []int  // those that apply, as indexes of the policy's and then of the objects'; without those by path, until all is set
	all     bool   // see complete
	found   []int  // buffer of about
	request *asked // what RepositoryAccess objects ask for; nil: not read yet
	limit   limit
	asked   []asked // the annotations read so far, each parsed once; as Policy.annotationKeys
	steps   int     // of comparing, so far
	most    int     // of these, to decide and to tell why of more than one scope
	absence string  // noRuleApplies, derived once
	doubt   string  // of the first rule whose condition could not be judged
}

// asked is what the ServiceAccount asks for with one annotation.
type asked struct {
	isRead  bool
	present bool
	items   []annotationItem
	fault   error // the annotation counts for nothing
	// requests are those that the items are of; nil: they are of an annotation.
	requests *Requests

	// What it asks for in one repository: every rule that reads it wants to know.
	name    string
	actions action.Set
}

// question is one requested scope.
type question struct {
	scope   registryauth.Scope
	kind    resource
	actions action.Set
}

func newQuestion(scope registryauth.Scope) question {
	return question{scope, kindOf(scope), action.Of(scope.Actions)}
}

// decide judges the scopes until too much was compared: the last first, because
// what a client asked for last is what it needs now. The last one alone has no
// bound but that of a request for it alone, and with very many rules, some more
// have as much.
func (e *evaluation) decide(requested []registryauth.Scope, decisions []ScopeDecision) {
	e.most = maxSteps
	for i, scope := range slices.Backward(requested) {
		d := &decisions[i]
		d.Requested = scope
		if e.steps > e.most {
			d.Reason, d.Remedy = tooMuchReason, tooMuchRemedy
			continue
		}
		e.judge(newQuestion(scope), d)
		e.most = max(e.most, 4*e.steps/(len(requested)-i))
	}
}

// judge finds the rules that grant the scope, or a part of it.
func (e *evaluation) judge(q question, d *ScopeDecision) {
	var allowed action.Set
	for _, i := range e.about(q) {
		r := e.rule(i)
		granted := e.allowed(r, q, nil)
		if more := allowed | granted; more.Cover(q.actions) != allowed.Cover(q.actions) {
			d.Rules = appendShared(d.Rules, r.name)
			allowed = more
		}
		if allowed.Cover(q.actions) == q.actions {
			break
		}
	}
	d.Granted = allowed.Pick(q.scope.Actions)
	if allowed.Missing(q.actions) != 0 {
		d.Reason, d.Remedy = untoldReason, untoldRemedy
	}
}

// tell says why scopes were not granted whole, of the first so many: of more nobody
// is told. With isWhole it says it of all, whatever that costs.
func (e *evaluation) tell(decisions []ScopeDecision, isWhole bool) {
	told := 0
	for i := range decisions {
		d := &decisions[i]
		if d.Reason == "" || d.Reason == tooMuchReason {
			continue
		}
		if told++; !isWhole && (told > MaxScopesTold || told > 1 && e.steps > e.most) {
			return
		}
		q := newQuestion(d.Requested)
		missing := action.Of(d.Granted).Missing(q.actions)
		nearest := e.nearest(q, missing)
		d.Reason = e.reason(q, missing, nearest)
		d.Remedy = e.remedy(q, missing, nearest)
	}
}

// trace notes what each rule does with each scope, for people.
func (e *evaluation) trace(requested []registryauth.Scope, trace *Trace) {
	e.complete()
	for _, scope := range requested {
		q := newQuestion(scope)
		for _, i := range e.rules {
			t := RuleScope{Requested: scope.String()}
			t.Granted = e.allowed(e.rule(i), q, &t).Pick(scope.Actions)
			trace.Rules[i].Scopes = append(trace.Rules[i].Scopes, t)
		}
	}
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
func (e *evaluation) allowed(r *rule, q question, t *RuleScope) action.Set {
	ceiling := e.ceiling(r, q, t)
	if !r.asks() || ceiling == 0 && t == nil {
		return ceiling
	}
	return ceiling.Intersect(e.asks(r, q, t))
}

// ceiling returns what allow gives on the resource, of what objects have to do with no
// more than they may: for a rule that nothing selects from, this is all there is.
func (e *evaluation) ceiling(r *rule, q question, t *RuleScope) action.Set {
	var set action.Set
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
			if p.Match(q.scope.Name, e.subject.Identity, &e.steps) {
				set |= a.actions
				t.notePattern(string(p))
				if t == nil {
					break
				}
			}
		}
	}
	if set != 0 && (r.inObject || r.requests) && !e.within(q) {
		set = 0
		if t != nil {
			t.Beyond = true
		}
	}
	if t != nil {
		t.Allows = set.Names()
	}
	return set
}

// asks returns what the ServiceAccount asks for on the resource with what the rule
// reads, an annotation or RepositoryAccess objects.
func (e *evaluation) asks(r *rule, q question, t *RuleScope) action.Set {
	if q.kind != repositoryResource && t == nil {
		return 0
	}
	a := e.read(r)
	if t != nil {
		return a.trace(q, t)
	}
	if a.name != q.scope.Name {
		a.name, a.actions = q.scope.Name, 0
		for i := range a.items {
			if a.items[i].pattern.Match(q.scope.Name, nil, &e.steps) {
				a.actions |= a.items[i].actions
			}
		}
	}
	return a.actions
}

// trace asks for the items that match, too.
func (a *asked) trace(q question, t *RuleScope) action.Set {
	var set action.Set
	for i, item := range a.items {
		if q.kind == repositoryResource && item.pattern.Match(q.scope.Name, nil, new(int)) {
			set |= item.actions
			t.Items = append(t.Items, item.String())
			if a.requests != nil && !slices.Contains(t.Objects, a.requests.objects[i]) {
				t.Objects = append(t.Objects, a.requests.objects[i])
			}
		}
	}
	t.Asks = set.Names()
	if a.fault != nil {
		t.Fault = a.fault.Error()
	}
	return set
}

// read reads what selects from the rule, once for all scopes and rules.
func (e *evaluation) read(r *rule) *asked {
	if r.requests {
		if e.request == nil {
			e.request = e.subject.Objects.Requests.read()
		}
		return e.request
	}
	if e.asked == nil {
		e.asked = make([]asked, len(e.policy.annotationKeys))
	}
	a := &e.asked[r.annotationIndex]
	if a.isRead {
		return a
	}
	a.isRead = true
	var text string
	if text, a.present = e.subject.Annotations[r.annotation]; a.present {
		a.items, a.fault = parseAnnotation(text)
	}
	return a
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
	case scope.Type == "repository" && pattern.IsPath(scope.Name):
		return repositoryResource
	case scope.Type == "registry" && scope.Name == "catalog":
		return catalogResource
	}
	return unknownResource
}
