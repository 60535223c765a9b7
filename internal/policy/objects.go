package policy

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Objects holds the policies and requests in a cluster's objects that concern one of its
// ServiceAccounts. The zero Objects has none.
type Objects struct {
	Policies *Policies // of the cluster; nil: none counts
	Trial    *Policies // with those that are only tried; nil: there are none
	Requests *Requests // of the ServiceAccount; nil: none
	// Beyond is the number of RepositoryAccess objects of its namespace that count for nothing,
	// because older ones fill the budget of the namespace.
	Beyond int
}

func (o *Objects) ruleSet() *ruleSet {
	if o.Policies == nil {
		return &noRules
	}
	return &o.Policies.ruleSet
}

// tellBeyond explains that some objects count for nothing, one of which may ask for the scope.
func (o *Objects) tellBeyond() string {
	if o.Beyond == 0 {
		return ""
	}
	return fmt.Sprintf(", and %d RepositoryAccess objects of the namespace count for nothing: older ones take all that is kept of one namespace", o.Beyond)
}

var noRules ruleSet

// beyond explains how far objects may go, because the rule does not show it.
func (o *Objects) beyond(id *oidc.Identity) string {
	if o.Policies == nil {
		return ", and no objects count in its cluster"
	}
	var within []string
	for _, p := range o.Policies.within {
		within = append(within, p.Expand(id))
	}
	return ", within " + shorten(within)
}

// Policies is the AccessPolicy objects of a cluster and the limit on its objects. It is immutable
// and safe for concurrent use. Faults only narrow: the rules of a faulty object count for nothing.
// A denial that cannot be read whole refuses every subject that it could mean.
type Policies struct {
	ruleSet
	within []pattern.Pattern
}

// NewPolicies combines the AccessPolicies of a cluster, in the order given. The patterns of within
// limit the grants of rules in objects and of RepositoryAccess objects.
//
// Objects with spec.trial are left out.
func NewPolicies(within []pattern.Pattern, objects ...*ObjectPolicy) *Policies {
	return newPolicies(within, slices.DeleteFunc(slices.Clone(objects), func(o *ObjectPolicy) bool { return o.trial }))
}

// NewTrial combines all AccessPolicies, also those with spec.trial. Without any of them, it returns
// nil: NewPolicies says the same.
func NewTrial(within []pattern.Pattern, objects ...*ObjectPolicy) *Policies {
	if !slices.ContainsFunc(objects, func(o *ObjectPolicy) bool { return o.trial }) {
		return nil
	}
	return newPolicies(within, objects)
}

func newPolicies(within []pattern.Pattern, objects []*ObjectPolicy) *Policies {
	var rules []rule
	var deny []denyRule
	for _, o := range objects {
		if len(rules)+len(deny)+len(o.rules)+len(o.deny) <= maxRules {
			rules, deny = append(rules, o.rules...), append(deny, o.deny...)
		} else if len(o.deny) > 0 {
			deny = append(deny, denyAll(o.name+"/too-many", Kind+" "+o.name))
			break
		}
	}
	return &Policies{newRuleSet(rules, deny), within}
}

// Denials returns the denials alone, for objects whose last update is too old.
func (p *Policies) Denials() *Policies {
	return &Policies{ruleSet: ruleSet{deny: p.deny, denied: p.denied}}
}

// Rules returns the number of rules, denials not counted.
func (p *Policies) Rules() int { return len(p.rules) }

func denyAll(name, origin string) denyRule {
	return denyRule{name: name, origin: origin, subjects: []subjects.Match{{Denies: true}}}
}

// ObjectPolicy is one AccessPolicy object. It is immutable.
type ObjectPolicy struct {
	name  string
	rules []rule
	deny  []denyRule
	trial bool // it decides nothing
	fault error
}

// ParseObject reads the spec of an AccessPolicy, in the form of JSON decoded into an any. If it has
// a fault, all of its rules count for nothing. In decisions, its rules are named OBJECT/RULE.
func ParseObject(name string, spec any) *ObjectPolicy {
	o := &ObjectPolicy{name: name}
	p := policyParser{inObject: true}
	n := strictyaml.NewNode(Kind+" "+name, spec, &p.faults)
	fields := n.Fields("rules", "deny", "trial")
	rules, hasRules := fields["rules"]
	deny, hasDeny := fields["deny"]
	if hasRules {
		p.readRules(rules)
	}
	if hasDeny && !isNobody(deny) {
		p.readDenials(deny)
	}
	if trial, isSet := fields["trial"]; isSet {
		o.trial = trial.Boolean()
	}
	o.rules, o.deny, o.fault = p.rules, p.deny, p.faults.Err()
	if o.fault != nil {
		o.rules = nil
	}
	for i := range o.rules {
		o.rules[i].name = []string{name + "/" + o.rules[i].name[0]}
	}
	for i := range o.deny {
		if o.deny[i].name == "" {
			o.deny[i].name = fmt.Sprintf("deny[%d]", i)
		}
		o.deny[i].name = name + "/" + o.deny[i].name
	}
	return o
}

// readDenials reads the denials of an object. A fault makes a denial match more subjects.
func (p *policyParser) readDenials(list strictyaml.Node) {
	entries := p.limited(list.List())
	for _, n := range entries {
		d := p.denyRule(n)
		d.origin = n.Origin()
		if len(d.subjects) == 0 {
			d.subjects = []subjects.Match{{Denies: true}}
		}
		p.deny = append(p.deny, d)
	}
	if len(entries) == 0 {
		p.deny = append(p.deny, denyAll("deny", list.Origin()))
	}
}

// Name is the name of the object.
func (o *ObjectPolicy) Name() string { return o.name }

// Err says why the rules of the object count for nothing; nil: they count. It joins all
// faults, each as AccessPolicy NAME: PATH: what is wrong: remedy.
func (o *ObjectPolicy) Err() error { return o.fault }

// IsTrial reports whether the object decides nothing and is only tried.
func (o *ObjectPolicy) IsTrial() bool { return o.trial }

// Limits of a RepositoryAccess, because its author is not trusted.
const (
	maxRequestAccounts = 64
	maxRequestPatterns = 128
	// maxRequestItems bounds the items of all objects for one ServiceAccount, in the order of the
	// objects' names. Further items count for nothing.
	maxRequestItems = 512
)

// Request is one RepositoryAccess object. It is immutable.
type Request struct {
	namespace, name string
	accounts        []string
	items           []annotationItem
	fault           error
}

// ParseRequest reads the spec of a RepositoryAccess, in the form of JSON decoded into an any. If it
// has a fault, it asks for nothing.
func ParseRequest(namespace, name string, spec any) *Request {
	r := &Request{namespace: namespace, name: name}
	var faults strictyaml.Faults
	n := strictyaml.NewNode(KindRequest+" "+namespace+"/"+name, spec, &faults)
	fields := n.Fields(strictyaml.FieldNames[RequestSpec]()...)
	for _, field := range strictyaml.FieldNames[RequestSpec]() {
		if _, ok := fields[field]; !ok && fields != nil {
			n.FaultAt(field, "is missing: write a list")
		}
	}
	if faults.Count() > 0 {
		r.fault = faults.Err()
		return r
	}
	accounts, repositories := fields["serviceAccounts"].List(), fields["repositories"].List()
	actions := parseActions(fields["actions"])
	if len(accounts) > maxRequestAccounts || len(repositories) > maxRequestPatterns {
		n.Fault("has %d ServiceAccounts and %d repositories; at most %d and %d are read: write several objects",
			len(accounts), len(repositories), maxRequestAccounts, maxRequestPatterns)
		r.fault = faults.Err()
		return r
	}
	for _, entry := range accounts {
		account, ok := entry.Text()
		if ok && !names.IsSubdomain(account) {
			entry.Fault("%s is not the name of a ServiceAccount: names are compared exactly, without *", term.QuoteName(account))
		}
		r.accounts = append(r.accounts, account)
	}
	for _, entry := range repositories {
		text, ok := entry.Text()
		if !ok {
			continue
		}
		asked, err := parseAskedPattern(text)
		if err != nil {
			entry.Fault("%v", err)
		}
		r.items = append(r.items, annotationItem{asked, actions})
	}
	if r.fault = faults.Err(); r.fault != nil {
		r.accounts, r.items = nil, nil
	}
	return r
}

// Err says why the object asks for nothing; nil: it counts.
func (r *Request) Err() error { return r.fault }

// Name is the name of the object.
func (r *Request) Name() string { return r.name }

// Namespace is the namespace of the object and of its ServiceAccounts.
func (r *Request) Namespace() string { return r.namespace }

// ServiceAccounts are the accounts that the object asks for. They must not be changed.
func (r *Request) ServiceAccounts() []string { return r.accounts }

// parseAskedPattern reads a pattern of an annotation or a RepositoryAccess. Its author is not
// trusted, so matching must stay linear. Placeholders are only for ceilings.
func parseAskedPattern(text string) (pattern.Pattern, error) {
	asked, err := pattern.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("pattern %w", err)
	case asked.HasPlaceholder():
		return "", errors.New("placeholders work in the policy only; write the name itself")
	case strings.Count(text, "**") > 1:
		return "", errors.New("more than one ** works in the policy only; write an item for each repository")
	}
	return asked, nil
}

// Requests is the items of all RepositoryAccess objects for one ServiceAccount. It is immutable and
// safe for concurrent use. It shares the memory of the objects, because their authors choose the
// number of ServiceAccounts.
type Requests struct {
	objects []*Request
	last    int // items of the last object that are read
}

// NewRequests gathers the items of objects for a ServiceAccount of their namespace, in the order
// given, up to the limit. It returns nil if there are none.
func NewRequests(account string, objects []*Request) *Requests {
	var r Requests
	left := maxRequestItems
	for _, o := range objects {
		if left > 0 && slices.Contains(o.accounts, account) {
			r.objects = append(r.objects, o)
			r.last = min(len(o.items), left)
			left -= r.last
		}
	}
	if r.objects == nil {
		return nil
	}
	return &r
}

// all yields the items that are read, with their object.
func (r *Requests) all() iter.Seq2[*Request, *annotationItem] {
	return func(yield func(*Request, *annotationItem) bool) {
		if r == nil {
			return
		}
		for i, o := range r.objects {
			items := o.items
			if i == len(r.objects)-1 {
				items = items[:r.last]
			}
			for k := range items {
				if !yield(o, &items[k]) {
					return
				}
			}
		}
	}
}

// read returns the items in the form of an annotation that was read.
func (r *Requests) read() *asked {
	return &asked{isRead: true, present: true, requests: r}
}

// asks reports whether an annotation or objects select from the rule's allow.
func (r *rule) asks() bool { return r.annotation != "" || r.requests }

// selector names the annotation or the objects that select.
func (r *rule) selector() string {
	if r.requests {
		return "a " + KindRequest
	}
	return "the annotation " + r.annotation
}

// at returns an element of two lists, one after the other.
func at[T any](first, second []T, i int) *T {
	if i < len(first) {
		return &first[i]
	}
	return &second[i-len(first)]
}

// rule returns the rule at an index of the policy's and then of the objects' rules.
func (e *evaluation) rule(i int) *rule {
	return at(e.policy.rules, e.subject.Objects.ruleSet().rules, i)
}

// limit caches whether one repository is within the limit on objects, because every rule needs it.
type limit struct {
	name   string
	within bool
}

// within reports whether objects may grant the scope, which is a repository. Neither rules of
// objects nor those with requests allow anything else.
func (e *evaluation) within(q question) bool {
	if e.subject.Objects.Policies == nil {
		return false
	}
	if e.limit.name != q.scope.Name {
		e.limit = limit{q.scope.Name, slices.ContainsFunc(e.subject.Objects.Policies.within, func(p pattern.Pattern) bool {
			return p.Match(q.scope.Name, e.subject.Identity, &e.steps)
		})}
	}
	return e.limit.within
}

// askObject returns a remedy: a RepositoryAccess that asks for actions within the rules that read
// such objects.
func (e *evaluation) askObject(q question, missing action.Set, nearest []candidate) string {
	id := e.subject.Identity
	first, within := e.reachable(q, missing, nearest, func(r *rule) bool { return r.requests })
	return term.Shorten(fmt.Sprintf("%slet a RepositoryAccess in the namespace %s of cluster %s ask for it: serviceAccounts: [%s], repositories: [%s], actions: [%s]",
		first, Plain(id.Kubernetes.Namespace), Plain(id.Cluster), Plain(id.Kubernetes.ServiceAccount.Name), Plain(q.scope.Name), quotedList(within.Nameable().Names())), maxRemedyBytes)
}
