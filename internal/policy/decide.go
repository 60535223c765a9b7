package policy

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Decide returns which of the requested scopes the subject is granted at a service. The grant is
// the union of all rules that apply, and never exceeds the request. A matching denial refuses the
// subject as a whole. Decide is pure and safe for concurrent use. The decision shares memory with
// the policy and the request and must not be changed.
func (p *Policy) Decide(subject Subject, service string, requested []registryauth.Scope) Decision {
	return p.decide(subject, service, requested, nil)
}

func (p *Policy) decide(subject Subject, service string, requested []registryauth.Scope, trace *Trace) Decision {
	asker := subject.asker(service)
	var d Decision
	doubt := p.denies(subject.Objects.ruleSet(), &asker, &d, trace)
	if len(requested) > 0 {
		d.Scopes = make([]ScopeDecision, len(requested))
	}
	if d.DeniedBy != "" {
		d.UnjudgedDenials, d.DenialsOfNodes = nil, nil
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
	e.explainMissing(d.Scopes, trace != nil)
	d.steps = e.steps
	d.UnjudgedRules = namesOf(e.unjudged)
	if trace != nil {
		e.trace(requested, trace)
		trace.Edit = e.edit(d.Scopes)
	}
	if subject.Identity != nil && subject.Identity.InSecret() {
		pullOnly(d.Scopes)
	}
	return d
}

// pullOnly reduces the grants to those that the token of a pull secret may have, which is pull.
// Anyone who can read the Secret has the token, and the token does not show where it is sent from.
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

// denies notes the first denial that matches. doubt is set if the denial matches only because its
// condition cannot be evaluated.
func (p *Policy) denies(own *ruleSet, a *subjects.Asker, d *Decision, trace *Trace) (doubt string) {
	compare := func(r *denyRule, mismatches *[]string) (matched bool) {
		matched = a.MatchAny(r.subjects, mismatches)
		switch {
		case matched && d.DeniedBy == "":
			d.DeniedBy, doubt = r.name, a.Doubt
		case !matched && a.NeedsToken:
			d.UnjudgedDenials = append(d.UnjudgedDenials, r.name)
		case !matched && a.NeedsNode:
			d.DenialsOfNodes = append(d.DenialsOfNodes, r.name)
		}
		return matched
	}
	if trace == nil {
		for _, s := range [...]*ruleSet{&p.ruleSet, own} {
			var few [fewFound]int
			found := s.denied.Find(a, few[:])
			for i, ok := found.Next(); ok; i, ok = found.Next() {
				if compare(&s.deny[i], nil) {
					return doubt
				}
			}
		}
		return ""
	}
	for i := range len(p.deny) + len(own.deny) {
		r := at(p.deny, own.deny, i)
		t := DenyTrace{Name: r.name, Origin: r.origin}
		if t.Matched = compare(r, &t.Mismatches); t.Matched {
			t.MatchedBy, t.Mismatches = matched(t.Mismatches), nil
		}
		trace.Deny = append(trace.Deny, t)
	}
	return doubt
}

// matches reports whether the rule matches the asker. It also notes a condition that cannot be
// evaluated: such a rule grants nothing, and the reason of a refusal mentions it.
func (e *evaluation) matches(r *rule, a *subjects.Asker, mismatches *[]string) bool {
	ok := a.MatchAny(r.subjects, mismatches)
	if !ok && (a.NeedsNode || a.NeedsToken) {
		e.unjudged = append(e.unjudged, r)
	}
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
	default: // its subjects are compared for the trace alone and must not change the decision
		a.Unserved(func() { t.SubjectMatched = a.MatchAny(r.subjects, &t.Mismatches) })
	}
	if t.SubjectMatched && !r.anonymous {
		t.MatchedBy, t.Mismatches = matched(t.Mismatches), nil
	}
	trace.Rules = append(trace.Rules, t)
	return serves && t.SubjectMatched
}

// maxSteps bounds the comparisons for the scopes of one request, in the unit of Pattern.Match.
// Clients write names and owners of ServiceAccounts write annotations; both can be long. The bound
// is enough for the maximum number of scopes with some dozens of patterns, or with hundreds of
// literal ones.
const maxSteps = 1 << 15

// MaxScopesTold is the number of scopes for which a decision explains a missing grant. It is also
// the number of scopes in the event of a request that a limit or its credential refused, and of
// malformed ones in any event. A pull asks for one or two. Neither the work nor a line of the audit
// log may be many times that of a pull.
const MaxScopesTold = 8

const (
	tooMuchReason = "it was not judged: to compare the scopes that were asked for after it with rules and annotations was too much for one request"
	tooMuchRemedy = "ask for fewer scopes in one request, or with fewer wildcards in the annotation"
	untoldReason  = "it is not granted whole; of one request, only the first scopes are told why"
	untoldRemedy  = "ask for fewer scopes in one request, or see pullpass explain"
)

// evaluation holds the state that the scopes of one request share.
type evaluation struct {
	policy  *Policy
	subject Subject
	service string
	asker   *subjects.Asker
	rules   []int  // rules that apply, as indexes of the policy's and then of the objects' rules; without those by path until all is set
	all     bool   // see complete
	found   []int  // buffer of about
	request *asked // the requests of RepositoryAccess objects; nil: not read yet
	limit   limit
	asked   []asked // the annotations read so far, each parsed once; as Policy.annotationKeys
	steps   int     // comparisons so far
	most    int     // the bound on steps for deciding and explaining more than one scope
	absence string  // noRuleApplies, derived once
	doubt   string  // of the first rule whose condition could not be evaluated

	unjudged []*rule // only a token decides whether they match
}

// asked holds the requests of the ServiceAccount in one annotation.
type asked struct {
	isRead   bool
	present  bool
	items    []annotationItem
	fault    error     // the annotation counts for nothing
	requests *Requests // instead of items, for RepositoryAccess objects

	// The actions asked for on one repository, cached because every rule that reads this needs
	// them.
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

// decide judges the scopes until the comparisons exceed the bound. It starts with the last scope,
// because a client appends the scope that it needs now. The last scope has only the bound of a
// request for it alone. With very many rules, some further scopes have as much.
func (e *evaluation) decide(requested []registryauth.Scope, decisions []ScopeDecision) {
	e.most = maxSteps
	for i, scope := range slices.Backward(requested) {
		d := &decisions[i]
		d.Requested = scope
		if e.steps > e.most {
			d.Reason, d.Remedy = tooMuchReason, tooMuchRemedy
			continue
		}
		e.decideScope(newQuestion(scope), d)
		e.most = max(e.most, 4*e.steps/(len(requested)-i))
	}
}

// decideScope finds the rules that grant the scope, or a part of it.
func (e *evaluation) decideScope(q question, d *ScopeDecision) {
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

// explainMissing explains why scopes were not granted whole, for the first MaxScopesTold of them. With
// isWhole it explains all of them, at any cost.
func (e *evaluation) explainMissing(decisions []ScopeDecision, isWhole bool) {
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
		if d.Unjudged = e.unjudgedFor(q, missing); d.Unjudged != nil {
			d.Reason = term.Shorten(fmt.Sprintf("%s may be allowed to %s: only a token decides whether rule %s matches", what(q, missing), who(e.subject), shorten(d.Unjudged)), maxReasonBytes)
			d.Remedy = "use pullpass explain with the token of a pod"
			continue
		}
		nearest := e.nearest(q, missing)
		d.Reason = e.reason(q, missing, nearest)
		d.Remedy = e.remedy(q, missing, nearest)
	}
}

// unjudgedFor returns the rules that would allow missing actions if they matched.
func (e *evaluation) unjudgedFor(q question, missing action.Set) []string {
	var all []*rule
	for _, r := range e.unjudged {
		if e.allowed(r, q, nil).Cover(missing) != 0 {
			all = append(all, r)
		}
	}
	return namesOf(all)
}

func namesOf(rules []*rule) (names []string) {
	for _, r := range rules {
		names = append(names, r.name[0])
	}
	return names
}

// trace notes the effect of each rule on each scope.
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

// appendShared appends without copying a shared list where possible. A shared list has no spare
// capacity to append to.
func appendShared(list, shared []string) []string {
	if list == nil {
		return shared
	}
	return append(list, shared...)
}

// allowed returns the actions that one applicable rule allows on the resource, independent of the
// requested actions. With t it also notes the derivation.
func (e *evaluation) allowed(r *rule, q question, t *RuleScope) action.Set {
	ceiling := e.ceiling(r, q, t)
	if !r.asks() || ceiling == 0 && t == nil {
		return ceiling
	}
	return ceiling.Intersect(e.asks(r, q, t))
}

// ceiling returns the actions of allow on the resource. For rules of objects and rules with
// requests, this is limited to the repositories that objects may grant. Without a selector, the
// ceiling is the rule's whole grant.
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

// asks returns the actions that the ServiceAccount asks for on the resource, in the annotation or
// the RepositoryAccess objects that the rule reads.
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
			a.add(&a.items[i], &e.steps)
		}
		for _, item := range a.requests.all() {
			a.add(item, &e.steps)
		}
	}
	return a.actions
}

// add adds the actions of the item if it matches.
func (a *asked) add(item *annotationItem, steps *int) {
	if item.pattern.Match(a.name, nil, steps) {
		a.actions |= item.actions
	}
}

// trace is like add, and also notes the items that match.
func (a *asked) trace(q question, t *RuleScope) action.Set {
	var set action.Set
	matches := func(item *annotationItem) bool {
		if q.kind != repositoryResource || !item.pattern.Match(q.scope.Name, nil, new(int)) {
			return false
		}
		set |= item.actions
		t.Items = append(t.Items, item.String())
		return true
	}
	for i := range a.items {
		matches(&a.items[i])
	}
	for o, item := range a.requests.all() {
		if matches(item) && !slices.Contains(t.Objects, o.id()) {
			t.Objects = append(t.Objects, o.id())
		}
	}
	t.Asks = set.Names()
	if a.fault != nil {
		t.Fault = a.fault.Error()
	}
	return set
}

// read reads the annotation or the objects that the rule selects by, once for all scopes and rules.
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

// resource is the kind of resource that a scope names, as far as rules distinguish it.
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
