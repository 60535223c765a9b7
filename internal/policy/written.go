package policy

import (
	"slices"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/subjects"
)

// WrittenRule is a rule as people wrote it, for those who ask about the policy itself
// and about no request. It shares memory with the policy and must not be changed.
type WrittenRule struct {
	Name, Origin string // FILE: rules[0]
	Anonymous    bool
	Subjects     []subjects.Match
	Services     []string // nil: every registry
	Annotation   string
	Requests     bool // RepositoryAccess objects select
	Allow        []WrittenAllowance
}

// WrittenAllowance is repositories, or else the catalog.
type WrittenAllowance struct {
	Repositories []pattern.Pattern
	Actions      ActionSet
}

// WrittenDenial is a denial, likewise.
type WrittenDenial struct {
	Name, Origin string // FILE: deny[0]
	Subjects     []subjects.Match
}

// WrittenRules returns the rules in their order.
func (p *Policy) WrittenRules() []WrittenRule { return writtenRules(p.rules) }

// WrittenDenials returns the denials in their order.
func (p *Policy) WrittenDenials() []WrittenDenial { return writtenDenials(p.deny) }

func writtenRules(rules []rule) []WrittenRule {
	all := make([]WrittenRule, len(rules))
	for i, r := range rules {
		all[i] = WrittenRule{
			Name: r.name[0], Origin: r.origin, Anonymous: r.anonymous, Subjects: r.subjects, Services: r.services, Annotation: r.annotation, Requests: r.requests,
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

// Compared returns the claims that rules and denials for an identity compare, by
// their names, sorted.
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

// AnnotationItems returns what a ServiceAccount asks for with an annotation. Its error
// says why the annotation counts for nothing.
func AnnotationItems(text string) ([]WrittenAllowance, error) {
	items, err := parseAnnotation(text)
	all := make([]WrittenAllowance, len(items))
	for i, item := range items {
		all[i] = WrittenAllowance{[]pattern.Pattern{item.pattern}, item.actions}
	}
	return all, err
}
