package audit

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// maxColumn is the maximum width of a column, in characters. Longer cells are written whole.
const maxColumn = 60

// table writes events for people, each as soon as it arrives, so columns can become wider. Many
// values come from clients. Each is written so that it can neither control a terminal nor look like
// another value.
type table struct {
	out    io.Writer
	widths []int // of all columns but the last; nil: nothing is written yet
}

func (t *table) row(e *exchange.Event) error {
	if t.widths == nil {
		t.widths = []int{20, 26, 11, 40, 40, 32, 24} // usual widths
		if err := t.write("TIME", "ID", "RESULT", "WHO", "TOKEN", "WHAT", "FROM", "WHY"); err != nil {
			return err
		}
	}
	return t.write(e.Time.UTC().Format(time.RFC3339), term.Words(e.ID), term.Words(string(e.Result), strconv.Itoa(e.Status)),
		Who(e), token(e), What(e), term.Words(e.Caller, e.Client), Why(e))
}

func (t *table) write(cells ...string) error {
	var line strings.Builder
	last := len(cells) - 1
	for i, cell := range cells[:last] {
		cell = cmp.Or(cell, "-")
		width := utf8.RuneCountInString(cell)
		t.widths[i] = max(t.widths[i], min(width, maxColumn))
		line.WriteString(cell)
		line.WriteString(strings.Repeat(" ", max(0, t.widths[i]-width)+2))
	}
	line.WriteString(cmp.Or(cells[last], "-"))
	line.WriteByte('\n')
	_, err := io.WriteString(t.out, line.String())
	return err
}

// Who names the subject. An unproven subject begins with "claimed".
func Who(e *exchange.Event) string {
	switch c := e.Claimed; {
	case c != nil:
		subject := c.Subject
		if account, ok := ClaimedServiceAccount(e); ok {
			account.Cluster = cmp.Or(account.Cluster, "?")
			subject = account.String()
		} else if e.Identity != nil {
			subject = e.Identity.Name + "/" + subject // in the form of a proven one
		}
		return term.Words("claimed", subject) + named("pod", c.Pod) + named("node", c.Node) + named("secret", c.Secret)
	case e.ServiceAccount != nil:
		who := term.Words(names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.ServiceAccount.Name}.String())
		if e.Pod != nil {
			who += named("pod", e.Pod.Name)
		}
		if e.Node != nil {
			who += named("node", e.Node.Name)
		}
		return who
	case e.Identity != nil && e.Identity.Subject != "":
		return term.Words(e.Identity.Subject) + named("project", e.Identity.Project) + named("run", e.Identity.Run)
	case e.GrantType == string(registryauth.GrantAnonymous):
		return "anonymous"
	}
	return "unknown"
}

func token(e *exchange.Event) string {
	if e.Claimed != nil && e.Claimed.CredentialID != "" {
		return term.Words("claimed", e.Claimed.CredentialID)
	}
	return term.Words(e.CredentialID)
}

func What(e *exchange.Event) string {
	switch {
	case len(e.Requested) == 0 && e.GrantType == "":
		return ""
	case len(e.Requested) == 0:
		return "login"
	case e.Result == exchange.ResultPartial:
		return term.Words(e.Requested...) + ", got " + term.Words(e.Granted...)
	case e.Result == exchange.ResultNone:
		return term.Words(e.Requested...) + ", got nothing"
	}
	return term.Words(e.Requested...)
}

func Why(e *exchange.Event) string {
	var parts []string
	if e.Reason != "" {
		parts = append(parts, term.Words(e.Reason))
	}
	if e.Rule != "" {
		parts = append(parts, "rule "+term.Words(e.Rule))
	}
	if e.Message != "" {
		parts = append(parts, term.Line(e.Message))
	}
	for _, s := range e.Scopes {
		parts = append(parts, term.Line(s.Reason))
	}
	if e.Proof != nil && !e.Proof.Passed && e.Proof.Mode == nodeproof.Audit {
		parts = append(parts, "caller is not proven to be the node, "+term.Words(string(e.Proof.Reason)))
	}
	if r := e.Replay; r != nil && !r.Passed && r.Mode == exchange.ReplayAudit {
		why := "replay " + term.Words(string(r.Reason))
		if r.Owner != "" {
			why += ": " + term.Words(r.Owner) + " came first with this token, not " + term.Words(r.Caller)
		}
		parts = append(parts, why)
	}
	if r := e.Revocation; r != nil {
		parts = append(parts, "revoked "+term.Words(r.Target)+" until "+r.Until.UTC().Format(time.RFC3339)+", claimed by "+term.Words(r.By))
	}
	if t := e.Trial; t != nil {
		parts = append(parts, "the trial: "+term.Words(append([]string{string(t.Result)}, t.Granted...)...)+named("reason", t.Reason)+named("rule", t.Rule))
	}
	return strings.Join(parts, "; ")
}

func named(what, name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" %s %s", what, term.Words(name))
}
