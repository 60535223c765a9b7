package explain

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
)

// maxOtherRules is how many of the rules for other subjects the text output names. JSON has all.
const maxOtherRules = 20

// WriteDecision writes a decision of a policy and its reasons as text.
func WriteDecision(w io.Writer, decision policy.Decision, trace policy.Trace) error {
	p := &printer{}
	for _, d := range trace.Deny {
		if d.Matched {
			p.line("denied", denialText(d))
		}
	}
	p.otherDenials(trace.Deny)
	p.otherRules(trace.Rules)
	p.decision(decision, trace)
	_, err := w.Write(p.out.Bytes())
	return err
}

// denialText says why a denial matched.
func denialText(d policy.DenyTrace) string {
	return fmt.Sprintf("%s matches by %s (%s)", d.Name, d.MatchedBy, d.Origin)
}

type printer struct{ out bytes.Buffer }

func (p *printer) line(what, text string) { fmt.Fprintf(&p.out, "%-12s %s\n", what, text) }

func (p *printer) blank() { p.out.WriteByte('\n') }

// otherDenials names the denials for other subjects.
func (p *printer) otherDenials(all []policy.DenyTrace) {
	var names []string
	for _, d := range all {
		if !d.Matched {
			names = append(names, d.Name+" ("+mismatchText(d.Mismatches)+")")
		}
	}
	p.others("deny rules", names)
}

// otherRules names the rules for other subjects.
func (p *printer) otherRules(all []policy.RuleTrace) {
	var names []string
	for _, r := range all {
		switch {
		case !r.SubjectMatched:
			names = append(names, r.Name+" ("+mismatchText(r.Mismatches)+")")
		case !r.ServiceMatched:
			names = append(names, r.Name+" (by services)")
		}
	}
	p.others("rules", names)
}

// others names rules for other subjects.
func (p *printer) others(what string, names []string) {
	if more := len(names) - maxOtherRules; more > 0 {
		names = append(names[:maxOtherRules], fmt.Sprintf("and %d more (-o json has all)", more))
	}
	if len(names) > 0 {
		p.line("not for it", what+" "+strings.Join(names, ", "))
	}
}

// mismatchText names the field of each subject that differs.
func mismatchText(fields []string) string {
	if len(fields) == 0 {
		return "not for anonymous callers"
	}
	return "by " + strings.Join(slices.Compact(slices.Clone(fields)), ", ")
}

// decision describes the result for each scope, and the rule that would grant the rest. For a
// denied subject, scopes were not checked.
func (p *printer) decision(d policy.Decision, t policy.Trace) {
	if d.DeniedBy == "" {
		for i, s := range d.Scopes {
			p.scope(s, t.Rules, i)
		}
	}
	p.edit(t.Edit)
}

func (p *printer) scope(s policy.ScopeDecision, rules []policy.RuleTrace, i int) {
	fmt.Fprintf(&p.out, "\n%s\n", s.Requested)
	for _, r := range rules {
		if r.SubjectMatched && r.ServiceMatched {
			fmt.Fprintf(&p.out, "  rule %s (%s): %s\n", r.Name, r.Origin, ruleVerdict(r, i))
		}
	}
	switch {
	case s.Reason == "":
		fmt.Fprintf(&p.out, "  GRANTED: %s\n", strings.Join(s.Granted, ", "))
	case len(s.Granted) > 0:
		fmt.Fprintf(&p.out, "  GRANTED IN PART: %s\n  why: %s\n  remedy: %s\n", strings.Join(s.Granted, ", "), s.Reason, s.Remedy)
	case s.Unjudged != nil:
		fmt.Fprintf(&p.out, "  NOT JUDGED\n  why: %s\n  remedy: %s\n", s.Reason, s.Remedy)
	default:
		fmt.Fprintf(&p.out, "  NOT GRANTED\n  why: %s\n  remedy: %s\n", s.Reason, s.Remedy)
	}
}

// ruleVerdict describes the result of an applicable rule for the scope at index i.
func ruleVerdict(rule policy.RuleTrace, i int) string {
	s := rule.Scopes[i]
	var parts []string
	switch {
	case len(s.Patterns) == 0:
		parts = append(parts, "no pattern matches")
	case s.Beyond:
		parts = append(parts, "matches by "+strings.Join(s.Patterns, " ")+", beyond clusters[].kubernetes.objects.within")
	default:
		parts = append(parts, fmt.Sprintf("allows %s on %s", strings.Join(s.Allows, ", "), strings.Join(s.Patterns, " ")))
	}
	if rule.Annotation != "" {
		switch {
		case s.Fault != "":
			parts = append(parts, "but the annotation counts for nothing: "+s.Fault)
		case len(s.Items) == 0:
			parts = append(parts, "the annotation does not ask for it")
		default:
			parts = append(parts, "the annotation asks for "+strings.Join(s.Items, " "))
		}
	}
	switch {
	case !rule.Requests:
	case len(s.Items) == 0:
		parts = append(parts, "no RepositoryAccess asks for it")
	default:
		parts = append(parts, "RepositoryAccess "+strings.Join(s.Objects, ", ")+" asks for "+strings.Join(s.Items, " "))
	}
	if len(s.Granted) > 0 {
		parts = append(parts, "gives "+strings.Join(s.Granted, ", "))
	}
	return strings.Join(parts, "; ")
}

// edit prints the proposed command or rule in full, ready to be copied.
func (p *printer) edit(edit *policy.Edit) {
	if edit == nil {
		return
	}
	p.out.WriteString("\nTo grant what is missing")
	if len(edit.Commands) > 0 {
		fmt.Fprintf(&p.out, ", run in cluster %s:\n", term.Words(edit.Cluster))
		for _, command := range edit.Commands {
			fmt.Fprintf(&p.out, "  %s\n", command)
		}
	}
	if edit.Requests != "" {
		if len(edit.Commands) > 0 {
			p.out.WriteString("and")
		} else {
			p.out.WriteByte(',')
		}
		fmt.Fprintf(&p.out, " apply in cluster %s:\n", term.Words(edit.Cluster))
		p.indented(edit.Requests)
	}
	if edit.Rule == "" {
		return
	}
	if len(edit.Commands) > 0 || edit.Requests != "" {
		p.out.WriteString("and")
	} else {
		p.out.WriteByte(',')
	}
	p.out.WriteString(" add to the rules of the policy, if the ServiceAccount is to have it:\n")
	p.indented(edit.Rule)
}

func (p *printer) indented(text string) {
	for line := range strings.Lines(text) {
		p.out.WriteString("  " + line)
	}
}
