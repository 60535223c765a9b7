package reach

import (
	"slices"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
)

// What is what a ServiceAccount can reach. docs/policy.md and the schema say what each
// field means.
type What struct {
	APIVersion     string            `json:"apiVersion"`
	Kind           string            `json:"kind"`
	ServiceAccount string            `json:"serviceAccount"`        // CLUSTER/NAMESPACE/NAME
	Annotations    map[string]string `json:"annotations,omitempty"` // of those that rules read
	Services       []Service         `json:"services"`
}

// Service is what can be reached there.
type Service struct {
	Service  string        `json:"service"`
	DeniedBy string        `json:"deniedBy,omitempty"` // the denial that refuses the ServiceAccount; then nothing is reached
	Rules    []ReachedRule `json:"rules"`              // those that apply
}

// ReachedRule is what one rule gives.
type ReachedRule struct {
	Name       string    `json:"name"`
	Origin     string    `json:"origin"`
	Annotation string    `json:"annotation,omitempty"` // that selects from what is allowed
	Fault      string    `json:"fault,omitempty"`      // why the annotation counts for nothing
	Catalog    bool      `json:"catalog,omitempty"`    // the list of all repositories
	Reached    []Reached `json:"reached"`
}

// Reached is repositories.
type Reached struct {
	Repositories string `json:"repositories"`     // a pattern, with the names of the ServiceAccount in it
	Within       string `json:"within,omitempty"` // and only those that this one matches, too
	Actions      string `json:"actions"`          // separated by commas
}

// FindWhat answers for an identity of which everything is known that a rule asks for,
// but for what only a token can tell. Of the objects of its cluster it tells denials;
// what they give is not among the rules.
func FindWhat(p *policy.Policy, name string, subject policy.Subject, services []string) *What {
	what := &What{APIVersion: policy.APIVersion, Kind: "Reach", ServiceAccount: name, Annotations: subject.Annotations, Services: []Service{}}
	rules := p.WrittenRules()
	for _, service := range services {
		reached := Service{Service: service, Rules: []ReachedRule{}}
		decision, trace := p.Explain(subject, service, nil)
		reached.DeniedBy = decision.DeniedBy
		for i, r := range trace.Rules[:min(len(rules), len(trace.Rules))] { // those of objects come behind
			if r.SubjectMatched && r.ServiceMatched {
				reached.Rules = append(reached.Rules, reachedBy(&rules[i], subject))
			}
		}
		what.Services = append(what.Services, reached)
	}
	return what
}

func reachedBy(rule *policy.WrittenRule, subject policy.Subject) ReachedRule {
	reached := ReachedRule{Name: rule.Name, Origin: rule.Origin, Annotation: rule.Annotation, Reached: []Reached{}}
	var items []policy.WrittenAllowance
	if rule.Requests {
		reached.Fault = "what RepositoryAccess objects ask for is not looked at here: see pullpass explain"
		return reached
	}
	if rule.Annotation != "" {
		var err error
		if items, err = policy.AnnotationItems(subject.Annotations[rule.Annotation]); err != nil {
			reached.Fault = err.Error()
			return reached
		}
	}
	for _, allowed := range rule.Allow {
		if allowed.Repositories == nil {
			reached.Catalog = true
		}
		for _, p := range allowed.Repositories {
			p = pattern.Pattern(p.Expand(subject.Identity))
			switch {
			case p.HasPlaceholder(): // it stands for nothing, and matches nothing
			case rule.Annotation == "":
				reached.add(p, "", allowed.Actions)
			default:
				for _, item := range items {
					reached.both(item, p, allowed.Actions)
				}
			}
		}
	}
	return reached
}

// both adds what an item of the annotation asks for and the rule allows.
func (r *ReachedRule) both(item policy.WrittenAllowance, allowed pattern.Pattern, actions policy.ActionSet) {
	asked := item.Repositories[0]
	switch actions = actions.Intersect(item.Actions); {
	case actions == 0:
	case allowed.Contains(asked):
		r.add(asked, "", actions)
	case asked.Contains(allowed):
		r.add(allowed, "", actions)
	case asked.Overlaps(allowed):
		r.add(asked, string(allowed), actions)
	}
}

func (r *ReachedRule) add(repositories pattern.Pattern, within string, actions policy.ActionSet) {
	added := Reached{string(repositories), within, actions.String()}
	if !slices.Contains(r.Reached, added) {
		r.Reached = append(r.Reached, added)
	}
}
