package policy

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var randomPolicies = flag.Int("random-policies", 200, "how many random policies are judged by each test that makes some")

// A zero decision must not grant (failing open by accident).
func TestZeroDecisionGrantsNothing(t *testing.T) {
	t.Parallel()
	if granted := (Decision{}).Granted(); granted != nil {
		t.Errorf("granted %v", granted)
	}
	scopes := scopesOf(t, "repository:a:pull registry:catalog:*")
	for _, policy := range []*Policy{{}, {ruleSet: newRuleSet([]rule{{}}, nil)}, {ruleSet: newRuleSet([]rule{{name: []string{"r"}, subjects: []subjects.Match{{}}}}, nil)}} {
		for _, subject := range []Subject{{}, {Identity: &oidc.Identity{}}, {Identity: someone()}} {
			d := policy.Decide(subject, "", scopes)
			if d.Granted() != nil || len(d.Scopes) != 2 || d.Scopes[0].Reason == "" || d.Scopes[1].Reason == "" {
				t.Errorf("%+v decides %+v", policy, d)
			}
		}
	}
}

// A scope of another type has no rules, whatever its name is.
func TestOtherTypesOfScopesAreNotGranted(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: all, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: ["*"]}, {registry: [catalog], actions: ["*"]}]}
`)
	for scope, want := range map[string]bool{"registry:catalog:*": true, "plugin:catalog:*": false, "registry:other:*": false, "plugin:a/b:pull": false, "repository:a/b:pull": true} {
		if d := policy.Decide(Subject{Identity: someone()}, "", scopesOf(t, scope)); len(d.Granted()) > 0 != want {
			t.Errorf("%s: %+v", scope, d)
		}
	}
}

// Anyone who can read a Secret has its token. So it only pulls, whatever rules allow.
func TestPullSecretsOnlyPull(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: all, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["a"], actions: ["*"]}, {registry: [catalog], actions: ["*"]}]}
- {name: pull, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["b"], actions: [pull]}]}
deny:
- {name: bad, subjects: [{namespaces: [bad]}]}
`)
	id := someone()
	id.Kubernetes.Secret = oidc.ObjectRef{Name: "pull", UID: "uid"}
	const own = "the token is that of a pull secret, which only pulls"
	for scope, want := range map[string]struct{ granted, reason string }{
		"repository:a:pull":         {"pull", ""},
		"repository:a:pull,push":    {"pull", own},
		"repository:a:*":            {"pull", own},
		"repository:a:delete,other": {"", own},
		"registry:catalog:*":        {"", own},
		"registry:catalog:pull":     {"", own},
		"repository:b:pull":         {"pull", ""},
		"repository:b:push":         {"", "no rule for prod/team-a/web.v1 allows push on b"},
	} {
		d := policy.Decide(Subject{Identity: id}, "", scopesOf(t, scope)).Scopes[0]
		if strings.Join(d.Granted, ",") != want.granted || !strings.HasPrefix(d.Reason, want.reason) || (d.Reason == "") != (want.reason == "") || (d.Rules == nil) != (want.granted == "") {
			t.Errorf("%s: %+v", scope, d)
		}
	}
	explained, _ := policy.Explain(Subject{Identity: id}, "", scopesOf(t, "repository:a:push"))
	if explained.Granted() != nil {
		t.Errorf("explain grants %v", explained.Granted())
	}
	id.Kubernetes.Namespace = "bad"
	if d := policy.Decide(Subject{Identity: id}, "", nil); d.DeniedBy != "bad" {
		t.Errorf("%+v", d)
	}
}

// Of a ServiceAccount without a token, a decision names the denials and rules that only a token
// decides, and proposes no edit instead of them.
func TestDecisionWithoutAToken(t *testing.T) {
	t.Parallel()
	p := testkit.Value(Parse(File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: plain, subjects: [{namespaces: [a]}], allow: [{repositories: ["a/**"], actions: [pull]}]}
- {name: by-node, subjects: [{condition: 'kubernetes.node == "n"'}], allow: [{repositories: ["gpu/**"], actions: [pull]}]}
- {name: by-nodes, subjects: [{nodes: ["n-*"]}], allow: [{repositories: ["arm/**"], actions: [pull]}]}
- {name: elsewhere, subjects: [{condition: 'kubernetes.node == "n"'}], services: [other], allow: [{repositories: ["gpu/**"], actions: [pull]}]}
deny:
- {name: by-token, subjects: [{condition: 'claims.jti == "x"'}]}
- {name: by-nodes-too, subjects: [{namespaces: [a], nodes: [bad]}]}
- {name: other-nodes, subjects: [{namespaces: [other], nodes: [bad]}]}
- {name: one-token, subjects: [{tokenIDs: [t]}]}
- {name: gone, subjects: [{serviceAccounts: [gone]}]}
`)}))(t)
	const denials = "[by-token] [by-nodes-too] "
	for text, want := range map[string]string{
		"web a/x:pull":        denials + "[by-node by-nodes] [pull] []",
		"web gpu/x:pull":      denials + "[by-node by-nodes] [] [by-node]",
		"web gpu/x:pull,push": denials + "[by-node by-nodes] [] [by-node]",
		"web gpu/x:push":      denials + "[by-node by-nodes] [] [] edit",
		"web arm/x:pull":      denials + "[by-node by-nodes] [] [by-nodes]",
		"web b/x:pull":        denials + "[by-node by-nodes] [] [] edit",
		"gone a/x:pull":       "[] [] [] [] []",
	} {
		account, scope, _ := strings.Cut(text, " ")
		requested := testkit.Value(registryauth.ParseScopes([]string{"repository:" + scope}))(t)
		subject := Subject{NoToken: true, Identity: &oidc.Identity{Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: "a", ServiceAccount: oidc.ObjectRef{Name: account}}}}
		decided := p.Decide(subject, "s", requested)
		explained, trace := p.Explain(subject, "s", requested)
		for _, d := range []Decision{decided, explained} {
			s := d.Scopes[0]
			got := fmt.Sprint(d.UnjudgedDenials, " ", d.DenialsOfNodes, " ", d.UnjudgedRules, " ", s.Granted, " ", s.Unjudged)
			if trace.Edit != nil {
				got += " edit"
			}
			if got != want || (s.Unjudged != nil) != strings.Contains(s.Reason, "only a token decides whether rule by-node") {
				t.Errorf("%s: %s, want %s; %s", text, got, want, s.Reason)
			}
		}
	}
}

// DeniedBy refuses the subject as a whole, independent of Scopes.
func TestDeniedDecisionGrantsNothing(t *testing.T) {
	t.Parallel()
	d := Decision{DeniedBy: "quarantine", Scopes: []ScopeDecision{{Requested: scopeNamed("a"), Granted: []string{"pull"}}}}
	if granted := d.Granted(); granted != nil {
		t.Errorf("granted %v", granted)
	}
}

func TestGrantedIsSortedAndMerged(t *testing.T) {
	t.Parallel()
	decided := func(typ, class, name string, granted ...string) ScopeDecision {
		return ScopeDecision{Requested: registryauth.Scope{Type: typ, Class: class, Name: name, Actions: []string{"*"}}, Granted: granted}
	}
	shared := []string{"pull"}
	d := Decision{Scopes: []ScopeDecision{
		decided("repository", "", "b", shared[:1:1]...),
		decided("repository", "", "a", "push"),
		decided("repository", "", "none"),
		decided("registry", "", "catalog", "*"),
		decided("repository", "plugin", "a", "pull"),
		decided("repository", "", "a", "delete", "push"),
		decided("repository", "", "a", "pull"),
	}}
	want := []registryauth.Scope{
		{Type: "registry", Name: "catalog", Actions: []string{"*"}},
		{Type: "repository", Name: "a", Actions: []string{"delete", "pull", "push"}},
		{Type: "repository", Name: "b", Actions: []string{"pull"}},
		{Type: "repository", Class: "plugin", Name: "a", Actions: []string{"pull"}},
	}
	for range 2 {
		if granted := d.Granted(); !reflect.DeepEqual(granted, want) {
			t.Errorf("granted %v, want %v", granted, want)
		}
	}
}

// ParseScopes returns scopes sorted and without duplicates. A request in a different form gets its
// grants in the normal form, and is not changed.
func TestRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	policy := parseText(t, strings.Replace(minimalPolicy, "[pull]", "['*']", 1))
	asked := []string{"push", "pull", "push"}
	d := policy.Decide(Subject{}, "", []registryauth.Scope{{Type: "repository", Name: "a", Actions: asked}})
	if got := d.Scopes[0].Granted; !slices.Equal(got, []string{"pull", "push"}) {
		t.Errorf("granted %q", got)
	}
	if !slices.Equal(asked, []string{"push", "pull", "push"}) {
		t.Errorf("the request became %q", asked)
	}
	sorted := []string{"pull", "push", "sign"}
	d = policy.Decide(Subject{}, "", []registryauth.Scope{{Type: "repository", Name: "a", Actions: sorted[:2]}})
	_ = append(d.Scopes[0].Granted, "delete")
	if sorted[2] != "sign" {
		t.Errorf("appending to what is granted changed the request to %q", sorted)
	}
}

// A decision shares memory with the policy, so appending rules must not change the policy.
func TestDecisionsDoNotShareRules(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: a, anonymous: true, allow: [{repositories: ["**"], actions: [pull]}]}
- {name: b, anonymous: true, allow: [{repositories: ["b/**"], actions: [push]}]}
- {name: c, anonymous: true, allow: [{repositories: ["c/**"], actions: [push]}]}
`)
	d := policy.Decide(Subject{}, "", scopesOf(t, "repository:b:pull,push repository:c:pull,push"))
	if got := fmt.Sprint(d.Scopes[0].Rules, d.Scopes[1].Rules); got != "[a b] [a c]" {
		t.Errorf("rules %s", got)
	}
}

// A rule with * grants more than one with every named action, so the latter must not end the
// search.
func TestOrderDoesNotCountForAll(t *testing.T) {
	t.Parallel()
	rules := []string{
		"- {name: named, anonymous: true, allow: [{repositories: [a], actions: [pull, push, delete]}]}\n",
		"- {name: all, anonymous: true, allow: [{repositories: [a], actions: ['*']}]}\n",
	}
	for range 2 {
		d := policyOf(t, rules, "").Decide(Subject{}, "", scopesOf(t, "repository:a:*"))
		if !slices.Equal(d.Scopes[0].Granted, []string{"*"}) || d.Scopes[0].Reason != "" {
			t.Errorf("%s grants %+v", rules, d.Scopes[0])
		}
		slices.Reverse(rules)
	}
	// A request for * gets every named action: nothing is missing, so there is no reason.
	d := policyOf(t, rules[:1], "").Decide(Subject{}, "", scopesOf(t, "repository:a:*"))
	if !slices.Equal(d.Scopes[0].Granted, []string{"delete", "pull", "push"}) || d.Scopes[0].Reason != "" {
		t.Errorf("granted %+v", d.Scopes[0])
	}
}

// Names that ParseScope would have rejected. Matching cuts names at '/', so an empty component must
// not vanish, and ** must not match "..".
func TestMalformedNamesAreNotGranted(t *testing.T) {
	t.Parallel()
	policy := parseText(t, strings.Replace(minimalPolicy, "[a]", "['**', a, 'a/**']", 1))
	for _, name := range []string{"", "/", "a/", "/a", "a//a", "a/../b", "..", "a/./b", ".a"} {
		d := policy.Decide(Subject{}, "", []registryauth.Scope{scopeNamed(name)})
		if d.Granted() != nil || d.Scopes[0].Reason == "" {
			t.Errorf("%q: %+v", name, d)
		}
	}
}

// Clients choose the name of a repository, which is written to logs and terminals.
func TestReasonsAreBoundedAndPlain(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
	for i := range 50 {
		fmt.Fprintf(&text, "- name: r%d\n  subjects: [{namespaces: ['*']}]\n  annotation: a\n  allow:\n", i)
		for range 10 {
			text.WriteString("  - actions: [pull, push, delete]\n    repositories: [")
			text.WriteString(strings.Repeat("'{namespace}/"+strings.Repeat("x", 200)+"', ", 9) + "z]\n")
		}
	}
	policy := parseText(t, text.String())
	subject := Subject{Identity: someone(), Annotations: map[string]string{"a": strings.Repeat("\x1b", 100)}}
	for _, scope := range []registryauth.Scope{
		scopeNamed(strings.Repeat("a", 5000)),
		scopeNamed("a\x1b[2J\n"),
		{Type: "repository", Name: "z", Actions: []string{"pull", strings.Repeat("z", 1000), "a\nb"}},
		{Type: "registry", Name: "catalog", Actions: []string{"a\nb"}},
		{Type: "x\n", Name: strings.Repeat("\x1b", 500)},
	} {
		scope.Actions = append(scope.Actions, "push")
		for _, asker := range []Subject{subject, {}, {Identity: someone()}} {
			d := policy.Decide(asker, "", []registryauth.Scope{scope}).Scopes[0]
			for text, limit := range map[string]int{d.Reason: maxReasonBytes, d.Remedy: maxRemedyBytes} {
				if text == "" || len(text) > limit || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || '~' < r }) {
					t.Errorf("%d bytes: %q", len(text), text)
				}
			}
		}
	}
	long := policy.Decide(subject, "", []registryauth.Scope{scopeNamed("other")}).Scopes[0].Reason
	if !strings.HasSuffix(long, "...") {
		t.Errorf("not cut: %q", long)
	}
}

func TestReasonTellsHowManyMore(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
	for i := range 5 {
		fmt.Fprintf(&text, "- {name: r%d, anonymous: true, allow: [{repositories: [a%d, b, c, d, e], actions: [pull]}]}\n", i, i)
	}
	reason := parseText(t, text.String()).Decide(Subject{}, "", scopesOf(t, "repository:a4:push")).Scopes[0].Reason
	want := "no rule for anonymous callers allows push on a4; rule r4 allows only pull there; rule r0 allows pull on a0, b, c, ...; " +
		"rule r1 allows pull on a1, b, c, ...; 2 more rules do not allow it either"
	if reason != want {
		t.Errorf("got  %s\nwant %s", reason, want)
	}
	const allow = "{repositories: [b, c, d], actions: [pull]}"
	for n, want := range map[int]string{
		3: "rule r allows pull on b, c, d and pull on b, c, d and pull on b, c, d",
		4: "rule r allows pull on b, c, d and pull on b, c, d and pull on b, c, d and more",
	} {
		rule := "- {name: r, anonymous: true, allow: [" + strings.TrimSuffix(strings.Repeat(allow+", ", n), ", ") + "]}\n"
		if reason := policyOf(t, []string{rule}, "").Decide(Subject{}, "", scopesOf(t, "repository:a:pull")).Scopes[0].Reason; !strings.HasSuffix(reason, "; "+want) {
			t.Errorf("got  %s\nwant %s", reason, want)
		}
	}
}

// Explain prints a trace as JSON in this form.
func TestTrace(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own
  subjects: [{clusters: [stage]}, {namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}, {repositories: ["*/x"], actions: [push]}]
- name: asked
  subjects: [{namespaces: ["*"]}]
  annotation: a
  allow: [{repositories: ["**"], actions: ["*"]}]
- name: elsewhere
  subjects: [{namespaces: [other]}, {nodes: ["*"]}]
  services: [other]
  allow: [{repositories: ["**"], actions: ["*"]}]
- name: late
  anonymous: true
  allow: [{repositories: ["**", "*/x"], actions: [pull]}, {registry: [catalog], actions: ["*"]}]
deny:
- {name: block, subjects: [{nodes: [n1], namespaces: [team-a]}]}
`)
	explain := func(annotation string, scopes string) string {
		_, trace := policy.Explain(Subject{Identity: someone(), Annotations: map[string]string{"a": annotation}}, "r", scopesOf(t, scopes))
		data := testkit.Value(json.Marshal(trace))(t)
		return string(data)
	}
	const deny = `{"deny":[{"name":"block","origin":"policy.yaml: deny[0]","matched":false,"mismatches":["nodes"]}],"rules":[`
	const elsewhere = `{"name":"elsewhere","origin":"policy.yaml: rules[2]","subjectMatched":false,"mismatches":["namespaces","nodes"],"serviceMatched":false},`
	for _, test := range []struct{ annotation, scopes, want string }{
		{"team-a/*:push,delete", "repository:team-a/x:pull,push", deny +
			`{"name":"own","origin":"policy.yaml: rules[0]","subjectMatched":true,"matchedBy":"subjects[1]","serviceMatched":true,"scopes":[{"requested":"repository:team-a/x:pull,push","patterns":["{namespace}/**","*/x"],"allows":["pull","push"],"granted":["pull","push"]}]},` +
			`{"name":"asked","origin":"policy.yaml: rules[1]","subjectMatched":true,"matchedBy":"subjects[0]","serviceMatched":true,"annotation":"a","scopes":[{"requested":"repository:team-a/x:pull,push","patterns":["**"],"allows":["*"],"items":["team-a/*:delete,push"],"asks":["delete","push"],"granted":["push"]}]},` +
			elsewhere +
			`{"name":"late","origin":"policy.yaml: rules[3]","subjectMatched":true,"matchedBy":"anonymous","serviceMatched":true,"scopes":[{"requested":"repository:team-a/x:pull,push","patterns":["**","*/x"],"allows":["pull"],"granted":["pull"]}]}]}`},
		{"**:*", "registry:catalog:*", deny +
			`{"name":"own","origin":"policy.yaml: rules[0]","subjectMatched":true,"matchedBy":"subjects[1]","serviceMatched":true,"scopes":[{"requested":"registry:catalog:*"}]},` +
			`{"name":"asked","origin":"policy.yaml: rules[1]","subjectMatched":true,"matchedBy":"subjects[0]","serviceMatched":true,"annotation":"a","scopes":[{"requested":"registry:catalog:*"}]},` +
			elsewhere +
			`{"name":"late","origin":"policy.yaml: rules[3]","subjectMatched":true,"matchedBy":"anonymous","serviceMatched":true,"scopes":[{"requested":"registry:catalog:*","patterns":["registry:catalog"],"allows":["*"],"granted":["*"]}]}]}`},
		{"?", "registry:catalog:*", deny +
			`{"name":"own","origin":"policy.yaml: rules[0]","subjectMatched":true,"matchedBy":"subjects[1]","serviceMatched":true,"scopes":[{"requested":"registry:catalog:*"}]},` +
			`{"name":"asked","origin":"policy.yaml: rules[1]","subjectMatched":true,"matchedBy":"subjects[0]","serviceMatched":true,"annotation":"a","scopes":[{"requested":"registry:catalog:*","fault":"item 1, \"?\": pattern \"?\": \"?\" cannot be part of a repository's name, and patterns are not regular expressions; use * and **"}]},` +
			elsewhere +
			`{"name":"late","origin":"policy.yaml: rules[3]","subjectMatched":true,"matchedBy":"anonymous","serviceMatched":true,"scopes":[{"requested":"registry:catalog:*","patterns":["registry:catalog"],"allows":["*"],"granted":["*"]}]}]}`},
	} {
		if got := explain(test.annotation, test.scopes); got != test.want {
			t.Errorf("got\n%s\nwant\n%s", got, test.want)
		}
	}
	id := someone()
	id.Kubernetes.Node.Name = "n1"
	denied, trace := policy.Explain(Subject{Identity: id}, "r", scopesOf(t, "repository:team-a/x:pull"))
	if denied.DeniedBy != "block" || !reflect.DeepEqual(trace, Trace{Deny: []DenyTrace{{Name: "block", Origin: "policy.yaml: deny[0]", Matched: true, MatchedBy: "subjects[0]"}}}) {
		t.Errorf("denied: %+v, %+v", denied, trace)
	}
}

// world makes small random policies, and requests that often match them.
type world struct{ *rand.Rand }

func (w world) pick(from ...string) string { return from[w.IntN(len(from))] }

func (w world) some(from ...string) string {
	var list []string
	for range 1 + w.IntN(2) {
		list = append(list, "'"+w.pick(from...)+"'")
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func (w world) subject() string {
	return w.pick("{namespaces: "+w.some("a", "b", "*", "a*")+"}", "{clusters: "+w.some("c1", "c2")+", serviceAccounts: "+w.some("s", "*")+"}", "{nodes: "+w.some("n*", "m")+"}",
		"{namespaceSelector: "+w.selector()+"}", "{namespaceSelector: "+w.selector()+", namespaces: "+w.some("a", "*")+"}")
}

func (w world) selector() string {
	return w.pick("'l1=x'", "'l1!=x'", "'l1 in (x,y),!l2'", "l2", "'l2 notin (y)'", "{matchLabels: {l1: x}}", "{matchExpressions: [{key: l1, operator: DoesNotExist}]}",
		"{matchLabels: {l2: x}, matchExpressions: [{key: l1, operator: NotIn, values: [z]}]}")
}

func (w world) rule(name string) string {
	head, repository := "anonymous: true", func() string { return w.some("a/**", "**", "a/*", "b", "*/x", "x") }
	allow := func() string {
		return "{repositories: " + repository() + ", actions: " + w.some("pull", "push", "delete", "pull", "*") + "}"
	}
	if w.IntN(4) > 0 {
		head, repository = "subjects: ["+w.subject()+"]", func() string { return w.some("{namespace}/**", "{serviceAccount}", "**/x", "b/**", "*", "a/{cluster}") }
		if w.IntN(3) == 0 {
			head += ", annotation: " + w.pick("k1", "k2")
		} else if w.IntN(4) == 0 {
			allow = func() string { return "{registry: [catalog], actions: ['*']}" }
		}
	}
	if w.IntN(4) == 0 {
		head += ", services: " + w.some("r1", "r2")
	}
	return fmt.Sprintf("- {name: %s, %s, allow: [%s, %s]}\n", name, head, allow(), allow())
}

func (w world) asker() Subject {
	if w.IntN(6) == 0 {
		return Subject{}
	}
	annotation := func() string {
		return w.pick("**:*", "a/x", "a/**:push b:pull,push", "x:delete", "bad:", "")
	}
	return Subject{
		Identity: &oidc.Identity{
			Cluster: w.pick("c1", "c2"), Kubernetes: oidc.KubernetesIdentity{Namespace: w.pick("a", "b", "ab"), ServiceAccount: oidc.ObjectRef{Name: w.pick("s", "x")},
				Node: oidc.ObjectRef{Name: w.pick("", "n1", "m")}}, TokenID: "t1",
		},
		Annotations:     map[string]string{"k1": annotation(), "k2": annotation()},
		NamespaceLabels: w.labels(),
	}
}

func (w world) labels() map[string]string {
	if w.IntN(4) == 0 {
		return nil
	}
	return labelsOf(w.pick("", "l1=x", "l1=z", "l1=", "l1") + " " + w.pick("", "l2=x", "l2=y", "l2="))
}

func (w world) request() []registryauth.Scope {
	var scopes []registryauth.Scope
	for range 1 + w.IntN(3) {
		actions := []string{w.pick("pull", "push", "delete", "*", "sign"), w.pick("pull", "push", "pull")}
		slices.Sort(actions)
		s := scopeNamed(w.pick("a", "a/x", "a/y/x", "b", "b/x", "x", "s", "a/c1"))
		if w.IntN(8) == 0 {
			s = registryauth.Scope{Type: w.pick("registry", "plugin"), Name: "catalog"}
		}
		s.Actions = slices.Compact(actions)
		scopes = append(scopes, s)
	}
	return scopes
}

func policyOf(t *testing.T, rules []string, deny string) *Policy {
	t.Helper()
	return parseText(t, "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n"+strings.Join(rules, "")+deny)
}

// includes reports whether one set of actions has all of the other; * has all.
func includes(set, other []string) bool {
	for _, action := range other {
		if !slices.Contains(set, action) && !slices.Contains(set, "*") {
			return false
		}
	}
	return true
}

// Properties of every policy. Harbor granted everything that a user has. octo-sts and
// jwt-registry-auth granted everything when no rule was set.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(1, 2))}
	grants, inDoubt := 0, 0 // inDoubt: denied only because labels are not known
	for round := range *randomPolicies {
		var rules []string
		for i := range 1 + w.IntN(5) {
			rules = append(rules, w.rule(fmt.Sprintf("r%d", i)))
		}
		policy := policyOf(t, rules, "")
		subject, service, requested := w.asker(), w.pick("r1", "r2"), w.request()
		d := policy.Decide(subject, service, requested)
		explained, _ := policy.Explain(subject, service, requested)
		if !reflect.DeepEqual(d, explained) {
			t.Fatalf("Explain differs: %+v, %+v", d, explained)
		}
		var alone []Decision
		for i := range rules {
			alone = append(alone, policyOf(t, rules[i:i+1], "").Decide(subject, service, requested))
		}
		w.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		shuffled := policyOf(t, rules, "").Decide(subject, service, requested)
		unknown := subject
		unknown.NamespaceLabels = nil
		ofUnknown := policy.Decide(unknown, service, requested)
		more := policyOf(t, append(rules, w.rule("more")), "").Decide(subject, service, requested)

		for i, s := range d.Scopes {
			fail := func(what string) {
				t.Errorf("round %d: %s\n%s%s\n%+v asks for %s", round, what, strings.Join(rules, ""), service, subject, s.Requested)
			}
			grants += len(s.Granted)
			var union []string
			for _, one := range alone {
				union = append(union, one.Scopes[i].Granted...)
			}
			asksAll := slices.Contains(s.Requested.Actions, "*")
			switch {
			case !includes(s.Requested.Actions, s.Granted):
				fail("granted more than was asked")
			case !includes(union, s.Granted) || !includes(s.Granted, union):
				fail(fmt.Sprintf("granted %q, the rules alone %q", s.Granted, union))
			case !slices.Equal(s.Granted, shuffled.Scopes[i].Granted):
				fail("the order of the rules counts")
			case !includes(more.Scopes[i].Granted, s.Granted):
				fail("another rule takes something away")
			case !includes(s.Granted, ofUnknown.Scopes[i].Granted):
				fail("granted by labels that are not known")
			case (len(s.Granted) > 0) != (len(s.Rules) > 0):
				fail("the list of rules does not fit the grant")
			case !asksAll && (s.Reason == "") != slices.Equal(s.Granted, s.Requested.Actions):
				fail(fmt.Sprintf("granted %q, reason %q", s.Granted, s.Reason))
			case !slices.IsSorted(s.Granted):
				fail("not sorted")
			}
		}
		if subject.Identity != nil {
			deny := "deny: [{name: d, subjects: [{nodes: [unknown]}, {namespaces: [" + subject.Identity.Kubernetes.Namespace + "]}]}]\n"
			if denied := policyOf(t, rules, deny).Decide(subject, service, requested); denied.DeniedBy != "d" || denied.Granted() != nil {
				t.Errorf("denied, yet %+v", denied)
			}
			policy := policyOf(t, rules, "deny: [{name: d, subjects: ["+w.subject()+", "+w.subject()+"]}]\n")
			denied := policy.Decide(subject, service, requested).DeniedBy
			if whatever := policy.Decide(unknown, service, requested).DeniedBy; denied != "" && whatever == "" {
				t.Errorf("round %d: %+v is denied, and is not if its labels are not known", round, subject)
			} else if denied != whatever {
				inDoubt++
			}
		}
	}
	if grants < *randomPolicies/2 || inDoubt < *randomPolicies/20 {
		t.Errorf("only %d grants and %d denials in doubt: the properties are hardly tested", grants, inDoubt)
	}
}

func FuzzPolicy(f *testing.F) {
	everyField, err := os.ReadFile(testkit.InModule("docs/reference/policy.yaml"))
	testkit.Must(f, err)
	f.Add(everyField, "team-a", "repository:team-a/x:pull registry:catalog:*", "a/{claims.b}:pull")
	f.Add([]byte(minimalPolicy), "a", "repository:a:pull", "a:push")
	f.Add([]byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n- name: r\n  subjects: [{namespaces: ['a*']}]\n  services: [s]\n"+
		"  annotation: k\n  allow: [{repositories: ['{namespace}/**', 'x-{cluster}/*'], actions: ['*']}]\n- {name: c, subjects: [{clusters: [c]}], allow: [{registry: [catalog], actions: ['*']}]}\n"+
		"deny: [{name: d, subjects: [{tokenIDs: [t], nodes: ['n*']}]}]\n"), "ab", "repository:ab/x:*,pull registry:catalog:*", "**:*")
	f.Add([]byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n- name: r\n  subjects: [{namespaceSelector: 'team==ab,env in (a, b),!x.y/z,w!=1'}]\n  allow: [{repositories: ['**'], actions: [pull]}]\n"+
		"deny: [{name: d, subjects: [{namespaceSelector: {matchLabels: {x.y/z: ''}, matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: c, operator: DoesNotExist}]}}]}]\n"), "ab", "repository:ab/x:pull", "")
	f.Fuzz(func(t *testing.T, data []byte, namespace, asked, annotation string) {
		policy, err := Parse(File{Name: "p", Data: data})
		if err != nil {
			if policy != nil {
				t.Errorf("a policy beside the error %v", err)
			}
			return
		}
		scopes, unparsed := registryauth.ParseScopes([]string{asked})
		if unparsed != nil {
			scopes = []registryauth.Scope{{Type: "repository", Name: asked, Actions: []string{asked}}}
		}
		annotations := map[string]string{}
		for _, key := range policy.AnnotationKeys() {
			annotations[key] = annotation
		}
		id := &oidc.Identity{Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: "s"}}, TokenID: "t"}
		checkSelectors(t, policy)
		labels := map[string]string{"team": namespace, "env": "a", "a": namespace}
		for _, subject := range []Subject{{}, {Identity: id, Annotations: annotations}, {Identity: id, NamespaceLabels: labels}} {
			d := policy.Decide(subject, "s", scopes)
			explained, trace := policy.Explain(subject, "s", scopes)
			if !reflect.DeepEqual(d, explained) {
				t.Errorf("Explain differs: %+v, %+v", d, explained)
			}
			if trace.Edit != nil {
				for _, annotate := range trace.Edit.Commands {
					command(t, annotate)
				}
			}
			for _, s := range d.Scopes {
				if !includes(s.Requested.Actions, s.Granted) || len(s.Reason) > maxReasonBytes || len(s.Remedy) > maxRemedyBytes || (s.Reason == "") != (s.Remedy == "") {
					t.Errorf("%+v", s)
				}
				if unparsed == nil {
					command(t, s.Remedy)
				}
			}
		}
	})
}
