package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/action"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// Edit is what would grant all that is missing, in a form that people apply:
// the commands and requests, for whoever may edit the ServiceAccount, and the rule, for
// whoever owns the policy. It gives to this ServiceAccount what it asked for,
// and to nobody else. Where an annotation has a fault, what it could ask for is
// left out: correct it first.
type Edit struct {
	Cluster  string   `json:"cluster"`            // whose API server the commands are for
	Commands []string `json:"commands,omitempty"` // kubectl, one for each annotation
	Requests string   `json:"requests,omitempty"` // YAML, RepositoryAccess objects to apply in that cluster
	Rule     string   `json:"rule,omitempty"`     // YAML, to be put below rules
}

// edit collects the edits of all scopes: two commands for the same annotation
// would undo each other.
func (e *evaluation) edit(scopes []ScopeDecision) *Edit {
	switch id := e.subject.Identity; {
	case id == nil:
		return nil // to open a registry to everybody is not for a program to propose
	case id.External != nil:
		return nil // which of its claims are to count is for people to choose
	}
	edit := Edit{Cluster: e.subject.Identity.Cluster}
	var readers []*rule                    // one for each annotation
	items := map[string][]annotationItem{} // by key
	var requests []annotationItem
	var allow []string
	for _, s := range scopes {
		q := newQuestion(s.Requested)
		if _, err := registryauth.ParseScope(s.Requested.String()); err != nil || s.Reason == "" || q.kind == unknownResource {
			continue // a name that was not parsed could be a pattern
		}
		missing := action.Of(s.Granted).Missing(q.actions)
		for _, c := range e.nearest(q, missing) {
			key, within := c.rule.annotation, c.ceiling.Cover(missing)
			switch c.near {
			case nearFault:
				missing &^= within
			case nearNotAsked, nearAbsent:
				missing &^= within
				item := annotationItem{pattern.Pattern(q.scope.Name), within.Nameable()}
				switch {
				case within == 0:
				case c.rule.requests:
					requests = append(requests, item)
				default:
					items[key] = append(items[key], item)
				}
				if c.rule.requests {
					continue
				}
				if !slices.ContainsFunc(readers, func(r *rule) bool { return r.annotation == key }) {
					readers = append(readers, c.rule)
				}
			}
		}
		if missing != 0 {
			allow = append(allow, allowText(q, missing.Nameable()))
		}
	}
	for _, r := range readers {
		if command, ok := e.annotate(r, items[r.annotation]...); ok {
			edit.Commands = append(edit.Commands, command)
		}
	}
	edit.Requests, edit.Rule = e.requestText(requests), e.ruleText(allow)
	if edit.Commands == nil && edit.Requests == "" && edit.Rule == "" {
		return nil
	}
	return &edit
}

// requestText returns objects that ask for the items, or nothing if they were none:
// names come from strangers, and people paste this.
func (e *evaluation) requestText(items []annotationItem) string {
	account, namespace := e.subject.Identity.Kubernetes.ServiceAccount.Name, e.subject.Identity.Kubernetes.Namespace
	if !names.IsSubdomain(account) || !names.IsLabel(namespace) {
		return ""
	}
	var b strings.Builder
	for i, item := range items {
		name := fmt.Sprintf("%s-%d", strings.TrimRight(term.Cut(strings.ReplaceAll(account, ".", "-"), 50), "-"), i+1)
		fmt.Fprintf(&b, "---\napiVersion: %s\nkind: %s\nmetadata: {name: %q, namespace: %q}\nspec: {serviceAccounts: [%q], repositories: [%q], actions: [%s]}\n",
			APIVersion, KindRequest, name, namespace, account, string(item.pattern), quotedList(item.actions.Names()))
	}
	return b.String()
}

func allowText(q question, actions action.Set) string {
	if q.kind == catalogResource {
		return `{registry: ["catalog"], actions: ["*"]}`
	}
	return fmt.Sprintf("{repositories: [%q], actions: [%s]}", q.scope.Name, quotedList(actions.Names()))
}

// ruleText returns a rule that allows this to the ServiceAccount, or nothing if
// it were not a rule: names come from strangers, and people paste this.
func (e *evaluation) ruleText(allow []string) string {
	if allow == nil {
		return ""
	}
	id := e.subject.Identity
	if strings.Contains(id.Cluster+id.Kubernetes.Namespace+id.Kubernetes.ServiceAccount.Name, "*") {
		return "" // no such name exists, and the rule would be for others
	}
	text := fmt.Sprintf("- name: %s\n  subjects:\n  - {clusters: [%q], namespaces: [%q], serviceAccounts: [%q]}\n",
		e.policy.freeName("allow-"+id.Kubernetes.Namespace+"-"+id.Kubernetes.ServiceAccount.Name), id.Cluster, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if e.service != "" {
		text += fmt.Sprintf("  services: [%q]\n", e.service)
	}
	text += "  allow:\n  - " + strings.Join(allow, "\n  - ") + "\n"
	header := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\nrules:\n"
	if _, err := Parse(File{Data: []byte(header + text)}); err != nil {
		return ""
	}
	return text
}

// freeName returns a name that no rule has yet.
func (p *Policy) freeName(wanted string) string {
	base := strings.ReplaceAll(wanted, ".", "-")
	name := strings.TrimRight(term.Cut(base, 63), "-")
	for i := 2; p.HasRule(name); i++ {
		end := fmt.Sprintf("-%d", i)
		name = strings.TrimRight(term.Cut(base, 63-len(end)), "-") + end
	}
	return name
}

func (p *Policy) HasRule(name string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.name[0] == name }) ||
		slices.ContainsFunc(p.deny, func(d denyRule) bool { return d.name == name })
}

func quotedList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(quoted, ", ")
}
