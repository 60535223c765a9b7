package policy

import (
	"slices"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/subjects"
)

// WrittenRule is a rule as people wrote it, for those who ask about the policy itself
// and about no request.
type WrittenRule struct {
	Name, Origin string // FILE: rules[0]
	Anonymous    bool
	Subjects     []WrittenSubject
	Services     []string // nil: every registry
	Annotation   string
	Requests     bool // RepositoryAccess objects select
	Allow        []WrittenAllowance
}

// WrittenSubject is a subject of a rule or a denial. What is not given is nil or empty.
type WrittenSubject struct {
	Clusters          []string            `json:"clusters,omitempty"`
	Namespaces        []string            `json:"namespaces,omitempty"`
	NamespaceSelector string              `json:"namespaceSelector,omitempty"` // as for kubectl -l
	ServiceAccounts   []string            `json:"serviceAccounts,omitempty"`
	Nodes             []string            `json:"nodes,omitempty"`
	TokenIDs          []string            `json:"tokenIDs,omitempty"`
	Identities        []string            `json:"identities,omitempty"`
	Claims            map[string][]string `json:"claims,omitempty"`
	Condition         string              `json:"condition,omitempty"`
}

// WrittenAllowance is repositories, or else the catalog.
type WrittenAllowance struct {
	Repositories []pattern.Pattern
	Actions      ActionSet
}

// WrittenDenial is a denial, likewise.
type WrittenDenial struct {
	Name, Origin string // FILE: deny[0]
	Subjects     []WrittenSubject
}

// WrittenRules returns the rules in their order.
func (p *Policy) WrittenRules() []WrittenRule {
	all := make([]WrittenRule, len(p.rules))
	for i, r := range p.rules {
		all[i] = WrittenRule{
			Name: r.name[0], Origin: r.origin, Anonymous: r.anonymous, Subjects: written(r.subjects),
			Services: slices.Clone(r.services), Annotation: r.annotation, Requests: r.requests,
		}
		for _, a := range r.allow {
			all[i].Allow = append(all[i].Allow, WrittenAllowance{slices.Clone(a.repositories), a.actions})
		}
	}
	return all
}

// WrittenDenials returns the denials in their order.
func (p *Policy) WrittenDenials() []WrittenDenial {
	all := make([]WrittenDenial, len(p.deny))
	for i, d := range p.deny {
		all[i] = WrittenDenial{d.name, d.origin, written(d.subjects)}
	}
	return all
}

func written(matches []subjects.Match) []WrittenSubject {
	all := make([]WrittenSubject, len(matches))
	for i, m := range matches {
		w := WrittenSubject{
			Clusters: slices.Clone(m.Clusters), Namespaces: slices.Clone(m.Namespaces), ServiceAccounts: slices.Clone(m.ServiceAccounts),
			Nodes: slices.Clone(m.Nodes), TokenIDs: slices.Clone(m.TokenIDs), Identities: slices.Clone(m.Identities),
		}
		if m.NamespaceSelector != nil {
			w.NamespaceSelector = m.NamespaceSelector.String()
		}
		if m.Condition != nil {
			w.Condition = m.Condition.String()
		}
		for _, c := range m.Claims {
			if w.Claims == nil {
				w.Claims = map[string][]string{}
			}
			w.Claims[c.Name] = slices.Clone(c.Values)
		}
		all[i] = w
	}
	return all
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
