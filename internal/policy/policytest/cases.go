package policytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Kind is the kind of a file of tests.
const Kind = "AccessPolicyTests"

// maxCaseName keeps a test's name on a line, in bytes.
const maxCaseName = 200

// Case is one test of a policy: a subject, its request, and the expected decision.
type Case struct {
	Name      string
	Origin    string // FILE: tests[0]
	Subject   policy.Subject
	Service   string // empty: not given
	Requested []registryauth.Scope
	Expected  Expected
}

// Suite is the tests of several files.
type Suite struct {
	Cases      []Case
	Deprecated []string // warnings about files that a later release will not read
}

// Expected is the decision that a policy must make.
type Expected struct {
	Granted []registryauth.Scope // exactly these, as in Decision.Granted
	Rules   []string             // that grant it, in any order; nil: any
	Reason  string               // a part of the reason for a scope that is not granted; empty: any
	Denied  string               // the deny rule that must match; then nothing else is expected
}

// caseParser gathers the tests of several files.
type caseParser struct {
	issuers map[string]*oidc.Issuer
	faults  strictyaml.Faults
	names   map[string]string // where each was first seen
}

// Parse reads tests of a policy, as strictly as package policy parses policies. The error joins all
// faults, each as FILE: PATH: what is wrong: remedy. A file without a test is a fault, because it
// would pass. issuers are those of identities[], by their names: they check the claims of callers
// that are not pods.
func Parse(issuers map[string]*oidc.Issuer, files ...policy.File) (*Suite, error) {
	if len(files) == 0 {
		return nil, errors.New("no file with tests is given: name one")
	}
	p := caseParser{issuers: issuers, names: map[string]string{}}
	var cases []Case
	for _, file := range files {
		cases = append(cases, p.parse(file)...)
	}
	if err := p.faults.Err(); err != nil {
		return nil, err
	}
	return &Suite{cases, p.faults.Deprecated}, nil
}

func (p *caseParser) parse(file policy.File) []Case {
	document, ok := strictyaml.ParseDocument(file.Name, file.Data, policy.MaxBytes, &p.faults, "write tests")
	if !ok {
		return nil
	}
	object, _ := document.Value.(map[string]any)
	if kind, ok := object["kind"].(string); ok && kind != Kind {
		document.At("kind", kind).Fault("%s is not a file of tests: write %s", term.QuoteName(kind), Kind)
		return nil
	}
	fields := document.Fields(strictyaml.FieldNames[Document]()...)
	if fields == nil {
		return nil
	}
	document.RequireVersion(fields)
	document.Require(fields, "kind", Kind)
	tests, ok := fields["tests"]
	if !ok {
		document.FaultAt("tests", "is missing: write tests")
		return nil
	}
	var cases []Case
	for _, n := range tests.List() {
		cases = append(cases, p.test(n))
	}
	return cases
}

func (p *caseParser) test(n strictyaml.Node) Case {
	c := Case{Origin: n.Origin()}
	fields := n.Fields(strictyaml.FieldNames[Test]()...)
	if fields == nil {
		return c
	}
	c.Name = p.name(n, fields)
	c.Subject = p.asker(n, fields)
	if service, ok := fields["service"]; ok {
		c.Service, _ = service.Text()
	}
	isRead := true
	if scopes, ok := fields["scopes"]; ok {
		c.Requested, isRead = parseScopes(scopes)
	}
	if expect, ok := fields["expect"]; ok {
		c.Expected = parseExpected(expect, c.Requested, isRead)
	} else {
		n.FaultAt("expect", "is missing: write granted or denied")
	}
	return c
}

func (p *caseParser) name(n strictyaml.Node, fields map[string]strictyaml.Node) string {
	field, ok := fields["name"]
	if !ok {
		n.FaultAt("name", "is missing: say what is tested")
		return ""
	}
	name, ok := field.Text()
	if !ok {
		return ""
	}
	if len(name) > maxCaseName || strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || '~' < r }) {
		field.Fault("%s is not a name: write one line of at most %d printable ASCII characters", term.QuoteName(name), maxCaseName)
		return ""
	}
	if first, taken := p.names[name]; taken {
		field.Fault("%s is taken by %s: names are unique over all files", term.QuoteName(name), first)
		return name
	}
	p.names[name] = field.Origin()
	return name
}

func (p *caseParser) asker(n strictyaml.Node, fields map[string]strictyaml.Node) policy.Subject {
	identity, hasIdentity := fields["identity"]
	anonymous, hasAnonymous := fields["anonymous"]
	switch {
	case hasIdentity && hasAnonymous:
		anonymous.Fault("who has an identity is not anonymous: remove one of them")
	case hasAnonymous && anonymous.Value != true:
		anonymous.Fault("must be true: write that, or identity instead")
	case !hasIdentity && !hasAnonymous:
		n.FaultAt("identity", "is missing: say who asks, or write anonymous: true")
	}
	if !hasIdentity {
		return policy.Subject{}
	}
	return p.identity(identity)
}

// parseScopes reads scopes, and merges them as a request does. ok reports whether all could be
// read.
func parseScopes(n strictyaml.Node) (scopes []registryauth.Scope, ok bool) {
	var fields []string
	entries := n.List()
	for _, entry := range entries {
		text, ok := entry.Text()
		if !ok {
			continue
		}
		if _, err := registryauth.ParseScope(text); err != nil {
			entry.Fault("%s: write one like repository:team-a/web:pull,push", scopeFault(err))
			continue
		}
		fields = append(fields, text)
	}
	scopes, err := registryauth.ParseScopes(fields)
	if err != nil {
		n.Fault("%s", scopeFault(err))
	}
	return scopes, err == nil && len(fields) == len(entries)
}

// scopeFault describes the fault of a scope, without the field of a request.
func scopeFault(err error) string {
	if fault, ok := errors.AsType[*registryauth.RequestError](err); ok {
		return fault.Message
	}
	return err.Error()
}

// parseExpected reads the expected decision, and compares granted with requested if requested could
// be read.
func parseExpected(n strictyaml.Node, requested []registryauth.Scope, isRead bool) Expected {
	var e Expected
	fields := n.Fields(strictyaml.FieldNames[Expectation]()...)
	if fields == nil {
		return e
	}
	granted, hasGranted := fields["granted"]
	denied, hasDenied := fields["denied"]
	rules, hasRules := fields["rules"]
	reason, hasReason := fields["reason"]
	switch {
	case hasGranted && hasDenied:
		denied.Fault("who is denied is granted nothing: remove one of them")
	case hasDenied:
		e.Denied = parseRuleName(denied)
		for _, other := range []struct {
			node strictyaml.Node
			is   bool
		}{{rules, hasRules}, {reason, hasReason}} {
			if other.is {
				other.node.Fault("says nothing of who is denied: remove it")
			}
		}
		return e
	case !hasGranted:
		n.FaultAt("granted", "is missing: write the scopes, [] for none, or write denied")
		return e
	}
	// An empty list of grants is a valid expectation, and as strict as any other.
	if none, isList := granted.Value.([]any); !isList || len(none) > 0 {
		e.Granted, _ = parseScopes(granted)
		slices.SortFunc(e.Granted, policy.CompareResources)
		if isRead {
			checkAsked(granted, e.Granted, requested)
		}
	}
	if hasRules {
		for _, entry := range rules.List() {
			e.Rules = append(e.Rules, parseRuleName(entry))
		}
		if len(e.Granted) == 0 {
			rules.Fault("no rule grants nothing: remove it")
		}
	}
	if hasReason {
		e.Reason, _ = reason.Text()
	}
	return e
}

// checkAsked rejects grants beyond the request, which no policy could give.
func checkAsked(n strictyaml.Node, granted, requested []registryauth.Scope) {
	for _, scope := range granted {
		i := slices.IndexFunc(requested, func(asked registryauth.Scope) bool { return policy.CompareResources(asked, scope) == 0 })
		asked := action.Set(0)
		if i >= 0 {
			asked = action.Of(requested[i].Actions)
		}
		for _, name := range scope.Actions {
			if i < 0 || asked&action.All == 0 && !slices.Contains(requested[i].Actions, name) {
				n.Fault("%s of %s is not asked for (scopes), so it is never granted", policy.Plain(name), policy.Plain(scope.String()))
			}
		}
	}
}

func parseRuleName(n strictyaml.Node) string {
	name, ok := n.Text()
	object, rule, isOfObject := strings.Cut(name, "/")
	if ok && !names.IsLabel(name) && !(isOfObject && names.IsSubdomain(object) && names.IsLabel(rule)) {
		n.Fault("%s is not the name of a rule", term.QuoteName(name))
	}
	return name
}

// Run returns the differences from the expected decision, each on one line, and the decision with
// its trace.
func Run(p *policy.Policy, c Case) (differences []string, decision policy.Decision, trace policy.Trace) {
	decision, trace = p.Explain(c.Subject, c.Service, c.Requested)
	differ := func(what, expected, got string) {
		differences = append(differences, fmt.Sprintf("%s: expected %s, got %s", what, expected, got))
	}
	e := c.Expected
	if e.Denied != decision.DeniedBy {
		differ("denied", ruleOrNobody(p, &trace, e.Denied), ruleOrNobody(p, &trace, decision.DeniedBy))
		return differences, decision, trace
	}
	expected, got := policy.ScopeStrings(e.Granted), policy.ScopeStrings(decision.Granted())
	if !slices.Equal(expected, got) {
		differ("granted", orNothing(expected), orNothing(got))
	}
	if e.Rules != nil {
		if rules := rulesOf(decision); !slices.Equal(slices.Compact(slices.Sorted(slices.Values(e.Rules))), rules) {
			differ("rules", known(p, &trace, e.Rules), orNothing(rules))
		}
	}
	if e.Reason != "" && !slices.ContainsFunc(decision.Scopes, func(s policy.ScopeDecision) bool { return strings.Contains(s.Reason, e.Reason) }) {
		var reasons []string
		for _, s := range decision.Scopes {
			if s.Reason != "" {
				reasons = append(reasons, s.Reason)
			}
		}
		differ("reason", fmt.Sprintf("%+q", e.Reason), orNothing(reasons))
	}
	return differences, decision, trace
}

// rulesOf returns the names of the rules that granted, sorted.
func rulesOf(d policy.Decision) []string {
	var names []string
	for _, s := range d.Scopes {
		names = append(names, s.Rules...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, " ")
}

func ruleOrNobody(p *policy.Policy, trace *policy.Trace, name string) string {
	if name == "" {
		return "not denied"
	}
	return known(p, trace, []string{name})
}

// known returns names, and marks those that are not names of rules: they may be mistyped.
func known(p *policy.Policy, trace *policy.Trace, names []string) string {
	list := slices.Clone(names)
	for i, name := range list {
		isOfObject := slices.ContainsFunc(trace.Rules, func(t policy.RuleTrace) bool { return t.Name == name }) ||
			slices.ContainsFunc(trace.Deny, func(t policy.DenyTrace) bool { return t.Name == name })
		if !p.HasRule(name) && !isOfObject {
			list[i] += " (there is no such rule)"
		}
	}
	return strings.Join(list, " ")
}
