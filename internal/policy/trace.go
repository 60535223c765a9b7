package policy

import (
	"fmt"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// Trace explains a decision: the effect of each rule, in the policy's order. It is stable as JSON.
type Trace struct {
	Deny  []DenyTrace `json:"deny,omitempty"`
	Rules []RuleTrace `json:"rules,omitempty"` // nil when a denial matched: no rule was evaluated
	Edit  *Edit       `json:"edit,omitempty"`  // nil: nothing is missing, or no edit is known that would grant it
}

// DenyTrace says whether a denial matched.
type DenyTrace struct {
	Name       string   `json:"name"`
	Origin     string   `json:"origin"` // FILE: deny[0]
	Matched    bool     `json:"matched"`
	MatchedBy  string   `json:"matchedBy,omitempty"`  // the first of its subjects that matched: subjects[0]
	Mismatches []string `json:"mismatches,omitempty"` // for each of its subjects, the first field that differs
}

// RuleTrace is the effect of one rule. A rule applies when both subject and service match.
type RuleTrace struct {
	Name           string      `json:"name"`
	Origin         string      `json:"origin"` // FILE: rules[0]
	SubjectMatched bool        `json:"subjectMatched"`
	MatchedBy      string      `json:"matchedBy,omitempty"`  // the first of its subjects that matched: subjects[0]; or anonymous
	Mismatches     []string    `json:"mismatches,omitempty"` // for each of its subjects, the first field that differs
	ServiceMatched bool        `json:"serviceMatched"`
	Annotation     string      `json:"annotation,omitempty"` // the key that the rule reads
	Requests       bool        `json:"requests,omitempty"`   // the rule reads RepositoryAccess objects
	Scopes         []RuleScope `json:"scopes,omitempty"`     // the effects of an applicable rule, in the order requested
}

// RuleScope is the effect of an applicable rule on one requested scope. Actions are sorted.
type RuleScope struct {
	Requested string   `json:"requested"`
	Patterns  []string `json:"patterns,omitempty"` // of allow, as written, that match
	Allows    []string `json:"allows,omitempty"`   // actions of these
	Beyond    bool     `json:"beyond,omitempty"`   // it is beyond clusters[].kubernetes.objects.within
	Items     []string `json:"items,omitempty"`    // of the annotation, or of RepositoryAccess objects, that match
	Objects   []string `json:"objects,omitempty"`  // NAMESPACE/NAME of these RepositoryAccess objects
	Asks      []string `json:"asks,omitempty"`     // actions of these
	Fault     string   `json:"fault,omitempty"`    // why the annotation counts for nothing
	Granted   []string `json:"granted,omitempty"`  // the requested actions that this rule grants by itself
}

func (t *RuleScope) notePattern(p string) {
	if t != nil {
		t.Patterns = append(t.Patterns, p)
	}
}

// matched returns the path of the subject that matched, given the mismatches of the subjects before
// it.
func matched(mismatches []string) string { return fmt.Sprintf("subjects[%d]", len(mismatches)) }

// Explain makes the same decision as Decide, by the same code, and returns its trace.
func (p *Policy) Explain(subject Subject, service string, requested []registryauth.Scope) (Decision, Trace) {
	var trace Trace
	decision := p.decide(subject, service, requested, &trace)
	return decision, trace
}
