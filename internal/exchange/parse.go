package exchange

import (
	"strings"

	"github.com/pullpass/pullpass/internal/names"
)

const (
	policyAPIVersion = "pullpass.dev/v1alpha1"
	policyKind       = "AccessPolicy"
)

// policyParser gathers the rules of several files.
type policyParser struct {
	faults faults
	rules  []rule
	deny   []denyRule
	names  map[string]string // of rules and denials: where each was first seen
}

func (p *policyParser) parse(file PolicyFile) {
	document, ok := parseDocument(file, &p.faults, "write rules, or remove it from policyFiles")
	if !ok {
		return
	}
	object, isObject := document.value.(map[string]any)
	if kind, ok := object["kind"].(string); isObject && ok && kind != policyKind {
		// Every other field would be a fault, too, and none worth reading.
		document.at("kind", kind).fault("%s is not a policy: write %s, or remove the file from policyFiles", quote(kind), policyKind)
		return
	}
	fields := document.fields("apiVersion", "kind", "rules", "deny")
	if fields == nil {
		return
	}
	document.require(fields, "apiVersion", policyAPIVersion)
	document.require(fields, "kind", policyKind)
	rules, hasRules := fields["rules"]
	deny, hasDeny := fields["deny"]
	if !hasRules && !hasDeny {
		document.faultAt("rules", "the file has neither rules nor deny: write rules, or remove it from policyFiles")
	}
	if hasRules {
		for _, n := range p.limited(rules.list()) {
			p.rules = append(p.rules, p.rule(n))
		}
	}
	// Nobody denied is a plain statement; every other empty list is a fault.
	if none, isList := deny.value.([]any); hasDeny && !(isList && len(none) == 0) {
		for _, n := range p.limited(deny.list()) {
			p.deny = append(p.deny, p.denyRule(n))
		}
	}
}

// limited returns no rules rather than too many.
func (p *policyParser) limited(nodes []node) []node {
	if len(nodes)+len(p.rules)+len(p.deny) > maxRules {
		nodes[0].fault("there are more than %d rules: write rules for groups, with * and placeholders", maxRules)
		return nil
	}
	return nodes
}

func (p *policyParser) rule(n node) rule {
	var r rule
	fields := n.fields("name", "subjects", "anonymous", "services", "annotation", "allow")
	if fields == nil {
		return r
	}
	r.name, r.origin = []string{p.name(n, fields)}, n.origin()
	if anonymous, ok := fields["anonymous"]; ok {
		r.anonymous = anonymous.boolean()
	}
	subjects, hasSubjects := fields["subjects"]
	switch {
	case hasSubjects && r.anonymous:
		subjects.fault("an anonymous rule is for everybody: remove subjects, or write a rule for each")
	case hasSubjects:
		r.subjects = parseSubjects(subjects, false)
	case !r.anonymous:
		n.faultAt("subjects", "is missing: say for whom the rule is, or write anonymous: true for everybody")
	}
	if services, ok := fields["services"]; ok {
		r.services = parseServices(services)
	}
	if annotation, ok := fields["annotation"]; ok {
		r.annotation = parseAnnotationKey(annotation)
		if r.anonymous {
			annotation.fault("who is anonymous has no annotations: remove it, or write subjects")
		}
	}
	allow, ok := fields["allow"]
	if !ok {
		n.faultAt("allow", "is missing: say what the rule allows")
		return r
	}
	for _, entry := range allow.list() {
		r.allow = append(r.allow, parseAllowance(entry, &r))
	}
	return r
}

func (p *policyParser) denyRule(n node) denyRule {
	var d denyRule
	fields := n.fields("name", "subjects")
	if fields == nil {
		return d
	}
	d.name, d.origin = p.name(n, fields), n.origin()
	if subjects, ok := fields["subjects"]; ok {
		d.subjects = parseSubjects(subjects, true)
	} else {
		n.faultAt("subjects", "is missing: say whom to refuse")
	}
	return d
}

// name returns the name of a rule or denial. Both stand in the same field of
// the audit log, so they share one set of names.
func (p *policyParser) name(n node, fields map[string]node) string {
	field, ok := fields["name"]
	if !ok {
		n.faultAt("name", "is missing: reasons and audit lines name the rule")
		return ""
	}
	name, ok := field.text()
	if !ok {
		return ""
	}
	if !names.IsLabel(name) {
		field.fault("%s is not a name: write 1 to 63 lower-case letters, digits and inner '-'", quote(name))
		return ""
	}
	where := field.origin()
	if first, taken := p.names[name]; taken {
		field.fault("%s is taken by %s: names are unique over all files, rules and denials", quote(name), first)
		return name
	}
	if p.names == nil {
		p.names = map[string]string{}
	}
	p.names[name] = where
	return name
}

func parseSubjects(n node, deny bool) []subjectMatch {
	known := []string{"clusters", "namespaces", "namespaceSelector", "serviceAccounts", "nodes"}
	if deny {
		known = append(known, "tokenIDs")
	}
	var subjects []subjectMatch
	for _, entry := range n.list() {
		m := subjectMatch{denies: deny}
		fields := entry.fields(known...)
		for _, name := range known {
			field, ok := fields[name]
			if !ok {
				continue
			}
			switch name {
			case "clusters":
				m.clusters = parseGlobs(field, "._-", true)
			case "namespaces":
				m.namespaces = parseGlobs(field, "-", false)
			case "namespaceSelector":
				m.namespaceSelector = parseSelector(field)
			case "serviceAccounts":
				m.serviceAccounts = parseGlobs(field, ".-", false)
			case "nodes":
				m.nodes = parseGlobs(field, ".-", false)
			case "tokenIDs":
				m.tokenIDs = parseTokenIDs(field)
			}
		}
		subjects = append(subjects, m)
	}
	return subjects
}

// parseGlobs reads names in which * stands for any run of characters. Letters
// and digits are always allowed, others and upper case only if said so: a name
// that cannot exist would make the rule match nothing, and nobody would notice.
func parseGlobs(n node, others string, upper bool) []string {
	var globs []string
	for _, entry := range n.list() {
		glob, ok := entry.text()
		if !ok {
			continue
		}
		if i := strings.IndexFunc(glob, func(r rune) bool {
			return r != '*' && (r < 'a' || 'z' < r) && (r < '0' || '9' < r) && (!upper || r < 'A' || 'Z' < r) && !strings.ContainsRune(others, r)
		}); i >= 0 {
			entry.fault("%s cannot match: %s is in no such name; * stands for any characters, nothing else is special", quote(glob), quote(firstRune(glob[i:])))
			continue
		}
		globs = append(globs, glob)
	}
	return globs
}

func parseTokenIDs(n node) []string {
	var ids []string
	for _, entry := range n.list() {
		if id := parseTokenID(entry); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

func parseTokenID(n node) string {
	id, ok := n.text()
	switch {
	case !ok:
		return ""
	case strings.HasPrefix(id, "JTI="):
		n.fault("%s is a credential id: write what follows JTI=", quote(id))
	case !names.IsVisible(id) || strings.Contains(id, "*"):
		n.fault("%s is not a token id: ids are compared exactly, without *", quote(id))
	}
	return id
}

func parseServices(n node) []string {
	var services []string
	for _, entry := range n.list() {
		service, ok := entry.text()
		// A space is allowed inside, as in registries[].service: "Docker registry".
		if ok && (strings.TrimSpace(service) != service || strings.ContainsFunc(service, func(r rune) bool { return r < ' ' || '~' < r || r == '*' })) {
			entry.fault("%s is not the name of a service: names are compared exactly with registries[].service, without *", quote(service))
		}
		services = append(services, service)
	}
	return services
}

func parseAnnotationKey(n node) string {
	key, ok := n.text()
	if !ok {
		return ""
	}
	if !names.IsAnnotationKey(key) {
		n.fault("%s is not the key of an annotation: write one like pullpass.dev/repositories", quote(key))
	}
	return key
}

func parseAllowance(n node, r *rule) allowance {
	var a allowance
	fields := n.fields("repositories", "registry", "actions")
	if fields == nil {
		return a
	}
	if actions, ok := fields["actions"]; ok {
		a.actions = parseActions(actions)
	} else {
		n.faultAt("actions", "is missing: write a list of pull, push, delete or *")
	}
	repositories, hasRepositories := fields["repositories"]
	registry, hasRegistry := fields["registry"]
	switch {
	case hasRepositories && hasRegistry:
		n.fault("has both repositories and registry: write an entry for each")
	case hasRepositories:
		a.repositories = parseRepositories(repositories, r)
	case hasRegistry:
		a.catalog = true
		parseRegistry(registry, fields["actions"], a.actions, r)
	default:
		n.faultAt("repositories", "is missing: say which repositories are allowed")
	}
	return a
}

func parseActions(n node) actionSet {
	var set actionSet
	for _, entry := range n.list() {
		name, ok := entry.text()
		if !ok {
			continue
		}
		action := actionNamed(name)
		if action == otherAction {
			entry.fault("%s is not an action; use pull, push, delete or *", quote(name))
			continue
		}
		set |= action
	}
	return set
}

func parseRepositories(n node, r *rule) []pattern {
	var patterns []pattern
	for _, entry := range n.list() {
		text, ok := entry.text()
		if !ok {
			continue
		}
		parsed, err := parsePattern(text)
		if err != nil {
			entry.fault("%v", err)
			continue
		}
		if r.anonymous && parsed.hasPlaceholder() {
			entry.fault("%s has a placeholder, but who is anonymous has no name to put there: write the repository itself", quote(text))
		}
		patterns = append(patterns, parsed)
	}
	return patterns
}

// parseRegistry checks an entry that allows to list the catalog. Registries
// know only the action * on it (distribution, registry/handlers).
func parseRegistry(n, actions node, set actionSet, r *rule) {
	for _, entry := range n.list() {
		if name, ok := entry.text(); ok && name != "catalog" {
			entry.fault("%s is not known: only catalog can be allowed", quote(name))
		}
	}
	if set != 0 && set != allActions {
		actions.fault("the catalog has no such action: write actions: [\"*\"]")
	}
	if r.annotation != "" {
		n.fault("an annotation cannot ask for the catalog: write a rule without annotation")
	}
}
