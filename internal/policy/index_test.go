package policy

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// withoutIndex compares every subject with every rule, in the order written.
func (s ruleSet) withoutIndex() ruleSet {
	all := func(n int) subjects.Index {
		lists := make([]subjects.List, n)
		for i := range lists {
			lists[i] = subjects.List{Position: i}
		}
		return subjects.NewIndex(lists)
	}
	return ruleSet{rules: s.rules, deny: s.deny, whom: all(len(s.rules)), denied: all(len(s.deny)), isByPath: make([]bool, len(s.rules))}
}

// crowded makes policies in which the indexed values are often the same, and often not. Some cost
// more to compare than a request may.
type crowded struct {
	world
	isDear, isServed bool
}

func (w crowded) subject(isDenial bool) string {
	namespaces := w.pick("a", "b", "ab", "a*", "ab*", "*", "*b")
	kinds := []string{
		"{namespaces: ['" + namespaces + "']}",
		"{namespaces: ['" + namespaces + "', " + w.pick("a", "b") + "], serviceAccounts: [" + w.pick("s", "x", "s*") + "]}",
		"{clusters: [" + w.pick("c1", "c*", "c2") + "], nodes: [" + w.pick("n1", "n*", "m") + "]}",
		"{namespaceSelector: " + w.selector() + "}",
		"{namespaces: ['" + namespaces + `'], condition: 'kubernetes.serviceAccount == "s"'}`,
		"{identities: [" + w.pick("ci", "other") + "]}",
		"{identities: [ci], condition: 'claims.sub == \"" + w.pick("x", "y") + "\"'}",
		"{identities: [ci], claims: {sub: [" + w.pick("x", "z", "x, z") + "]}}",
		"{identities: [ci], claims: {sub: [" + w.pick("x", "z") + "], ref: ['" + w.pick("refs/heads/main", "refs/heads/*", "main") + "']}}",
		"{identities: [ci], claims: {absent: [x]}}",
		"{identities: [ci], claims: {groups: [" + w.pick("g000000", "g000007", "none") + "]}}",
		"{identities: [ci], " + dearSubjects[w.pick("condition", "values", "globs", "member")] + "}",
	}
	if w.isDear && w.IntN(2) == 0 {
		var values []string
		for range 20 {
			values = append(values, fmt.Sprintf("h%06d", w.IntN(1000)))
		}
		return w.pick(kinds[len(kinds)-1], "{identities: [ci], claims: {groups: ["+strings.Join(values, ", ")+"]}}")
	}
	if isDenial {
		kinds = append(kinds, "{tokenIDs: ["+w.pick("t1", "t2")+"]}")
	}
	return kinds[w.IntN(len(kinds))]
}

func (w crowded) rule(i int) string {
	repositories := func() string {
		return "'" + w.pick("a/**", "b/*", "b", "x/"+fmt.Sprint(i), fmt.Sprintf("p%d/**", i%7), fmt.Sprintf("p%d/x", i%7), "**/x", "{namespace}/**") + "'"
	}
	head := "anonymous: true"
	if w.IntN(12) > 0 {
		head = "subjects: [" + w.subject(false) + "]"
		if w.IntN(4) == 0 {
			head = "subjects: [" + w.subject(false) + ", " + w.subject(false) + "]"
		}
	} else {
		repositories = func() string { return w.pick("a/**", "b", fmt.Sprintf("p%d/**", i%7)) }
	}
	if w.IntN(5) == 0 || w.isServed {
		head += ", services: " + w.some("r1", "r2", "r3")
	}
	if w.IntN(5) == 0 && !strings.Contains(head, "identities") && !strings.Contains(head, "anonymous") {
		head += ", annotation: " + w.pick("k1", "k2")
	}
	allow := func() string {
		if w.IntN(8) == 0 && !strings.Contains(head, "annotation") {
			return "{registry: [catalog], actions: ['*']}"
		}
		return "{repositories: [" + repositories() + "], actions: " + w.some("pull", "push", "delete", "*") + "}"
	}
	if w.IntN(3) == 0 {
		return fmt.Sprintf("- {name: r%d, %s, allow: [%s, %s]}\n", i, head, allow(), allow())
	}
	return fmt.Sprintf("- {name: r%d, %s, allow: [%s]}\n", i, head, allow())
}

func (w crowded) asker() Subject {
	if !w.isDear && w.IntN(3) > 0 {
		return w.world.asker()
	}
	claims := identity.Claims{"sub": w.pick("x", "z", "w", strings.Repeat("x", 100)), "build_branch": strings.Repeat("ab", 1+w.IntN(4000)), "other": []string{"a"}}
	if w.IntN(2) == 0 {
		claims["ref"] = w.pick("refs/heads/main", "main")
	}
	groups := make([]string, w.IntN(3)*w.IntN(450))
	for i := range groups {
		groups[i] = fmt.Sprintf("g%06d", i)
	}
	claims["groups"] = groups
	return Subject{Identity: &oidc.Identity{Subject: "x", TokenID: w.pick("t1", "t3"),
		External: &identity.External{Provider: w.pick("ci", "ci", "other"), Profile: identity.Profile(w.pick(string(identity.Buildkite), string(identity.Generic), string(identity.GitHub))), Claims: claims}}}
}

func (w crowded) request() []registryauth.Scope {
	scopes := w.world.request()
	for range w.IntN(3) {
		scopes = append(scopes, registryauth.Scope{Type: "repository", Name: w.pick(fmt.Sprintf("p%d/x", w.IntN(8)), fmt.Sprintf("p%d/y/z", w.IntN(8)), fmt.Sprintf("x/%d", w.IntN(40))), Actions: []string{"pull", "push"}})
	}
	return scopes
}

// An index changes no decision: with it and without it, each answer, each reason and each trace is
// the same.
func TestIndexChangesNoDecision(t *testing.T) {
	t.Parallel()
	w := crowded{world: world{rand.New(rand.NewPCG(17, 4))}}
	var grants, denials, tooMuch, byPath int
	rounds := *randomPolicies / 4
	for round := range rounds {
		text := "rules:\n"
		w.isDear, w.isServed = round%8 == 0, round%8 == 1
		most := 60
		if w.isServed {
			most = 8
		}
		for i := range 1 + w.IntN(most) {
			text += w.rule(i)
		}
		if w.IntN(3) == 0 {
			text += "deny:\n"
			for i := range 1 + w.IntN(10) {
				text += fmt.Sprintf("- {name: d%d, subjects: [%s]}\n", i, w.subject(true))
			}
		}
		policy := parseText(t, "apiVersion: "+APIVersion+"\nkind: "+Kind+"\n"+text)
		linear := &Policy{ruleSet: policy.withoutIndex(), annotationKeys: policy.annotationKeys}
		for range 10 {
			subject, service, requested := w.asker(), w.pick("r1", "r2"), w.request()
			want, wantTrace := linear.Explain(subject, service, requested)
			got := policy.Decide(subject, service, requested)
			explained, trace := policy.Explain(subject, service, requested)
			if !reflect.DeepEqual(got, explained) {
				t.Fatalf("round %d: decided %+v, explained %+v", round, got, explained)
			}
			if got.steps > want.steps {
				t.Errorf("round %d: %d steps, and %d without an index", round, got.steps, want.steps)
			}
			got.steps = want.steps // the purpose of the index is fewer comparisons
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(trace, wantTrace) {
				t.Fatalf("round %d: %+v\n%+v asks for %v of %s\ngot  %+v\nwant %+v\n%s", round, subject.Identity, subject, requested, service, got, want, text)
			}
			if got.DeniedBy != "" {
				denials++
			}
			for _, s := range got.Scopes {
				grants += len(s.Granted)
				if strings.Contains(s.Reason, "too much was compared") {
					tooMuch++
				}
			}
		}
		for _, is := range policy.isByPath {
			if is {
				byPath++
			}
		}
	}
	if grants < rounds || denials < rounds/10 || tooMuch < rounds/20 || byPath < rounds {
		t.Errorf("%d grants, %d denials, %d too dear, %d rules by path: hardly tested", grants, denials, tooMuch, byPath)
	}
}

// The index only skips comparisons without cost. Claims that are expensive to compare are compared
// and counted as without an index.
func TestIndexSparesNoneOfWhatIsCounted(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("apiVersion: " + APIVersion + "\nkind: " + Kind + "\nrules:\n")
	for i := range 300 {
		values := make([]string, 20)
		for j := range values {
			values[j] = fmt.Sprintf("h%d-%d", i, j)
		}
		fmt.Fprintf(&text, "- {name: r%d, subjects: [{identities: [ci], claims: {groups: [%s]}}], allow: [{repositories: [a], actions: [pull]}]}\n", i, strings.Join(values, ", "))
	}
	text.WriteString("- {name: last, subjects: [{identities: [ci], claims: {sub: [x]}}], allow: [{repositories: [a], actions: [pull]}]}\n")
	policy := parseText(t, text.String())
	for groups, isTooMuch := range map[int]bool{10: false, 900: true} {
		s := policy.Decide(inGroups(groups), "", scopesOf(t, "repository:a:pull")).Scopes[0]
		if isRefused := s.Granted == nil && strings.Contains(s.Reason, "too much was compared"); isRefused != isTooMuch {
			t.Errorf("%d groups: %+v", groups, s)
		}
	}
}

// If no rule is for the service, the reason names the first rule for the subject, regardless of how
// it is found.
func TestIndexKnowsTheFirstRule(t *testing.T) {
	t.Parallel()
	wide := func(from, to int) (text string) {
		for i := from; i < to; i++ {
			text += fmt.Sprintf("- {name: r%d, services: [other], subjects: [{namespaces: ['*']}], allow: [{repositories: [p%d/x], actions: [pull]}]}\n", i, i)
		}
		return text
	}
	const own = "- {name: own, services: [other], subjects: [{namespaces: [team-a]}], allow: [{repositories: ['**'], actions: [pull]}]}\n"
	const public = "- {name: public, services: [other], anonymous: true, allow: [{repositories: ['**'], actions: [pull]}]}\n"
	for want, rules := range map[string]string{"r0": wide(0, 10) + own, "own": own + wide(0, 10), "public": public + wide(0, 10)} {
		policy := policyOf(t, []string{rules}, "")
		if !strings.Contains(fmt.Sprint(policy.isByPath), "true") {
			t.Fatalf("%s: no rule is found by path", want)
		}
		s := policy.Decide(Subject{Identity: someone()}, "here", scopesOf(t, "repository:p3/x:pull")).Scopes[0]
		if !strings.Contains(s.Reason, `none is for the service "here" (rule `+want+" is for other)") {
			t.Errorf("want rule %s: %s", want, s.Reason)
		}
	}
}

// A rule for the catalog is not found by the path of a repository.
func TestIndexFindsTheCatalog(t *testing.T) {
	t.Parallel()
	var rules []string
	for i := range 10 {
		rules = append(rules, fmt.Sprintf("- {name: r%d, subjects: [{namespaces: ['*']}], allow: [{repositories: [p%d/x], actions: [pull]}]}\n", i, i))
	}
	rules = append(rules, "- {name: both, subjects: [{namespaces: ['*']}], allow: [{repositories: [p/x], actions: [pull]}, {registry: [catalog], actions: ['*']}]}\n")
	if d := policyOf(t, rules, "").Decide(Subject{Identity: someone()}, "", scopesOf(t, "registry:catalog:*")); len(d.Granted()) != 1 {
		t.Errorf("%+v", d)
	}
}

// A rule whose comparison costs something is compared for each repository.
func TestDearRulesAreNotFoundByPath(t *testing.T) {
	t.Parallel()
	for more, want := range map[string]bool{"": true, ", claims: {groups: [a]}": false, ", condition: 'claims.a == \"a\"'": false} {
		var rules []string
		for i := range 10 {
			rules = append(rules, fmt.Sprintf("- {name: r%d, subjects: [{identities: [ci]%s}], allow: [{repositories: [p%d/x], actions: [pull]}]}\n", i, more, i))
		}
		if got := slices.Contains(policyOf(t, rules, "").isByPath, true); got != want {
			t.Errorf("%q: found by path: %v", more, got)
		}
	}
}
