package explain

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/server/audit"
)

// WriteText writes the explanation as text. Callers and owners of ServiceAccounts choose many
// values, so values that are not plain are quoted.
func WriteText(w io.Writer, a *Explanation) error {
	p := &printer{}
	p.subject(a)
	p.blank()
	for i, s := range a.Steps {
		if exchange.StepName(i) == exchange.StepService && s.Verdict == exchange.VerdictPassed || strings.HasPrefix(s.Message, notAsked) {
			continue // printed above, or not reached
		}
		p.line(s.Step, fmt.Sprintf("%-10s  %s", verdictText(s.Verdict), term.Line(s.Message)))
	}
	p.otherDenials(a.Deny)
	p.facts(a)
	p.otherRules(a.Rules)
	p.decision(a.decision, a.Trace)
	p.answer(a)
	_, err := w.Write(p.out.Bytes())
	return err
}

// verdictText returns the text for a verdict.
func verdictText(verdict exchange.Verdict) string {
	switch verdict {
	case exchange.VerdictRefused:
		return "REFUSED"
	case exchange.VerdictNotJudged:
		return "not judged"
	}
	return string(verdict)
}

func (p *printer) subject(a *Explanation) {
	s := a.Subject
	switch {
	case s.ServiceAccount != nil:
		p.line("subject", fmt.Sprintf("%s, ServiceAccount UID %s", term.Words(names.Object{Cluster: s.Cluster, Namespace: s.Namespace, Name: s.ServiceAccount.Name}.String()), uidText(s.ServiceAccount)))
	case s.Identity != nil && s.Identity.Subject != "":
		p.line("subject", term.Words(s.Identity.Subject))
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
	p.identity(s.Identity)
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
	if s.PullSecret != nil {
		p.line("pull secret", term.Words(s.PullSecret.Name)+", UID "+uidText(s.PullSecret))
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

// identity prints the ids by which a caller that is not a pod can be revoked, and the claims that a
// rule can compare.
func (p *printer) identity(i *exchange.Identity) {
	if i == nil {
		return
	}
	p.line("identity", term.Words(i.Name)+named("project", i.Project)+named("run", i.Run))
	for _, name := range slices.Sorted(maps.Keys(i.Claims)) {
		p.line("claim", fmt.Sprintf("%s: %+q", term.Words(name), i.Claims[name]))
	}
}

func named(what, name string) string {
	if name == "" {
		return ""
	}
	return ", " + what + " " + term.Words(name)
}

func uidText(o *exchange.Object) string { return cmp.Or(term.Words(o.UID), "not known") }

// facts prints the inputs of the policy besides the subject.
func (p *printer) facts(a *Explanation) {
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
}

// closed names the actions that the gateway forbids.
func (p *printer) closed(what string, all []reach.Closed) {
	for _, c := range all {
		p.line(what, fmt.Sprintf("but the gateway lets no client %s at %s (upstreams[].actions)", strings.Join(c.Actions, " or "), term.Words(c.Upstream)))
	}
}

// answer prints the result. It is last, because readers look for it there.
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
	p.closed("", a.Closed)
	if a.then == nil {
		return
	}
	switch {
	case a.Subject.Source == sourceClaim && a.Steps[exchange.StepToken].Verdict == exchange.VerdictNotJudged:
		p.line("changed", "cannot be said: the token of then was refused, and now a good one is judged")
	case a.then.Gateway != nil:
		p.line("changed", "cannot be said: the line is of a request at the gateway, and now its token's is judged")
	case len(a.Changes) == 0:
		p.line("changed", "nothing: the same would be decided")
	}
	for i, c := range a.Changes {
		p.line([]string{"changed", ""}[min(i, 1)], fmt.Sprintf("%s: %s -> %s", c.Field, cmp.Or(term.Line(c.Then), "none"), cmp.Or(term.Line(c.Now), "none")))
	}
}
