package reach

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// What lists the repositories that a ServiceAccount can reach. docs/who-can.schema.json
// describes each field.
type What struct {
	APIVersion     string            `json:"apiVersion"`
	Kind           string            `json:"kind"`
	ServiceAccount string            `json:"serviceAccount"`        // CLUSTER/NAMESPACE/NAME
	Annotations    map[string]string `json:"annotations,omitempty"` // those that rules read
	Services       []Service         `json:"services"`
}

// Service lists the repositories of one service that the ServiceAccount can reach.
type Service struct {
	Service  string        `json:"service"`
	DeniedBy string        `json:"deniedBy,omitempty"` // the denial that refuses the ServiceAccount; then nothing is reachable
	Rules    []ReachedRule `json:"rules"`              // those that apply
	Unjudged []string      `json:"unjudged,omitempty"` // denials and rules that Rules ignores, because only a token decides whether they match
	Closed   []Closed      `json:"closed,omitempty"`
}

// Actions returns the actions on some repositories of the pattern, as rules name them.
func (s *Service) Actions(of pattern.Pattern) (names []string) {
	for _, rule := range s.Rules {
		for _, r := range rule.Reached {
			isApart := func(p string) bool { return !pattern.Pattern(p).Overlaps(of) }
			if !isApart(r.Repositories) && !slices.ContainsFunc(r.Within, isApart) {
				names = append(names, strings.Split(r.Actions, ", ")...)
			}
		}
	}
	return names
}

// ReachedRule is the grants of one rule.
type ReachedRule struct {
	Name       string    `json:"name"`
	Origin     string    `json:"origin"`
	Annotation string    `json:"annotation,omitempty"` // the annotation that selects from them
	Requests   bool      `json:"requests,omitempty"`   // RepositoryAccess objects select
	Fault      string    `json:"fault,omitempty"`      // why the annotation counts for nothing
	Catalog    bool      `json:"catalog,omitempty"`    // the list of all repositories
	Reached    []Reached `json:"reached"`
}

// Reached is repositories with the actions on them.
type Reached struct {
	Repositories string   `json:"repositories"`      // a pattern, with the names of the ServiceAccount in it
	Within       []string `json:"within,omitempty"`  // further patterns that must all match
	Actions      string   `json:"actions"`           // separated by commas
	Objects      []string `json:"objects,omitempty"` // RepositoryAccess objects that ask for it
}

// FindWhat returns the repositories that an identity can reach. Everything that rules compare must
// be known of it, except values that only a token has.
func FindWhat(p *policy.Policy, name string, subject policy.Subject, services []string) *What {
	what := &What{APIVersion: strictyaml.AnswerVersion, Kind: "Reach", ServiceAccount: name, Annotations: subject.Annotations, Services: []Service{}}
	subject.NoToken = true
	rules := p.WrittenRules()
	if subject.Objects.Policies != nil {
		rules = append(rules, subject.Objects.Policies.WrittenRules()...)
	}
	for _, service := range services {
		reached := Service{Service: service, Rules: []ReachedRule{}}
		decision, trace := p.Explain(subject, service, nil)
		if reached.DeniedBy = decision.DeniedBy; reached.DeniedBy == "" {
			reached.Unjudged = slices.Concat(decision.UnjudgedDenials, decision.DenialsOfNodes, decision.UnjudgedRules)
		}
		for i, r := range trace.Rules {
			if r.SubjectMatched && r.ServiceMatched {
				reached.Rules = append(reached.Rules, reachedBy(&rules[i], subject))
			}
		}
		what.Services = append(what.Services, reached)
	}
	return what
}

func reachedBy(rule *policy.WrittenRule, subject policy.Subject) ReachedRule {
	reached := ReachedRule{Name: rule.Name, Origin: rule.Origin, Annotation: rule.Annotation, Requests: rule.Requests, Reached: []Reached{}}
	asked := []policy.WrittenRequest{{}} // everything that is allowed
	switch {
	case rule.Requests:
		asked = subject.Objects.Requests.Written()
	case rule.Annotation != "":
		items, err := policy.AnnotationItems(subject.Annotations[rule.Annotation])
		if err != nil {
			reached.Fault = err.Error()
			return reached
		}
		asked = nil
		for _, item := range items {
			asked = append(asked, policy.WrittenRequest{WrittenAllowance: item})
		}
	}
	limits := []pattern.Pattern{"**"}
	if rule.InObject || rule.Requests {
		limits = nil
		if subject.Objects.Policies != nil {
			limits = expandAll(subject.Objects.Policies.Within(), subject.Identity)
		}
	}
	for _, allowed := range rule.Allow {
		if allowed.Repositories == nil {
			reached.Catalog = true
		}
		for _, ceiling := range expandAll(allowed.Repositories, subject.Identity) {
			for _, request := range asked {
				patterns, actions := []pattern.Pattern{ceiling}, allowed.Actions
				if request.Repositories != nil {
					patterns, actions = intersect(request.Repositories, ceiling), actions.Intersect(request.Actions)
				}
				for _, limit := range limits {
					reached.add(intersect(patterns, limit), actions, request.Object)
				}
			}
		}
	}
	return reached
}

// expandAll leaves out patterns with a placeholder without a value, which match nothing.
func expandAll(patterns []pattern.Pattern, id *oidc.Identity) []pattern.Pattern {
	var all []pattern.Pattern
	for _, p := range patterns {
		if p = pattern.Pattern(p.Expand(id)); !p.HasPlaceholder() {
			all = append(all, p)
		}
	}
	return all
}

// intersect returns the conjunction of the patterns and more: a name must match all patterns of the
// list. An empty list matches nothing.
func intersect(patterns []pattern.Pattern, more pattern.Pattern) []pattern.Pattern {
	switch {
	case len(patterns) == 0, slices.ContainsFunc(patterns, func(p pattern.Pattern) bool { return !p.Overlaps(more) }):
		return nil
	case slices.ContainsFunc(patterns, more.Contains):
		return patterns
	}
	return append(slices.DeleteFunc(slices.Clone(patterns), func(p pattern.Pattern) bool { return p.Contains(more) }), more)
}

func (r *ReachedRule) add(patterns []pattern.Pattern, actions action.Set, object string) {
	if len(patterns) == 0 || actions == 0 {
		return
	}
	added := Reached{Repositories: string(patterns[0]), Actions: actions.String()}
	for _, p := range patterns[1:] {
		added.Within = append(added.Within, string(p))
	}
	i := slices.IndexFunc(r.Reached, func(known Reached) bool {
		return known.Repositories == added.Repositories && slices.Equal(known.Within, added.Within) && known.Actions == added.Actions
	})
	if i < 0 {
		i = len(r.Reached)
		r.Reached = append(r.Reached, added)
	}
	if known := &r.Reached[i]; object != "" && !slices.Contains(known.Objects, object) {
		known.Objects = append(known.Objects, object)
	}
}
