package objectstatus

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const filePolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: ceiling, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ["{namespace}/**", "shared/*", "*/tools", "tree/**/leaf", "flat/*"], actions: [pull]}]}
- {name: public, subjects: [{namespaces: [team-a]}], services: [other.example.com], allow: [{repositories: ["public/**"], actions: [pull]}]}
- {name: only-cd, subjects: [{namespaces: [team-a], serviceAccounts: [cd]}], requests: true, allow: [{repositories: ["cd/**"], actions: [pull, push]}]}
- {name: on-arm, subjects: [{serviceAccounts: [gpu], nodes: ["arm-*"]}], requests: true, allow: [{repositories: ["arm/**"], actions: [pull]}]}
- {name: on-gpu, subjects: [{serviceAccounts: [gpu], condition: 'kubernetes.node.startsWith("gpu")'}], requests: true, allow: [{repositories: ["gpu/**"], actions: [pull]}]}
deny:
- {name: one-node, subjects: [{namespaces: ["*"], nodes: [node-7]}]}
- {name: bad-node, subjects: [{serviceAccounts: [tested], condition: 'kubernetes.node.startsWith("bad")'}]}
- {name: gone, subjects: [{namespaces: [team-a], serviceAccounts: [old]}]}
`

// newTestJudge returns a judge with the objects of one namespace and its ServiceAccounts. The first
// object is judged.
func newTestJudge(t *testing.T, text string, within []string, services []string, requests ...*policy.Request) *judge {
	t.Helper()
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(text)}))(t)
	j := &judge{policy: p, services: services, cluster: "one", allows: map[string][]pattern.Pattern{}, counts: map[string]bool{}}
	for _, w := range within {
		j.within = append(j.within, pattern.Pattern(w))
	}
	for _, rule := range p.WrittenRules() {
		for _, allowed := range rule.Allow {
			j.allows[rule.Name] = append(j.allows[rule.Name], allowed.Repositories...)
		}
	}
	j.account = func(namespace, name string) (kube.ServiceAccount, bool, error) {
		if name == "absent" {
			return kube.ServiceAccount{}, false, nil
		}
		return kube.ServiceAccount{Namespace: namespace, Name: name, Objects: policy.Objects{
			Policies: policy.NewPolicies(j.within), Requests: policy.NewRequests(name, requests),
		}}, true, nil
	}
	return j
}

// request is an object of the namespace team-a.
func request(name string, accounts, repositories, actions []string) *kube.PolicyObject {
	all := func(list []string) (out []any) {
		for _, text := range list {
			out = append(out, text)
		}
		return out
	}
	spec := map[string]any{"serviceAccounts": all(accounts), "repositories": all(repositories), "actions": all(actions)}
	return &kube.PolicyObject{
		ObjectRef: kube.ObjectRef{Resource: "repositoryaccesses", Namespace: "team-a", Name: name}, UID: "uid", Generation: 3,
		Request: policy.ParseRequest("team-a", name, spec), Remembered: policyobjects.Remember(policy.KindRequest, name, spec, nil),
	}
}

var allObjects = []string{"**"}

func TestExtents(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what       string
		accounts   string
		repository string
		actions    string
		within     []string
		services   string
		want       string // extent, rules, registries
		reason     string
		remedy     string
	}{
		{what: "whole", repository: "team-a/web", want: "All ceiling"},
		{what: "a pattern, whole", repository: "team-a/**", want: "All ceiling"},
		{what: "one component of any", repository: "shared/*", want: "All ceiling"},
		{what: "between", repository: "tree/**/leaf", want: "All ceiling"},
		{what: "within the pattern", repository: "tree/x/**/y/leaf", want: "All ceiling"},
		{what: "another's", repository: "team-b/web", want: "None", reason: "no rule for one/team-a/web allows pull on team-b/web; a RepositoryAccess asks for it, beyond the ceiling of rule ceiling", remedy: "an administrator of Pullpass has to allow"},
		{what: "another action", repository: "team-a/web", actions: "pull,push", want: "Part ceiling", reason: "push"},
		{what: "another action of a pattern", repository: "team-a/**", actions: "pull,push", want: "Part ceiling", reason: "push"},
		{what: "no such action", repository: "team-a/web", actions: "push", want: "None", reason: "push"},
		{what: "whatever may be done", repository: "cd/x", accounts: "cd", actions: "*", want: "Part only-cd", reason: "delete"},
		{what: "everything", repository: "**", want: "Part ceiling", reason: "team-a/web gets of it team-a/** and shared/* and */tools; beyond that, no rule"},
		{what: "deeper than the rule", repository: "flat/**", want: "Part ceiling", reason: "team-a/web gets of it flat/tools and flat/*"},
		{what: "crosswise", repository: "*/web", want: "Part ceiling", reason: "gets of it team-a/web and shared/web"},
		{what: "crosswise in a component", repository: "sha*/x-*", want: "Part ceiling", reason: "gets of it shared/x-*"},
		{what: "nothing in common", repository: "team-b/web/**", want: "None", reason: "no rule"},
		{what: "less by within", repository: "team-a/**", within: []string{"team-a/web/**"}, want: "Part ceiling", reason: "gets of it team-a/web/**"},
		{what: "nothing by within", repository: "team-a/**", within: []string{"team-b/**"}, want: "None"},
		{what: "nothing at all by within", repository: "team-a/web", within: []string{"team-b/**"}, want: "None", reason: "within team-b/**"},
		{what: "it cannot be told", repository: "*-x/web", within: []string{"y-*/web"}, want: "None"},
		{what: "it cannot be told of this", repository: "shared/a*", within: []string{"shared/*b"}, want: "Unknown", reason: "the patterns alone do not tell", remedy: "pullpass explain"},
		{what: "denied", accounts: "old", repository: "team-a/web", want: "None", reason: "the deny rule gone refuses one/team-a/old"},
		{what: "denied by a node", accounts: "tested", repository: "team-a/web", want: "Unknown ceiling", reason: "only a token decides whether deny rule bad-node matches", remedy: "use pullpass explain with the token"},
		{what: "not granted on any node", accounts: "tested", repository: "team-b/web", want: "None", reason: "no rule for one/team-a/tested allows pull on team-b/web"},
		{what: "granted by a node", accounts: "gpu", repository: "gpu/x", want: "Unknown", reason: "only a token decides whether rule on-gpu matches"},
		{what: "granted on some nodes", accounts: "gpu", repository: "arm/x", want: "Unknown", reason: "only a token decides whether rule on-arm matches"},
		{what: "a pattern, granted by a node", accounts: "gpu", repository: "gpu/x/**", want: "Unknown", reason: "only a token decides whether rule on-gpu matches"},
		{what: "not by that rule", accounts: "gpu", repository: "team-b/web", want: "None", reason: "no rule for one/team-a/gpu"},
		{what: "no account", accounts: "absent", repository: "team-a/web", want: "None", reason: "there is no ServiceAccount absent in the namespace team-a", remedy: "correct the name"},
		{what: "for some", accounts: "web,absent,old", repository: "team-a/web", want: "Part ceiling", reason: "there is no ServiceAccount absent in the namespace team-a (and so for 1 more ServiceAccounts)"},
		{what: "by two rules", accounts: "cd,web", repository: "cd/x", want: "Part only-cd", reason: "no rule for one/team-a/web"},
		{what: "another registry", repository: "public/x", services: "one.example.com,other.example.com", want: "All public other.example.com"},
		{what: "no other registry", repository: "public/x", services: "one.example.com", want: "None", reason: "no rule for one/team-a/web allows pull on public/x"},
		{what: "every registry", repository: "team-a/x", services: "one.example.com,other.example.com", want: "All ceiling"},
	} {
		test.accounts = cmp.Or(test.accounts, "web")
		test.actions = cmp.Or(test.actions, "pull")
		if test.within == nil {
			test.within = allObjects
		}
		test.services = cmp.Or(test.services, "one.example.com")
		o := request("r", strings.Split(test.accounts, ","), []string{test.repository}, strings.Split(test.actions, ","))
		j := newTestJudge(t, filePolicy, test.within, strings.Split(test.services, ","), o.Request)
		s := testkit.Value(j.status(t.Context(), o))(t)
		r := s.Repositories[0]
		got := strings.Join(append(append([]string{string(r.Granted)}, r.Rules...), r.Services...), " ")
		if got != test.want || !strings.Contains(r.Reason, test.reason) || !strings.Contains(r.Remedy, test.remedy) || (r.Reason == "") != (r.Granted == policyobjects.All) {
			t.Errorf("%s: %s of %s: %q, %q, remedy %q; want %q, %q", test.what, test.actions, test.repository, got, r.Reason, r.Remedy, test.want, test.reason)
		}
		isGranted := map[policyobjects.Extent]string{policyobjects.All: "True", policyobjects.Unknown: "Unknown"}[r.Granted]
		isGranted = cmp.Or(isGranted, "False")
		if c := s.Conditions[1]; c.Type != policyobjects.Granted || c.Status != isGranted || c.ObservedGeneration != 3 || c.Message == "" {
			t.Errorf("%s: %+v", test.what, c)
		}
	}
}

// The rules allow names with few and with many components, but not those between.
func TestGapBetweenRules(t *testing.T) {
	t.Parallel()
	const gap = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: flat, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ["*", "*/*"], actions: [pull]}]}
- {name: deep, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ["*/*/*/*/**"], actions: [pull]}]}
`
	o := request("r", []string{"web"}, []string{"**"}, []string{"pull"})
	s := testkit.Value(newTestJudge(t, gap, allObjects, []string{"x"}, o.Request).status(t.Context(), o))(t)
	if got := s.Repositories[0].Granted; got != policyobjects.Part {
		t.Errorf("%s is granted, but nothing with three components is", got)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ accounts, repositories, accepted, granted, message string }{
		{"web", "team-a/a,team-a/b", "Valid", "AllGranted", "2 of 2 repositories are granted"},
		{"web", "team-b/b,team-a/a,team-b/c", "Valid", "PartlyGranted", "1 of 3 repositories are granted; team-b/b: no rule"},
		{"web", "team-b/b", "Valid", "NotGranted", "0 of 1 repositories are granted; team-b/b: no rule"},
		{"old", "team-a/b", "Valid", "Denied", "the deny rule gone refuses"},
		{"web", "team-a/b,{namespace}/x", "Invalid", "Invalid", "nothing of it counts"},
	} {
		o := request("r", strings.Split(test.accounts, ","), strings.Split(test.repositories, ","), []string{"pull"})
		s := testkit.Value(newTestJudge(t, filePolicy, allObjects, []string{"x"}, o.Request).status(t.Context(), o))(t)
		if s.ObservedGeneration != 3 || len(s.Conditions) != 2 || s.Conditions[0].Reason != test.accepted || s.Conditions[1].Reason != test.granted || !strings.HasPrefix(s.Conditions[1].Message, test.message) {
			t.Errorf("%s for %s: %+v", test.repositories, test.accounts, s.Conditions)
		}
		if test.accepted == "Invalid" && (!strings.Contains(s.Conditions[0].Message, "repositories[1]: placeholders") || s.Repositories != nil) {
			t.Errorf("%+v", s)
		}
	}
	j := newTestJudge(t, filePolicy, allObjects, []string{"x"})
	j.account = func(string, string) (kube.ServiceAccount, bool, error) {
		return kube.ServiceAccount{}, false, errors.New("down")
	}
	if _, err := j.status(t.Context(), request("r", []string{"web"}, []string{"a"}, []string{"pull"})); err == nil {
		t.Error("what cannot be known is said")
	}
}

// Grants at the intersection of several patterns are not reported as refused, although none of the
// patterns can be tested as a whole.
func TestWherePatternsMeet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		allowed, within string
		want            policyobjects.Extent
	}{
		{"b/**/team-a/**", "b/team-a", policyobjects.Part},
		{"**", "b" + strings.Repeat("/a", 17) + "/**", policyobjects.Unknown},
		{"**", "c" + strings.Repeat("/a", 17) + "/**", policyobjects.None},
	} {
		text := "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n" +
			"- {name: r, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: [\"" + test.allowed + "\"], actions: [pull]}]}"
		o := request("r", []string{"web"}, []string{"b/**"}, []string{"pull"})
		s := testkit.Value(newTestJudge(t, text, []string{test.within}, []string{"x"}, o.Request).status(t.Context(), o))(t)
		if got := s.Repositories[0]; got.Granted != test.want {
			t.Errorf("b/** with %s within %s: %+v", test.allowed, test.within, got)
		}
	}
}

// Requests that have no room behind other objects are not reported as requested.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	var all []*policy.Request
	for i := range 5 {
		var repositories []string
		for k := range 120 {
			repositories = append(repositories, fmt.Sprintf("team-a/r%d-%d", i, k))
		}
		all = append(all, request(fmt.Sprint("r", i), []string{"web"}, repositories, []string{"pull"}).Request)
	}
	o := request("r4", []string{"web"}, []string{"team-a/r4-0", "team-a/r4-119"}, []string{"pull"})
	all[4] = o.Request
	j := newTestJudge(t, filePolicy, allObjects, []string{"x"}, all...)
	s, err := j.status(t.Context(), o)
	testkit.Must(t, err)
	if s.Conditions[1].Reason != "AllGranted" {
		t.Fatalf("%+v", s)
	}
	var more []string
	for k := range 100 {
		more = append(more, fmt.Sprint("team-a/more-", k))
	}
	o = request("r5", []string{"web"}, []string{"team-a/x"}, []string{"pull"})
	j = newTestJudge(t, filePolicy, allObjects, []string{"x"}, append(all, request("r49", []string{"web"}, more, []string{"pull"}).Request, o.Request)...)
	if s, err = j.status(t.Context(), o); err != nil || s.Repositories[0].Granted != policyobjects.None || !strings.HasPrefix(s.Repositories[0].Reason, "too many repositories are asked for") {
		t.Errorf("%+v %v", s, err)
	}
}

var randomPolicies = flag.Int("random-policies", 3000, "how many random policies are judged")

// For random policies and requests, the status agrees with the decision about each name.
func TestStatusAgreesWithDecisions(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	components := []string{"a", "b", "ab", "*", "a*", "*b", "**", "team-a", "{namespace}"}
	path := func(from []string, stars int) string {
		for {
			var all []string
			for range 1 + random.IntN(4) {
				all = append(all, from[random.IntN(len(from))])
			}
			text := strings.Join(all, "/")
			if _, err := pattern.Parse(text); err == nil && strings.Count(text, "**") <= stars {
				return text
			}
		}
	}
	actions := [][]string{{"pull"}, {"push"}, {"pull", "push"}, {"*"}}
	extents := map[policyobjects.Extent]int{}
	for range *randomPolicies {
		var rules []string
		for i := range 1 + random.IntN(3) {
			var patterns []string
			for range 1 + random.IntN(2) {
				patterns = append(patterns, fmt.Sprintf("%q", path(components, 2)))
			}
			rules = append(rules, fmt.Sprintf("- {name: r%d, subjects: [{namespaces: [team-a]}], requests: %t, allow: [{repositories: [%s], actions: [%s]}]}",
				i, random.IntN(3) > 0, strings.Join(patterns, ", "), strings.ReplaceAll(strings.Join(actions[random.IntN(len(actions))], ", "), "*", `"*"`)))
		}
		text := "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n" + strings.Join(rules, "\n")
		within := []string{path(components, 2)}
		if random.IntN(2) == 0 {
			within = append(within, "**")
		}
		asked, wants := path(components[:len(components)-1], 1), actions[random.IntN(len(actions))]
		o := request("r", []string{"web"}, []string{asked}, wants)
		j := newTestJudge(t, text, within, []string{"x"}, o.Request)
		s := testkit.Value(j.status(t.Context(), o))(t)
		extent := s.Repositories[0].Granted
		extents[extent]++
		account, _, _ := j.account("team-a", "web")
		subject := policy.Subject{Identity: identityOf("web"), Objects: account.Objects}
		granted, refused := 0, 0
		for range 40 {
			name := path([]string{"a", "b", "ab", "abb", "team-a", "c"}, 0)
			if !pattern.Pattern(asked).Match(name, nil, new(int)) {
				continue
			}
			d := j.policy.Decide(subject, "x", []registryauth.Scope{{Type: "repository", Name: name, Actions: wants}}).Scopes[0]
			if len(d.Granted) > 0 {
				granted++
			}
			if d.Reason != "" {
				refused++
			}
			if extent == policyobjects.All && d.Reason != "" || extent == policyobjects.None && len(d.Granted) > 0 {
				t.Fatalf("%s, within %v\n%s of %s is said to be granted: %s; of %s: %v %s", text, within, wants, asked, extent, name, d.Granted, d.Reason)
			}
		}
		if granted > 0 && refused == 0 && extent == policyobjects.None {
			t.Fatal(text)
		}
	}
	for _, e := range (policyobjects.Extent("")).Values() {
		if extents[e] < 10 {
			t.Errorf("%v: %s is hardly tested", extents, e)
		}
	}
}

func identityOf(account string) *oidc.Identity {
	return &oidc.Identity{Cluster: "one", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: account}}}
}

// manyPairs returns a valid object with the maximum amount of work.
func manyPairs() *kube.PolicyObject {
	var accounts, repositories []string
	for i := range 64 {
		accounts = append(accounts, fmt.Sprint("sa-", i))
	}
	for i := range 128 {
		repositories = append(repositories, fmt.Sprintf("team-a/x%03d/**", i))
	}
	return request("r", accounts, repositories, []string{"pull", "push"})
}

// The work for one object is bounded. The rest is reported as unknown.
func TestStepsOfOneObject(t *testing.T) {
	t.Parallel()
	o := manyPairs()
	j := newTestJudge(t, filePolicy, allObjects, []string{"x", "y"}, o.Request)
	s := testkit.Value(j.status(t.Context(), o))(t)
	if c := s.Conditions[1]; c.Status != "Unknown" || c.Reason != "TooMany" || !strings.Contains(c.Message, "write several objects") {
		t.Errorf("%+v", c)
	}
	first, last := s.Repositories[0], s.Repositories[127]
	if first.Granted != policyobjects.Part || last.Granted != policyobjects.Unknown || !strings.Contains(last.Reason, "not judged") || last.Remedy == "" {
		t.Errorf("first %+v, last %+v", first, last)
	}
	known := 0
	for _, r := range s.Repositories {
		if r.Granted != policyobjects.Unknown {
			known++
		}
	}
	if known < 2 || known > 64 {
		t.Errorf("%d of 128 repositories are judged", known)
	}
}

// When the steps are spent, neither the next ServiceAccount nor the next pattern of a rule is
// examined.
func TestNoStepsAreLeft(t *testing.T) {
	t.Parallel()
	const asked = "flat/**"
	o := request("r", []string{"web"}, []string{asked}, []string{"pull"})
	j := newTestJudge(t, filePolicy, allObjects, []string{"x"}, o.Request)
	account, _, err := j.account("team-a", "web")
	testkit.Must(t, err)
	id := oidc.Identity{Cluster: "one", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web"}}}
	known := knownAccount{"web", true, policy.Subject{Identity: &id, Objects: account.Objects}}
	for _, isSpent := range []bool{false, true} {
		before := 0
		if isSpent {
			before = maxSteps + 1
		}
		spent := before
		if _, err := j.at(t.Context(), "x", o, []knownAccount{known}, asked, &spent); err != nil || (spent == before) != isSpent {
			t.Errorf("%d steps of a ServiceAccount after %d, %v", spent-before, before, err)
		}
		spent = 0
		a := asker{policy: j.policy, subject: known.subject, service: "x", actions: []string{"pull"}, spent: &spent}
		_, trace := a.explain(asked)
		spent = before
		if found := a.parts(asked, trace, j.allows, j.within); (len(found.patterns) == 0) != isSpent || isSpent && spent > before+lookSteps*len(trace.Rules) {
			t.Errorf("%q after %d steps, %d more", found.patterns, before, spent-before)
		}
	}
}

// The work for an object ends when its context ends.
func TestContextEndsJudging(t *testing.T) {
	t.Parallel()
	o := manyPairs()
	j := newTestJudge(t, filePolicy, allObjects, []string{"x"}, o.Request)
	ctx, cancel := context.WithCancel(t.Context())
	account := j.account
	j.account = func(namespace, name string) (kube.ServiceAccount, bool, error) {
		cancel()
		return account(namespace, name)
	}
	if s, err := j.status(ctx, o); !errors.Is(err, context.Canceled) || s != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestStatusOfAnObjectBeyondItsBudget(t *testing.T) {
	t.Parallel()
	o := request("r", []string{"web"}, []string{"team-a/web"}, []string{"pull"})
	o.Request, o.Beyond, o.Remembered = nil, true, o.Remembered.Forget()
	s := testkit.Value(newTestJudge(t, filePolicy, allObjects, []string{"x"}).status(t.Context(), o))(t)
	if a, g := s.Conditions[0], s.Conditions[1]; a.Type != "Accepted" || a.Status != "False" || a.Reason != "TooMany" || g.Type != "Granted" || g.Status != "False" || g.Reason != "TooMany" || s.Repositories != nil {
		t.Errorf("%+v", s)
	}
}
