package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Subject is the caller. The zero Subject is anonymous.
type Subject struct {
	Identity        *oidc.Identity    // nil: anonymous
	Annotations     map[string]string // of the live ServiceAccount with the identity's UID; nil: none known
	NamespaceLabels map[string]string // nil: not known
	Objects         Objects           // of the identity's own cluster
	NoToken         bool              // the identity is the name of a ServiceAccount, whose node and token id are not known
}

func (s *Subject) asker(service string) subjects.Asker {
	return subjects.Asker{Identity: s.Identity, NamespaceLabels: s.NamespaceLabels, Service: service, NoToken: s.NoToken}
}

// Decision is the answer of a policy to one request. The zero Decision grants
// nothing.
type Decision struct {
	DeniedBy string          // the deny rule that refuses the subject as a whole; empty: none
	Scopes   []ScopeDecision // one for each requested scope, in the order asked

	// Of a subject with NoToken: the denials and rules that do not count because only a token
	// decides whether they match; apart, the denials whose nodes alone decide that.
	UnjudgedDenials, UnjudgedRules, DenialsOfNodes []string

	steps int // comparisons, also for the reasons
}

// Steps returns the number of comparisons for the decision, in the unit of pattern.Pattern.Match: a
// few nanoseconds.
func (d *Decision) Steps() int { return d.steps }

// ScopeDecision is the decision on one requested scope, with its reason.
type ScopeDecision struct {
	Requested registryauth.Scope
	Granted   []string // sorted; a subset of the requested actions; nil: nothing
	Rules     []string // names of the rules that granted, in the policy's order
	Reason    string   // why actions are missing; empty when all were granted
	Remedy    string   // how to get the missing actions; empty when all were granted
	Unjudged  []string // those of Decision.UnjudgedRules that allow missing actions
}

// Granted returns the scopes that a token may carry: those with at least one
// action, sorted by type, class and name, the same resource merged. It must not
// be changed.
func (d Decision) Granted() []registryauth.Scope {
	count := 0
	for i := range d.Scopes {
		if len(d.Scopes[i].Granted) > 0 {
			count++
		}
	}
	if count == 0 || d.DeniedBy != "" {
		return nil
	}
	granted := make([]registryauth.Scope, 0, count)
	for i := range d.Scopes {
		if s := &d.Scopes[i]; len(s.Granted) > 0 {
			scope := s.Requested
			scope.Actions = s.Granted
			granted = append(granted, scope)
		}
	}
	slices.SortStableFunc(granted, CompareResources)
	merged := granted[:1]
	for _, scope := range granted[1:] {
		last := &merged[len(merged)-1]
		if CompareResources(*last, scope) != 0 {
			merged = append(merged, scope)
			continue
		}
		last.Actions = slices.Concat(last.Actions, scope.Actions)
		slices.Sort(last.Actions)
		last.Actions = slices.Compact(last.Actions)
	}
	return merged
}

// Within returns the part of a decision that is within other scopes, in the form that ScopeStrings
// writes. The rest gets the reason and the remedy.
func (d Decision) Within(scopes []string, reason, remedy string) Decision {
	limited := d
	limited.Scopes = slices.Clone(d.Scopes)
	for i := range limited.Scopes {
		s := &limited.Scopes[i]
		var most action.Set
		var named []string
		for _, text := range scopes {
			within, err := registryauth.ParseScope(text)
			if err == nil && CompareResources(within, s.Requested) == 0 {
				most |= action.Of(within.Actions)
				named = append(named, within.Actions...)
			}
		}
		granted := most.Pick(s.Granted)
		if most&(action.All|action.Other) == action.Other { // Other stands for any unknown action: compare the names
			granted = slices.DeleteFunc(slices.Clone(granted), func(name string) bool {
				return !slices.Contains(named, name)
			})
		}
		if slices.Equal(granted, s.Granted) {
			continue
		}
		if s.Granted = granted; len(granted) == 0 {
			s.Granted, s.Rules = nil, nil
		}
		s.Reason, s.Remedy = reason, remedy
	}
	return limited
}

func CompareResources(a, b registryauth.Scope) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Class, b.Class), strings.Compare(a.Name, b.Name))
}

func ScopeStrings(scopes []registryauth.Scope) []string {
	if len(scopes) == 0 {
		return nil
	}
	out := make([]string, len(scopes))
	for i, s := range scopes {
		out[i] = s.String()
	}
	return out
}
