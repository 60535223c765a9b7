package policy

import (
	"slices"

	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// WrittenRule is a rule in its source form, for queries about the policy itself rather than a
// request. It shares memory with the policy and must not be changed.
type WrittenRule struct {
	Name, Origin string // FILE: rules[0]
	Anonymous    bool
	Subjects     []subjects.Match
	Services     []string // nil: every registry
	Annotation   string
	Requests     bool // RepositoryAccess objects select
	InObject     bool // of a cluster
	Allow        []WrittenAllowance
}

// WrittenAllowance is either repositories or the catalog.
type WrittenAllowance struct {
	Repositories []pattern.Pattern
	Actions      action.Set
}

// WrittenDenial is a denial in its source form.
type WrittenDenial struct {
	Name, Origin string // FILE: deny[0]
	Subjects     []subjects.Match
}

// WrittenRequest is one pattern of a RepositoryAccess.
type WrittenRequest struct {
	Object string // NAMESPACE/NAME
	WrittenAllowance
}

// WrittenRules returns the rules in their order.
func (p *Policy) WrittenRules() []WrittenRule { return writtenRules(p.rules) }

// WrittenDenials returns the denials in their order.
func (p *Policy) WrittenDenials() []WrittenDenial { return writtenDenials(p.deny) }

// WrittenRules returns the rules of the objects in their order.
func (p *Policies) WrittenRules() []WrittenRule { return writtenRules(p.rules) }

// WrittenDenials returns the denials of the objects in their order.
func (p *Policies) WrittenDenials() []WrittenDenial { return writtenDenials(p.deny) }

// WrittenDenials returns the denials of the object in their order.
func (o *ObjectPolicy) WrittenDenials() []WrittenDenial { return writtenDenials(o.deny) }

// Within returns the repositories that objects may grant. It must not be changed.
func (p *Policies) Within() []pattern.Pattern { return p.within }

// Written returns the requests of the object; nil: it counts for nothing.
func (r *Request) Written() []WrittenRequest {
	all := make([]WrittenRequest, len(r.items))
	for i, item := range r.items {
		all[i] = WrittenRequest{r.id(), writtenItem(item)}
	}
	return all
}

// Written returns the requests, as far as they are read.
func (r *Requests) Written() []WrittenRequest {
	var all []WrittenRequest
	for o, item := range r.all() {
		all = append(all, WrittenRequest{o.id(), writtenItem(*item)})
	}
	return all
}

// id is NAMESPACE/NAME.
func (r *Request) id() string { return r.namespace + "/" + r.name }

func writtenItem(i annotationItem) WrittenAllowance {
	return WrittenAllowance{[]pattern.Pattern{i.pattern}, i.actions}
}

func writtenRules(rules []rule) []WrittenRule {
	all := make([]WrittenRule, len(rules))
	for i, r := range rules {
		all[i] = WrittenRule{
			Name: r.name[0], Origin: r.origin, Anonymous: r.anonymous, Subjects: r.subjects, Services: r.services, Annotation: r.annotation, Requests: r.requests, InObject: r.inObject,
		}
		for _, a := range r.allow {
			all[i].Allow = append(all[i].Allow, WrittenAllowance{a.repositories, a.actions})
		}
	}
	return all
}

func writtenDenials(denials []denyRule) []WrittenDenial {
	all := make([]WrittenDenial, len(denials))
	for i, d := range denials {
		all[i] = WrittenDenial{d.name, d.origin, d.subjects}
	}
	return all
}

// Compared returns the claims that rules and denials for an identity compare, sorted by name.
func (p *Policy) Compared(identity string) []string {
	var all []string
	note := func(list []subjects.Match) {
		for i := range list {
			if slices.Contains(list[i].Identities, identity) {
				all = append(all, list[i].Compared()...)
			}
		}
	}
	for i := range p.rules {
		note(p.rules[i].subjects)
	}
	for i := range p.deny {
		note(p.deny[i].subjects)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// AnnotationItems returns the items of an annotation. Its error says why the annotation counts for
// nothing.
func AnnotationItems(text string) ([]WrittenAllowance, error) {
	items, err := parseAnnotation(text)
	all := make([]WrittenAllowance, len(items))
	for i, item := range items {
		all[i] = writtenItem(item)
	}
	return all, err
}
