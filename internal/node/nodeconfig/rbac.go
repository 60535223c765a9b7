package nodeconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	audienceVerb = "request-serviceaccounts-token-audience"
	nodesGroup   = "system:nodes"
)

// rbacObject has the relevant fields of a role or binding.
type rbacObject struct {
	document *document
	path     string // empty, or items[0] of a list

	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []rbacRule
	RoleRef  struct{ Kind, Name string } `yaml:"roleRef"`
	Subjects []struct{ Kind, Name string }
}

// at expects the path of a field within the object.
func (o rbacObject) at(field string) place {
	return o.document.at(strings.TrimPrefix(o.path+"."+field, "."))
}

type rbacRule struct {
	APIGroups []string `yaml:"apiGroups"`
	Resources []string
	Verbs     []string
}

// allows applies the rule of the API server: the audience is the resource, and the group is that of
// the ServiceAccount (NodeRestriction, KEP-4412).
func (r rbacRule) allows(audience string) bool {
	return includes(r.Verbs, audienceVerb) && includes(r.APIGroups, "") && includes(r.Resources, audience)
}

// isFor reports whether the rule was written for this right, correctly or not.
func (r rbacRule) isFor() bool {
	return slices.ContainsFunc(r.Verbs, func(verb string) bool { return strings.Contains(verb, "token-audience") })
}

// includes applies the rule of RBAC: * stands for any value.
func includes(values []string, want string) bool {
	return slices.Contains(values, want) || slices.Contains(values, "*")
}

func (l *linter) rbacObject(d *document, path string, n *yaml.Node) (known bool) {
	kind := kindOf(n)
	isRole := kind == "ClusterRole" || kind == "Role"
	if !isRole && kind != "ClusterRoleBinding" && kind != "RoleBinding" {
		return false
	}
	l.judged["rbac"] = true
	o := rbacObject{document: d, path: path}
	if err := n.Decode(&o); err != nil {
		l.find(d.at(path), "is not a %s; correct its fields, as kubectl apply --dry-run=server names them", kind)
		return true
	}
	if isRole {
		l.roles = append(l.roles, o)
	} else {
		l.bindings = append(l.bindings, o)
	}
	return true
}

// rights finds audiences that the kubelet may not request. If the files have no provider, it uses
// the audience that would be printed.
func (l *linter) rights(audiences map[string]place) {
	if len(audiences) == 0 {
		objects := slices.Concat(l.roles, l.bindings)
		if len(objects) == 0 {
			return // none could be read, which was already reported
		}
		o := objects[0]
		audiences = map[string]place{l.target.Audience: o.document.at(o.path)}
	}
	for _, role := range l.roles {
		for i, rule := range role.Rules {
			if rule.isFor() && slices.Contains(rule.Resources, "*") {
				l.find(role.at(fmt.Sprintf("rules[%d].resources", i)), "let a node have tokens for any audience (*), also the API server's; name the audience")
			}
		}
	}
	for _, audience := range slices.Sorted(maps.Keys(audiences)) {
		l.right(audience, audiences[audience])
	}
}

func (l *linter) right(audience string, asked place) {
	var roles []rbacObject
	var namespaces []string
	for _, role := range l.roles {
		if !slices.ContainsFunc(role.Rules, func(r rbacRule) bool { return r.allows(audience) }) {
			continue
		}
		if slices.ContainsFunc(l.bindings, func(b rbacObject) bool { return b.binds(role) && b.isForNodes() && !b.isNarrow() }) {
			if role.Kind == "ClusterRole" {
				return
			}
			namespaces = append(namespaces, term.Plain(role.Metadata.Namespace))
		}
		roles = append(roles, role)
	}
	if len(namespaces) > 0 {
		l.remarks = append(l.remarks, fmt.Sprintf("note: a Role lets the kubelet request the audience %s for pods of its namespace (%s), and pods of all others are pulled for anonymously; for all, use a ClusterRole and a ClusterRoleBinding",
			term.QuoteValue(audience), strings.Join(namespaces, ", ")))
		return
	}
	for _, role := range roles {
		l.unbound(role)
	}
	if len(roles) > 0 {
		return
	}
	found := false
	for _, role := range l.roles {
		for i, rule := range role.Rules {
			if rule.isFor() {
				found = true
				l.nearlyAllows(role, i, audience)
			}
		}
	}
	if !found {
		l.find(asked, "no role lets the kubelet request the audience (%s; verb %s); apply what kubelet-config --part rbac prints", term.QuoteValue(audience), audienceVerb)
	}
}

// nearlyAllows reports why a rule does not allow the audience.
func (l *linter) nearlyAllows(role rbacObject, rule int, audience string) {
	r := role.Rules[rule]
	in := func(field string) place { return role.at(fmt.Sprintf("rules[%d].%s", rule, field)) }
	if !includes(r.Verbs, audienceVerb) {
		l.find(in("verbs"), "are unknown to the API server (%s); write %s", term.QuoteValue(strings.Join(r.Verbs, " ")), audienceVerb)
	}
	if !includes(r.APIGroups, "") {
		l.find(in("apiGroups"), `do not hold the group of ServiceAccounts (%s); write [""]`, term.QuoteValue(strings.Join(r.APIGroups, " ")))
	}
	if !includes(r.Resources, audience) {
		l.find(in("resources"), "do not hold the audience (%s); write [%q]", term.QuoteValue(strings.Join(r.Resources, " ")), audience)
	}
}

// unbound reports why nodes do not have the role.
func (l *linter) unbound(role rbacObject) {
	bound := false
	for _, b := range l.bindings {
		if !b.binds(role) {
			continue
		}
		bound = true
		if !b.isForNodes() {
			l.find(b.at("subjects"), "do not hold the kubelets; add {apiGroup: rbac.authorization.k8s.io, kind: Group, name: %q}", nodesGroup)
		}
		if b.isNarrow() {
			l.find(b.at("kind"), "gives the right in the namespace of the binding alone (RoleBinding), so pods of all others are pulled for anonymously; write ClusterRoleBinding, without metadata.namespace, or bind a Role if this is intended")
		}
	}
	if !bound {
		l.find(role.at("metadata.name"), "is a role without a binding (%s); bind it to the group %s with a ClusterRoleBinding", term.QuoteValue(role.Metadata.Name), nodesGroup)
	}
}

func (o rbacObject) binds(role rbacObject) bool {
	return o.RoleRef.Kind == role.Kind && o.RoleRef.Name == role.Metadata.Name &&
		(role.Kind == "ClusterRole" || o.Metadata.Namespace == role.Metadata.Namespace)
}

// isNarrow reports whether a binding gives a role of the cluster in one namespace only. The binding of a
// Role can do no more, so its author intends that.
func (o rbacObject) isNarrow() bool {
	return o.Kind == "RoleBinding" && o.RoleRef.Kind == "ClusterRole"
}

func (o rbacObject) isForNodes() bool {
	return slices.ContainsFunc(o.Subjects, func(s struct{ Kind, Name string }) bool { return s.Kind == "Group" && s.Name == nodesGroup })
}
