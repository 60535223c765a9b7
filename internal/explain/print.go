package explain

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/audit"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policytest"
	"github.com/pullpass/pullpass/internal/term"
)

// WriteFailedTest says what explain would.
func WriteFailedTest(c policytest.Case, decision policy.Decision, trace policy.Trace) []byte {
	a := &Explanation{Trace: trace, decision: decision}
	for _, scope := range c.Requested {
		a.Requested = append(a.Requested, scope.String())
	}
	p := &printer{}
	for _, d := range trace.Deny {
		if d.Matched {
			p.line("denied", fmt.Sprintf("%s matches by %s (%s)", d.Name, d.MatchedBy, d.Origin))
		}
	}
	p.policy(a)
	for i := range a.scopesAsked() {
		p.scope(a, i)
	}
	p.edit(a.Edit)
	return p.out.Bytes()
}

// maxOtherRules is how many of the rules that are for others are named to
// people. JSON has all.
const maxOtherRules = 20

// WriteText writes the answer for people. Much of it comes from callers
// and from owners of ServiceAccounts: what is not plain is quoted.
func WriteText(w io.Writer, a *Explanation) error {
	p := &printer{}
	p.subject(a)
	p.blank()
	for _, s := range a.Steps {
		if s.Step == stepService && s.Verdict == exchange.VerdictPassed || strings.HasPrefix(s.Message, notAsked) {
			continue // it stands above; nobody came to it
		}
		p.line(string(s.Step), fmt.Sprintf("%-10s  %s", verdictText(s.Verdict), term.Line(s.Message)))
	}
	p.policy(a)
	for i := range a.scopesAsked() {
		p.scope(a, i)
	}
	p.edit(a.Edit)
	p.answer(a)
	_, err := w.Write(p.out.Bytes())
	return err
}

// verdictText is how people read a verdict.
func verdictText(verdict exchange.Verdict) string {
	switch verdict {
	case exchange.VerdictRefused:
		return "REFUSED"
	case exchange.VerdictNotJudged:
		return "not judged"
	}
	return string(verdict)
}

type printer struct{ out bytes.Buffer }

func (p *printer) line(what, text string) { fmt.Fprintf(&p.out, "%-12s %s\n", what, text) }

func (p *printer) blank() { p.out.WriteByte('\n') }

func (p *printer) subject(a *Explanation) {
	s := a.Subject
	switch {
	case s.ServiceAccount != nil:
		p.line("subject", fmt.Sprintf("%s, ServiceAccount UID %s", term.Words(names.Object{Cluster: s.Cluster, Namespace: s.Namespace, Name: s.ServiceAccount.Name}.String()), uidText(s.ServiceAccount)))
	case a.then != nil && s.Claimed != nil:
		p.line("subject", audit.Who(a.then))
	case s.Claimed != nil:
		p.line("subject", term.Words("claimed", s.Claimed.Subject))
	case s.Source == sourceAnonymous:
		p.line("subject", "anonymous")
	default:
		p.line("subject", "unknown")
	}
	switch {
	case s.Unproven != "" && s.Source != sourceAnonymous:
		p.line("", "NOT PROVEN: "+s.Unproven)
	case s.Claimed != nil && s.Claimed.Verified:
		p.line("", "proven: its signature is good")
	}
	if s.Pod != nil {
		p.line("pod", term.Words(s.Pod.Name)+", UID "+uidText(s.Pod))
	}
	if s.Node != nil {
		from := ""
		if s.NodeFromAPI {
			from = ", says the API server"
		}
		p.line("node", term.Words(s.Node.Name)+", UID "+uidText(s.Node)+from)
	}
	if s.CredentialID != "" {
		p.line("token id", term.Words(s.CredentialID))
	}
	p.line("service", term.Words(a.Service))
	if a.Caller != "" {
		p.line("caller", a.Caller)
	}
	if a.then != nil {
		p.line("then", term.Words(a.then.Time.UTC().Format(time.RFC3339), string(a.then.Result), fmt.Sprint(a.then.Status))+": "+
			cmp.Or(audit.What(a.then), "-")+"; "+cmp.Or(audit.Why(a.then), "-"))
	}
}

func uidText(o *exchange.Object) string { return cmp.Or(term.Words(o.UID), "not known") }

// policy says what the policy judged by, and which rules are for others.
func (p *printer) policy(a *Explanation) {
	var denials []string
	for _, d := range a.Deny {
		if !d.Matched {
			denials = append(denials, d.Name+" ("+mismatchText(d.Mismatches)+")")
		}
	}
	p.others("deny rules", denials)
	for _, key := range slices.Sorted(maps.Keys(a.Annotations)) {
		if value := a.Annotations[key]; value != nil {
			p.line("annotation", fmt.Sprintf("%s: %+q", key, *value))
		} else {
			p.line("annotation", key+": none is known of this ServiceAccount")
		}
	}
	if a.NamespaceLabels != nil {
		var pairs []string // as kubectl get --show-labels writes them
		for _, key := range slices.Sorted(maps.Keys(a.NamespaceLabels)) {
			pairs = append(pairs, key+"="+a.NamespaceLabels[key])
		}
		p.line("labels", "of the namespace: "+cmp.Or(strings.Join(pairs, ","), "none"))
	}
	var others []string
	for _, r := range a.Rules {
		switch {
		case !r.SubjectMatched:
			others = append(others, r.Name+" ("+mismatchText(r.Mismatches)+")")
		case !r.ServiceMatched:
			others = append(others, r.Name+" (by services)")
		}
	}
	p.others("rules", others)
}

// others names rules that are not for this subject.
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
		return "nobody anonymous"
	}
	return "by " + strings.Join(slices.Compact(slices.Clone(fields)), ", ")
}

func (p *printer) scope(a *Explanation, i int) {
	scope := a.Requested[i]
	fmt.Fprintf(&p.out, "\n%s\n", scope)
	for _, r := range a.Rules {
		if r.SubjectMatched && r.ServiceMatched {
			fmt.Fprintf(&p.out, "  rule %s (%s): %s\n", r.Name, r.Origin, ruleVerdict(r, i))
		}
	}
	s := a.decision.Scopes[i]
	switch {
	case s.Reason == "":
		fmt.Fprintf(&p.out, "  GRANTED: %s\n", strings.Join(s.Granted, ", "))
	case len(s.Granted) > 0:
		fmt.Fprintf(&p.out, "  GRANTED IN PART: %s\n  why: %s\n  remedy: %s\n", strings.Join(s.Granted, ", "), s.Reason, s.Remedy)
	default:
		fmt.Fprintf(&p.out, "  NOT GRANTED\n  why: %s\n  remedy: %s\n", s.Reason, s.Remedy)
	}
}

// ruleVerdict says what a rule that applies did with the scope at index i.
func ruleVerdict(rule policy.RuleTrace, i int) string {
	s := rule.Scopes[i]
	var parts []string
	if len(s.Patterns) == 0 {
		parts = append(parts, "no pattern matches")
	} else {
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
	if len(s.Granted) > 0 {
		parts = append(parts, "gives "+strings.Join(s.Granted, ", "))
	}
	return strings.Join(parts, "; ")
}

// edit says what to run or to write, whole and ready to be copied.
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
	if edit.Rule == "" {
		return
	}
	if len(edit.Commands) > 0 {
		p.out.WriteString("and")
	} else {
		p.out.WriteByte(',')
	}
	p.out.WriteString(" add to the rules of the policy, if the ServiceAccount is to have it:\n")
	for line := range strings.Lines(edit.Rule) {
		p.out.WriteString("  " + line)
	}
}

// answer is what people look for, so it stands last.
func (p *printer) answer(a *Explanation) {
	p.blank()
	now := term.Words(string(a.Now.Result), fmt.Sprint(a.Now.Status))
	switch {
	case a.Now.Result == exchange.ResultGranted && len(a.Requested) == 0:
		now += ": a login, the token opens nothing by itself"
	case a.Now.Reason != "" && a.Now.Message != "":
		now += ": " + a.Now.Reason + "; " + term.Line(a.Now.Message)
	case a.Now.Reason != "":
		now += ": " + a.Now.Reason
	}
	p.line("now", now)
	if a.Now.Remedy != "" {
		p.line("remedy", term.Line(a.Now.Remedy))
	}
	if conditions := a.conditions(); a.Now.Status == http.StatusOK && len(conditions) > 0 {
		p.line("", "unless this refuses, which was not judged: "+strings.Join(conditions, ", "))
	}
	if a.then == nil {
		return
	}
	switch {
	case a.Subject.Source == sourceClaim && a.verdict(stepToken) == exchange.VerdictNotJudged:
		p.line("changed", "cannot be said: the token of then was refused, and now a good one is judged")
	case len(a.Changes) == 0:
		p.line("changed", "nothing: the same would be decided")
	}
	for i, c := range a.Changes {
		p.line([]string{"changed", ""}[min(i, 1)], fmt.Sprintf("%s: %s -> %s", c.Field, cmp.Or(term.Line(c.Then), "none"), cmp.Or(term.Line(c.Now), "none")))
	}
}
