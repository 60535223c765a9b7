package policy

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

const (
	APIVersion = string(strictyaml.CurrentVersion)
	Kind       = "AccessPolicy"
	// KindRequest is the kind that asks for repositories. It exists only as an object of a cluster.
	KindRequest = "RepositoryAccess"
)

// policyParser gathers the rules of several files.
type policyParser struct {
	inObject   bool                        // of a cluster, where fewer fields are allowed than in a file
	identities map[string]identity.Profile // the configured ones
	faults     strictyaml.Faults
	rules      []rule
	deny       []denyRule
	names      map[string]string // of rules and denials: where each was first seen
}

func (p *policyParser) parse(file File) {
	document, ok := strictyaml.ParseDocument(file.Name, file.Data, MaxBytes, &p.faults, "write rules, or remove it from policyFiles")
	if !ok {
		return
	}
	object, _ := document.Value.(map[string]any)
	if _, hasSpec := object["spec"]; hasSpec {
		document.At("spec", nil).Fault("this is an object of a cluster and no policy file: apply it to a cluster, give it to pullpass check --objects, or turn it into a file with pullpass policy export")
		return
	}
	if kind, ok := object["kind"].(string); ok && kind != Kind {
		// Every other field would be a fault, too, and not worth reporting.
		document.At("kind", kind).Fault("%s is not a policy: write %s, or remove the file from policyFiles", term.QuoteName(kind), Kind)
		return
	}
	fields := document.Fields(strictyaml.FieldNames[Document]()...)
	if fields == nil {
		return
	}
	document.RequireVersion(fields)
	document.Require(fields, "kind", Kind)
	rules, hasRules := fields["rules"]
	deny, hasDeny := fields["deny"]
	if !hasRules && !hasDeny {
		document.FaultAt("rules", "the file has neither rules nor deny: write rules, or remove it from policyFiles")
	}
	if hasRules {
		p.readRules(rules)
	}
	if hasDeny && !isNobody(deny) {
		for _, n := range p.limited(deny.List()) {
			p.deny = append(p.deny, p.denyRule(n))
		}
	}
}

func (p *policyParser) readRules(list strictyaml.Node) {
	for _, n := range p.limited(list.List()) {
		p.rules = append(p.rules, p.rule(n))
	}
}

// isNobody reports whether a list of denials is empty. An empty list of denials is valid; every
// other empty list is a fault.
func isNobody(deny strictyaml.Node) bool {
	none, isList := deny.Value.([]any)
	return isList && len(none) == 0
}

// limited returns no rules if there are more than the limit.
func (p *policyParser) limited(nodes []strictyaml.Node) []strictyaml.Node {
	if len(nodes)+len(p.rules)+len(p.deny) > maxRules {
		nodes[0].Fault("there are more than %d rules: write rules for groups, with * and placeholders", maxRules)
		return nil
	}
	return nodes
}

func (p *policyParser) rule(n strictyaml.Node) rule {
	var r rule
	fields := n.Fields(strictyaml.FieldNames[Rule]()...)
	if fields == nil {
		return r
	}
	r.name, r.origin, r.inObject = []string{p.name(n, fields)}, n.Origin(), p.inObject
	if anonymous, ok := fields["anonymous"]; ok {
		if r.anonymous = anonymous.Boolean(); r.anonymous && p.inObject {
			anonymous.Fault("who is anonymous is of no cluster: write the rule in a policy file")
		}
	}
	whom, hasSubjects := fields["subjects"]
	switch {
	case hasSubjects && r.anonymous:
		whom.Fault("an anonymous rule is for all callers: remove subjects, or write a rule for each")
	case hasSubjects:
		r.subjects = subjects.Parse(whom, subjects.Options{OwnCluster: p.inObject, Identities: p.identities})
	case !r.anonymous:
		n.FaultAt("subjects", "is missing: say for whom the rule is, or write anonymous: true for all callers")
	}
	if services, ok := fields["services"]; ok {
		r.services = parseServices(services)
	}
	if annotation, ok := fields["annotation"]; ok {
		r.annotation = parseAnnotationKey(annotation)
		switch {
		case p.inObject:
			annotation.Fault("objects read no annotations: write requests: true for what RepositoryAccess objects ask for, or the rule in a policy file")
		case r.anonymous:
			annotation.Fault("who is anonymous has no annotations: remove it, or write subjects")
		case slices.ContainsFunc(r.subjects, func(m subjects.Match) bool { return m.Identities != nil }):
			annotation.Fault("identities have no annotations: remove it, or write a rule for each")
		}
	}
	if requests, ok := fields["requests"]; ok {
		r.requests = requests.Boolean()
		switch {
		case r.requests && r.annotation != "":
			requests.Fault("the rule reads an annotation: write a rule for each")
		case r.requests && (r.anonymous || slices.ContainsFunc(r.subjects, func(m subjects.Match) bool { return m.Identities != nil })):
			requests.Fault("only ServiceAccounts have RepositoryAccess objects: remove it, or write a rule for each")
		}
	}
	allow, ok := fields["allow"]
	if !ok {
		n.FaultAt("allow", "is missing: say what the rule allows")
		return r
	}
	for _, entry := range allow.List() {
		r.allow = append(r.allow, p.allowance(entry, &r))
	}
	return r
}

func (p *policyParser) denyRule(n strictyaml.Node) denyRule {
	var d denyRule
	fields := n.Fields(strictyaml.FieldNames[Denial]()...)
	if fields == nil {
		return d
	}
	d.name, d.origin = p.name(n, fields), n.Origin()
	if whom, ok := fields["subjects"]; ok {
		d.subjects = subjects.Parse(whom, subjects.Options{Denies: true, OwnCluster: p.inObject, Identities: p.identities})
	} else {
		n.FaultAt("subjects", "is missing: say whom to refuse")
	}
	return d
}

// name returns the name of a rule or denial. Both share one set of names, because they use the same
// field of the audit log.
func (p *policyParser) name(n strictyaml.Node, fields map[string]strictyaml.Node) string {
	field, ok := fields["name"]
	if !ok {
		n.FaultAt("name", "is missing: reasons and audit lines name the rule")
		return ""
	}
	name, ok := field.Text()
	if !ok {
		return ""
	}
	if !names.IsLabel(name) {
		field.Fault("%s is not a name: write 1 to 63 lower-case letters, digits and inner '-'", term.QuoteName(name))
		return ""
	}
	where := field.Origin()
	if first, taken := p.names[name]; taken {
		field.Fault("%s is taken by %s: names are unique over all files, rules and denials", term.QuoteName(name), first)
		return name
	}
	if p.names == nil {
		p.names = map[string]string{}
	}
	p.names[name] = where
	return name
}

func parseServices(n strictyaml.Node) []string {
	var services []string
	for _, entry := range n.List() {
		service, _ := entry.Text()
		// A space is allowed inside, as in registries[].service: "Docker registry".
		if strings.TrimSpace(service) != service || strings.ContainsFunc(service, func(r rune) bool { return r < ' ' || '~' < r || r == '*' }) {
			entry.Fault("%s is not the name of a service: names are compared exactly with registries[].service, without *", term.QuoteName(service))
		}
		services = append(services, service)
	}
	return services
}

func parseAnnotationKey(n strictyaml.Node) string {
	key, ok := n.Text()
	if !ok {
		return ""
	}
	if !names.IsAnnotationKey(key) {
		n.Fault("%s is not the key of an annotation: write one like pullpass.dev/repositories", term.QuoteName(key))
	}
	return key
}

func (p *policyParser) allowance(n strictyaml.Node, r *rule) allowance {
	var a allowance
	fields := n.Fields(strictyaml.FieldNames[Allowance]()...)
	if fields == nil {
		return a
	}
	if actions, ok := fields["actions"]; ok {
		a.actions = parseActions(actions)
	} else {
		n.FaultAt("actions", "is missing: write a list of pull, push, delete or *")
	}
	repositories, hasRepositories := fields["repositories"]
	registry, hasRegistry := fields["registry"]
	switch {
	case hasRepositories && hasRegistry:
		n.Fault("has both repositories and registry: write an entry for each")
	case hasRepositories:
		a.repositories = p.repositories(repositories, r)
	case hasRegistry:
		a.catalog = true
		parseRegistry(registry, fields["actions"], a.actions, r)
	default:
		n.FaultAt("repositories", "is missing: say which repositories are allowed")
	}
	return a
}

func parseActions(n strictyaml.Node) action.Set {
	var set action.Set
	for _, entry := range n.List() {
		name, ok := entry.Text()
		if !ok {
			continue
		}
		one := action.Named(name)
		if one == action.Other {
			entry.Fault("%s is not an action; use pull, push, delete or *", term.QuoteName(name))
			continue
		}
		set |= one
	}
	return set
}

func (p *policyParser) repositories(n strictyaml.Node, r *rule) []pattern.Pattern {
	var patterns []pattern.Pattern
	for _, entry := range n.List() {
		text, ok := entry.Text()
		if !ok {
			continue
		}
		parsed, err := pattern.Parse(text)
		if err != nil {
			entry.Fault("%v", err)
			continue
		}
		if r.anonymous && parsed.HasPlaceholder() {
			entry.Fault("%s has a placeholder, but who is anonymous has no name to put there: write the repository itself", term.QuoteName(text))
		}
		p.checkPlaceholders(entry, parsed, r)
		patterns = append(patterns, parsed)
	}
	return patterns
}

// parseRegistry checks an entry that allows listing the catalog. Registries accept only the action
// * on it (distribution, registry/handlers).
func parseRegistry(n, actions strictyaml.Node, set action.Set, r *rule) {
	for _, entry := range n.List() {
		if name, ok := entry.Text(); ok && name != "catalog" {
			entry.Fault("%s is not known: only catalog can be allowed", term.QuoteName(name))
		}
	}
	if set != 0 && set != action.All {
		actions.Fault("the catalog has no such action: write actions: [\"*\"]")
	}
	switch {
	case r.inObject:
		n.Fault("objects allow repositories alone (clusters[].kubernetes.objects.within): write the rule in a policy file")
	case r.requests:
		n.Fault("a RepositoryAccess cannot ask for the catalog: write a rule without requests")
	case r.annotation != "":
		n.Fault("an annotation cannot ask for the catalog: write a rule without annotation")
	}
}

// checkPlaceholders reports claims in a pattern that are not paths.
func (p *policyParser) checkPlaceholders(n strictyaml.Node, parsed pattern.Pattern, r *rule) {
	for _, claim := range parsed.Claims() {
		if slices.ContainsFunc(r.subjects, func(m subjects.Match) bool { return m.Identities == nil }) {
			n.Fault("{claims.%s} stands for nothing of a ServiceAccount, and the rule is for some: write a rule for each", claim)
		}
		var named []string
		for _, m := range r.subjects {
			named = append(named, m.Identities...)
		}
		slices.Sort(named)
		for _, name := range slices.Compact(named) {
			profile, known := p.identities[name]
			if c, _ := profile.Claim(claim); known && !c.IsPath {
				n.Fault("{claims.%s} is not a path in the tokens of identity %s: %s", claim, term.QuoteName(name), pathsOf(profile))
			}
		}
	}
}

func pathsOf(profile identity.Profile) string {
	paths := profile.Paths()
	if len(paths) == 0 {
		return "its profile " + string(profile) + " has none"
	}
	return "those of its profile are {claims." + strings.Join(paths, "}, {claims.") + "}"
}
