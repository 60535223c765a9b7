// Package describe says in one sentence of plain English what a rule or a denial means.
package describe

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Sentence is a rule or a denial, and what it means.
type Sentence struct {
	Name     string `json:"name"`
	Origin   string `json:"origin"`            // FILE: rules[0]
	Cluster  string `json:"cluster,omitempty"` // of its object
	Sentence string `json:"sentence"`
}

// sentences describes rules; cluster is that of their objects, or "".
func sentences(cluster string, rules []policy.WrittenRule) []Sentence {
	all := make([]Sentence, len(rules))
	for i := range rules {
		all[i] = Sentence{rules[i].Name, rules[i].Origin, cluster, rule(&rules[i])}
	}
	return all
}

func denials(cluster string, list []policy.WrittenDenial) []Sentence {
	all := make([]Sentence, len(list))
	for i, d := range list {
		all[i] = Sentence{d.Name, d.Origin, cluster, capital(who(d.Subjects)) + " get no token, even if a rule allows access."}
	}
	return all
}

func rule(r *policy.WrittenRule) string {
	callers := who(r.Subjects)
	if r.Anonymous {
		callers = "all callers, with a token or without,"
	}
	var what []string
	for _, a := range r.Allow {
		what = append(what, allowed(a))
	}
	text := capital(callers) + " may " + and(what)
	if len(r.Services) > 0 {
		text += " at " + strictyaml.List(r.Services)
	}
	if r.InObject {
		text += ", within the limit for objects of its cluster"
	}
	switch {
	case r.Annotation != "":
		text += ", as far as the annotation " + r.Annotation + " requests it"
	case r.Requests:
		text += ", as far as a RepositoryAccess of their namespace requests it"
	}
	return text + "."
}

func allowed(a policy.WrittenAllowance) string {
	if len(a.Repositories) == 0 {
		return "list all repositories"
	}
	verbs := map[string]string{"*": "do anything with", "pull": "pull", "push": "push", "delete": "delete"}
	var actions, repositories []string
	for _, name := range a.Actions.Names() {
		actions = append(actions, verbs[name])
	}
	if a.Actions&action.All != 0 {
		actions = []string{verbs["*"]}
	}
	for _, p := range a.Repositories {
		text := string(p)
		if text == "**" {
			text = "every repository"
		}
		repositories = append(repositories, text)
	}
	return and(actions) + " " + and(repositories)
}

func who(list []subjects.Match) string {
	var all []string
	for i := range list {
		all = append(all, match(&list[i]))
	}
	return strings.Join(all, ", and ")
}

func match(m *subjects.Match) string {
	var b strings.Builder
	switch {
	case m.Identities != nil:
		b.WriteString("callers of " + strictyaml.List(m.Identities))
	case m.OnlyTokenIDs():
		b.WriteString("the holders")
	case isAny(m.ServiceAccounts):
		b.WriteString("all ServiceAccounts")
	default:
		b.WriteString(map[bool]string{true: "the ServiceAccounts ", false: "ServiceAccounts named "}[len(m.ServiceAccounts) > 1] + and(m.ServiceAccounts))
	}
	add := func(words string, globs []string) {
		if !isAny(globs) {
			b.WriteString(" " + words + " " + strictyaml.List(globs))
		}
	}
	add("in namespace", m.Namespaces)
	if m.NamespaceSelector != nil {
		fmt.Fprintf(&b, " in namespaces with the labels %s", m.NamespaceSelector)
	}
	add("of cluster", m.Clusters)
	if m.Nodes != nil { // also of "*": a token without a node does not match
		b.WriteString(" on node " + strictyaml.List(m.Nodes))
	}
	add("of the token", m.TokenIDs)
	for i, c := range m.Claims {
		b.WriteString(map[bool]string{true: " with ", false: " and "}[i == 0] + c.Name + " " + strictyaml.List(c.Values))
	}
	if m.Condition != nil {
		fmt.Fprintf(&b, " that meet the condition %s", term.QuoteValue(m.Condition.String()))
	}
	return b.String()
}

// isAny reports whether globs match every name.
func isAny(globs []string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(glob string) bool { return strings.Trim(glob, "*") == "" })
}

func and(list []string) string {
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// Description describes a whole policy.
type Description struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Rules      []Sentence `json:"rules"` // in the order of the policy
	Deny       []Sentence `json:"deny"`
}

// Of describes the policy of files, and those of the objects of clusters.
func Of(files *policy.Policy, objects map[string]*policy.Policies) *Description {
	d := &Description{strictyaml.AnswerVersion, "PolicyDescription", sentences("", files.WrittenRules()), denials("", files.WrittenDenials())}
	for _, cluster := range slices.Sorted(maps.Keys(objects)) {
		if o := objects[cluster]; o != nil {
			d.Rules = append(d.Rules, sentences(cluster, o.WrittenRules())...)
			d.Deny = append(d.Deny, denials(cluster, o.WrittenDenials())...)
		}
	}
	return d
}

// WriteText writes the description for people.
func WriteText(w io.Writer, d *Description) error {
	var b strings.Builder
	for _, s := range append(slices.Clone(d.Rules), d.Deny...) {
		fmt.Fprintf(&b, "%s (%s)\n  %s\n", term.Plain(s.Name), term.Line(reach.Where(s.Origin, s.Cluster)), term.Line(s.Sentence))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
