package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/action"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/subjects"
	"github.com/pullpass/pullpass/internal/term"
)

// Objects is what the objects of a cluster say that concerns one of its
// ServiceAccounts. The zero Objects says nothing.
type Objects struct {
	Policies *Policies // of the cluster; nil: none counts
	Requests *Requests // of the ServiceAccount; nil: none
}

func (o *Objects) ruleSet() *ruleSet {
	if o.Policies == nil {
		return &noRules
	}
	return &o.Policies.ruleSet
}

var noRules ruleSet

// beyond says for people how far objects may go, of which the rule is no sign.
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

// Policies is the AccessPolicy objects of a cluster, and how far its objects may go. It
// is immutable and safe for concurrent use. Whatever is wrong with an object narrows:
// its rules count for nothing, and a denial that cannot be read whole refuses all whom
// it could mean.
type Policies struct {
	ruleSet
	within []pattern.Pattern
}

// NewPolicies puts the AccessPolicies of a cluster together, in the order given. What
// rules of objects and RepositoryAccess objects give is within these patterns.
func NewPolicies(within []pattern.Pattern, objects ...*ObjectPolicy) *Policies {
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

// Denials returns the denials alone, for objects that were heard of too long ago.
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
	fault error
}

// ParseObject reads the spec of an AccessPolicy, as JSON is decoded into an any. If it
// has a fault, all of its rules count for nothing. Names of its rules are
// OBJECT/RULE in decisions.
func ParseObject(name string, spec any) *ObjectPolicy {
	o := &ObjectPolicy{name: name}
	p := policyParser{inObject: true}
	n := strictyaml.NewNode(Kind+" "+name, spec, &p.faults)
	fields := n.Fields("rules", "deny")
	rules, hasRules := fields["rules"]
	deny, hasDeny := fields["deny"]
	if hasRules {
		p.readRules(rules)
	}
	if hasDeny && !isNobody(deny) {
		p.readDenials(deny)
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

// readDenials reads those of an object, and whatever is wrong with one makes it reach
// further.
func (p *policyParser) readDenials(list strictyaml.Node) {
	entries := p.limited(list.List())
	for _, n := range entries {
		d := p.denyRule(n)
		if d.origin == "" {
			d.origin = n.Origin()
		}
		if len(d.subjects) == 0 {
			d.subjects = []subjects.Match{{Denies: true}}
		}
		p.deny = append(p.deny, d)
	}
	if len(entries) == 0 {
		p.deny = append(p.deny, denyAll("deny", list.Origin()))
	}
}

// Name is that of the object.
func (o *ObjectPolicy) Name() string { return o.name }

// Err says why the rules of the object count for nothing; nil: they count. It joins all
// faults, each as AccessPolicy NAME: PATH: what is wrong: remedy.
func (o *ObjectPolicy) Err() error { return o.fault }

// Limits of a RepositoryAccess: whoever may edit it writes it.
const (
	maxRequestAccounts = 64
	maxRequestPatterns = 128
	// maxRequestItems is for all that ask for one ServiceAccount: what is asked for
	// after it counts for nothing, in the order of the objects' names.
	maxRequestItems = 512
)

// Request is one RepositoryAccess object. It is immutable.
type Request struct {
	namespace, name string
	accounts        []string
	items           []annotationItem
	fault           error
}

// ParseRequest reads the spec of a RepositoryAccess, as JSON is decoded into an any. If it
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
	if fields == nil || faults.Count() > 0 {
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

// Name is that of the object.
func (r *Request) Name() string { return r.name }

// Namespace is that of the object and of all for whom it asks.
func (r *Request) Namespace() string { return r.namespace }

// ServiceAccounts are those for whom it asks. They must not be changed.
func (r *Request) ServiceAccounts() []string { return r.accounts }

// parseAskedPattern reads a pattern of which somebody asks for repositories: matching
// stays linear in what a stranger wrote, and placeholders are for ceilings.
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

// Requests is what all RepositoryAccess objects ask for one ServiceAccount. It is
// immutable and safe for concurrent use.
type Requests struct {
	items   []annotationItem
	objects []string // NAMESPACE/NAME of the object of each item
}

// NewRequests gathers what objects ask for a ServiceAccount of their namespace, in the
// order given, as far as it is read. It returns nil if that is nothing.
func NewRequests(account string, objects []*Request) *Requests {
	var r Requests
	for _, o := range objects {
		if slices.Contains(o.accounts, account) {
			items := o.items[:min(len(o.items), maxRequestItems-len(r.items))]
			r.items = append(r.items, items...)
			r.objects = append(r.objects, slices.Repeat([]string{o.namespace + "/" + o.name}, len(items))...)
		}
	}
	if r.items == nil {
		return nil
	}
	return &r
}

// read returns what they ask for, in the form of an annotation that was read.
func (r *Requests) read() *asked {
	if r == nil {
		return &asked{isRead: true}
	}
	return &asked{isRead: true, present: true, items: r.items, requests: r}
}

// asks reports whether something selects from what the rule allows.
func (r *rule) asks() bool { return r.annotation != "" || r.requests }

// selector names what selects.
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

// rule returns one of the policy's, or of the objects'.
func (e *evaluation) rule(i int) *rule {
	return at(e.policy.rules, e.subject.Objects.ruleSet().rules, i)
}

// limit remembers whether one repository is within what objects may give: every rule
// wants to know.
type limit struct {
	name   string
	within bool
}

// within reports whether objects may give what is asked for, which is a repository:
// neither rules of objects nor those with requests allow anything else.
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

// askObject says how to ask with a RepositoryAccess for what the rules that read them
// would allow.
func (e *evaluation) askObject(q question, missing action.Set, nearest []candidate) string {
	id := e.subject.Identity
	var ceiling, anyCeiling action.Set
	for _, c := range nearest {
		anyCeiling |= c.ceiling
		if c.rule.requests {
			ceiling |= c.ceiling
		}
	}
	var first string
	if beyond := anyCeiling.Missing(missing); beyond != 0 {
		first = e.toAllow(q, beyond) + "; for the rest, "
	}
	actions := ceiling.Cover(missing).Nameable()
	return term.Shorten(fmt.Sprintf("%slet a RepositoryAccess in the namespace %s of cluster %s ask for it: serviceAccounts: [%s], repositories: [%s], actions: [%s]",
		first, Plain(id.Kubernetes.Namespace), Plain(id.Cluster), Plain(id.Kubernetes.ServiceAccount.Name), Plain(q.scope.Name), quotedList(actions.Names())), maxRemedyBytes)
}
