package diff

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
)

const apiVersion = strictyaml.AnswerVersion

// Difference is the access that a change adds and removes. docs/policy-diff.schema.json describes each field.
type Difference struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Gained     []Entry `json:"gained"`
	Lost       []Entry `json:"lost"`
}

// Entry is a set of requests that change. Each request that changes is in one, and its example
// changes. Without an example, requests of the set may change: Unjudged says why, or else conditions
// decide, and no request was found for which they decide differently.
type Entry struct {
	Who          string              `json:"who"`                 // CLUSTER/NAMESPACE/SERVICEACCOUNT, in which * is any run of characters; identity/NAME; anonymous
	Anonymous    bool                `json:"anonymous,omitempty"` // also callers without a token
	Claims       map[string][]string `json:"claims,omitempty"`    // of the identity, and for each the values of which it has one
	Where        []string            `json:"where,omitempty"`     // what else the callers or their requests must have
	Service      string              `json:"service"`             // *: any
	Repositories string              `json:"repositories"`        // a pattern, or registry:catalog
	Actions      []string            `json:"actions"`
	Rule         string              `json:"rule"`             // that grants it on one side
	Denial       string              `json:"denial,omitempty"` // that refuses it on the other side, as a whole
	Except       []Exception         `json:"except,omitempty"` // what of it does not change
	Example      Example             `json:"example,omitzero"`
	Unjudged     string              `json:"unjudged,omitempty"` // why there is no example

	position int // of the unit
}

// Exception is a part of an entry that does not change: a denial refuses it on the side that grants,
// or a rule grants it on both sides.
type Exception struct {
	Rule         string              `json:"rule"`
	Who          string              `json:"who"`
	Anonymous    bool                `json:"anonymous,omitempty"` // also callers without a token
	Claims       map[string][]string `json:"claims,omitempty"`
	Where        []string            `json:"where,omitempty"`
	Repositories string              `json:"repositories,omitempty"` // left out: all
	Actions      []string            `json:"actions,omitempty"`      // left out: all
}

// Example is a request that the two sides decide differently. Fields after Scope are of
// the token, the ServiceAccount or its namespace.
type Example struct {
	As              string            `json:"as"`
	Service         string            `json:"service"`
	Scope           string            `json:"scope"`
	Claims          map[string]any    `json:"claims,omitempty"`
	Node            string            `json:"node,omitempty"`
	TokenID         string            `json:"tokenID,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	NamespaceLabels map[string]string `json:"namespaceLabels,omitzero"`
	Requested       bool              `json:"requested,omitempty"` // by a RepositoryAccess
}

func (p *point) example(actions action.Set) Example {
	asked := actions
	if asked&action.All != 0 {
		asked = action.All
	}
	if actions != action.All { // a client asks for actions by their names
		actions &^= action.All
	}
	e := Example{As: p.cluster + "/" + p.namespace + "/" + p.account, Service: p.service, Scope: p.scope(actions).String(), Node: p.node, TokenID: p.tokenID, NamespaceLabels: p.labels, Requested: p.isAsked}
	switch {
	case p.isAnonymous:
		e.As = "anonymous"
	case p.identity != "":
		e.As, e.Claims, e.TokenID = "identity/"+p.identity, p.claims, ""
	}
	if p.annotation != "" {
		e.Annotations = map[string]string{p.annotation: p.repository + ":" + strings.Join(asked.Names(), ",")}
	}
	return e
}

// callers describes the callers of an entry in one line.
func callers(who string, claims map[string][]string, where []string, anonymous bool) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		parts = append(parts, name+" "+strings.Join(claims[name], "|"))
	}
	parts = append(parts, where...)
	text := who
	if anonymous {
		text += " and callers without a token"
	}
	if parts != nil {
		text += " (" + strings.Join(parts, "; ") + ")"
	}
	return text
}

func (e *Entry) by() string {
	if e.Denial != "" {
		return "rule " + e.Rule + ", deny rule " + e.Denial
	}
	return "rule " + e.Rule
}

// maxExceptTold is the number of exceptions in text. JSON has more.
const maxExceptTold = 4

func (e *Entry) exceptText() []string {
	var all []string
	for i, x := range e.Except {
		if i == maxExceptTold {
			return append(all, fmt.Sprintf("%d more (-o json)", len(e.Except)-i))
		}
		text := callers(x.Who, x.Claims, x.Where, x.Anonymous)
		if x.Repositories != "" {
			text += " " + x.Repositories
		}
		if x.Actions != nil && !slices.Equal(x.Actions, e.Actions) {
			text += ": " + strings.Join(x.Actions, ", ")
		}
		all = append(all, text+", by "+x.Rule)
	}
	return all
}

// example returns the command that shows the example, or says why there is none.
func (e *Entry) example() string {
	x := &e.Example
	switch {
	case e.Unjudged != "":
		return "none: " + e.Unjudged
	case x.As == "":
		return noExample
	}
	as := "--as " + x.As
	if name, ok := strings.CutPrefix(x.As, "identity/"); ok {
		as = "--identity " + name + " --claims CLAIMS"
	}
	return fmt.Sprintf("%s --service %s --scope %s", as, quoted(x.Service), x.Scope)
}

// noExample is told instead of a command.
const noExample = "none was found: a condition may change it"

func quoted(service string) string {
	if strings.Contains(service, " ") {
		return `"` + service + `"`
	}
	return service
}

// facts are what the example has beside its names.
func (x *Example) facts() []string {
	var all []string
	if x.Claims != nil {
		text, _ := json.Marshal(x.Claims)
		all = append(all, "claims "+string(text))
	}
	if x.Node != "" {
		all = append(all, "node "+x.Node)
	}
	if x.TokenID != "" {
		all = append(all, "token id "+x.TokenID)
	}
	for _, key := range slices.Sorted(maps.Keys(x.Annotations)) {
		all = append(all, fmt.Sprintf("annotation %s: %s", key, x.Annotations[key]))
	}
	if x.NamespaceLabels != nil {
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(x.NamespaceLabels)) {
			pairs = append(pairs, key+"="+x.NamespaceLabels[key])
		}
		all = append(all, "labels of the namespace: "+cmp.Or(strings.Join(pairs, ","), "none"))
	}
	if x.Requested {
		all = append(all, "a RepositoryAccess asks for it")
	}
	return all
}

// WriteText writes the difference for people.
func WriteText(w io.Writer, d *Difference) error {
	var out strings.Builder
	line := func(what, text string) { fmt.Fprintf(&out, "%-12s %s\n", what, term.Line(text)) }
	for _, part := range []struct {
		name    string
		entries []Entry
	}{{"gained", d.Gained}, {"lost", d.Lost}} {
		for i := range part.entries {
			e := &part.entries[i]
			line(part.name, callers(e.Who, e.Claims, e.Where, e.Anonymous))
			line("", fmt.Sprintf("%s on %s at %s, by %s", strings.Join(e.Actions, ", "), e.Repositories, e.Service, e.by()))
			for _, text := range e.exceptText() {
				line("", "except "+text)
			}
			line("", "example "+e.example())
			for _, text := range e.Example.facts() {
				line("", "with "+text)
			}
			out.WriteByte('\n')
		}
	}
	if len(d.Gained)+len(d.Lost) == 0 {
		line("no change", "both decide every request alike")
	} else {
		line("in all", d.summary())
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (d *Difference) summary() string {
	count := func(n int, what string) string {
		if n == 1 {
			return "1 entry " + what
		}
		return fmt.Sprintf("%d entries %s", n, what)
	}
	return count(len(d.Gained), "gained") + ", " + count(len(d.Lost), "lost")
}

// The rows of Markdown: GitHub refuses comments of more than 65,536 characters. The rest is for what is around rows.
const (
	maxRows      = 100    // of each part
	maxRowsBytes = 60_000 // in all
)

// WriteMarkdown writes the difference as the comment of a pull request.
func WriteMarkdown(w io.Writer, d *Difference) error {
	var out strings.Builder
	out.WriteString("### Pullpass policy: " + d.heading() + "\n")
	for _, part := range []struct {
		name    string
		entries []Entry
	}{{"Gained", d.Gained}, {"Lost", d.Lost}} {
		if len(part.entries) == 0 {
			continue
		}
		fmt.Fprintf(&out, "\n#### %s\n\n| who | actions | repositories | service | by | example |\n| --- | --- | --- | --- | --- | --- |\n", part.name)
		end, shown := maxRowsBytes, 0
		if part.name == "Gained" && len(d.Lost) > 0 {
			end /= 2
		}
		for i := range part.entries {
			e := &part.entries[i]
			repositories := code(e.Repositories)
			for _, text := range e.exceptText() {
				repositories += "<br>except " + code(text)
			}
			example := code(e.example())
			for _, text := range e.Example.facts() {
				example += "<br>with " + code(text)
			}
			row := fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", code(callers(e.Who, e.Claims, e.Where, e.Anonymous)), strings.Join(escaped(e.Actions), ", "), repositories, code(e.Service), e.by(), example)
			if shown < maxRows && out.Len()+len(row) <= end {
				out.WriteString(row)
				shown++
			}
		}
		if more := len(part.entries) - shown; more > 0 {
			fmt.Fprintf(&out, "\n%d more: `pullpass policy diff -o json`\n", more)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (d *Difference) heading() string {
	if len(d.Gained)+len(d.Lost) == 0 {
		return "no access changes"
	}
	return d.summary()
}

// code is text that Markdown does not read, in a table.
func code(text string) string {
	text = strings.ReplaceAll(term.Line(text), "|", `\|`)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}

func escaped(actions []string) []string {
	all := make([]string, len(actions))
	for i, a := range actions {
		all[i] = strings.ReplaceAll(a, "*", `\*`)
	}
	return all
}
