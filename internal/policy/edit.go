package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Edit is the change that would grant all missing actions, in a form that can be applied. Commands
// and Requests are for those who may edit the ServiceAccount, and Rule is for the owner of the
// policy. The edit grants the request to this ServiceAccount and to no other subject. An annotation
// with a fault has to be corrected first, so its items are left out.
type Edit struct {
	Cluster  string   `json:"cluster"`            // whose API server the commands are for
	Commands []string `json:"commands,omitempty"` // kubectl, one for each annotation
	Requests string   `json:"requests,omitempty"` // YAML, RepositoryAccess objects to apply in that cluster
	Rule     string   `json:"rule,omitempty"`     // YAML, to be put below rules
}

// edit collects the edits of all scopes, because two commands for the same annotation would undo
// each other.
func (e *evaluation) edit(scopes []ScopeDecision) *Edit {
	switch id := e.subject.Identity; {
	case id == nil:
		return nil // a program must not propose to open a registry to anonymous callers
	case id.External != nil:
		return nil // the owner of the policy has to choose the claims to compare
	}
	edit := Edit{Cluster: e.subject.Identity.Cluster}
	var readers []*rule                    // one for each annotation
	items := map[string][]annotationItem{} // by key
	var requests []annotationItem
	var allow []string
	for _, s := range scopes {
		if s.Unjudged != nil {
			continue // it may be granted already, and the edit would grant it without the condition
		}
		q := newQuestion(s.Requested)
		if _, err := registryauth.ParseScope(s.Requested.String()); err != nil || q.kind == unknownResource {
			continue // an unparsed name could be a pattern
		}
		missing := action.Of(s.Granted).Missing(q.actions)
		for _, c := range e.nearest(q, missing) {
			key, within := c.rule.annotation, c.ceiling.Cover(missing)
			switch c.near {
			case nearFault:
				missing &^= within
			case nearNotAsked, nearAbsent:
				if within == 0 {
					continue // a rule before allows the same
				}
				missing &^= within
				item := annotationItem{pattern.Pattern(q.scope.Name), within.Nameable()}
				if c.rule.requests {
					requests = append(requests, item)
					continue
				}
				items[key] = append(items[key], item)
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

// requestText returns objects that ask for the items, or "" if the result would not be valid
// objects. The names come from untrusted clients, and operators paste the text.
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

// ruleText returns a rule that allows this to the ServiceAccount, or "" if the result would not be
// a valid rule. The names come from untrusted clients, and operators paste the text.
func (e *evaluation) ruleText(allow []string) string {
	if allow == nil {
		return ""
	}
	id := e.subject.Identity
	if strings.Contains(id.Cluster+id.Kubernetes.Namespace+id.Kubernetes.ServiceAccount.Name, "*") {
		return "" // such a name cannot exist, so the rule would match other names
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

// freeName returns a name that is not yet the name of a rule.
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
