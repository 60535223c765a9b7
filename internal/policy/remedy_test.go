package policy

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// command returns the command in a remedy, or "".
func command(t *testing.T, remedy string) string {
	t.Helper()
	_, arguments, found := strings.Cut(remedy, "kubectl annotate serviceaccount ")
	if !found {
		return ""
	}
	plainText, value, _ := strings.Cut(arguments, "='")
	value, quoted := strings.CutSuffix(value, "'")
	allowed := func(text, others string) bool {
		return !strings.ContainsFunc(text, func(r rune) bool {
			return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune(others, r)
		})
	}
	if !quoted || !allowed(plainText, " -._/") || !allowed(value, " -._/:,*") {
		t.Errorf("not fit for a shell: %q", remedy)
	}
	return "kubectl annotate serviceaccount " + arguments
}

// run gives the command to a shell and returns the arguments of kubectl.
func run(t *testing.T, command string) []string {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "sh", "-eu", "-c", `kubectl() { for argument; do printf '%s\n' "$argument"; done; }; `+command)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("sh (every system has one): %v\n%s", err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

const askPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: asked
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["**"], actions: ["*"]}]
`

func TestRemedyRunsInAShell(t *testing.T) {
	t.Parallel()
	policy := parseText(t, askPolicy)
	const key = "pullpass.dev/repositories"
	for _, test := range []struct {
		annotations map[string]string
		want        []string
	}{
		{nil, []string{key + "=example.com:5000/a_b/c:pull,push"}},
		{map[string]string{"other": "x"}, []string{key + "=example.com:5000/a_b/c:pull,push"}},
		{map[string]string{key: ""}, []string{"--overwrite", key + "=example.com:5000/a_b/c:pull,push"}},
		{map[string]string{key: "\ta/*:delete\n\nb/**  "}, []string{"--overwrite", key + "=a/*:delete b/** example.com:5000/a_b/c:pull,push"}},
	} {
		remedy := policy.Decide(Subject{Identity: account(t, "prod/team-a/web.v1"), Annotations: test.annotations}, "", scopesOf(t, "repository:example.com:5000/a_b/c:pull,push")).Scopes[0].Remedy
		want := append([]string{"annotate", "serviceaccount", "web.v1", "-n", "team-a"}, test.want...)
		if got := run(t, command(t, remedy)); !slices.Equal(got, want) {
			t.Errorf("%s\ngives kubectl %q\nwant         %q", remedy, got, want)
		}
	}
}

// Clients name the repository, owners of ServiceAccounts write annotations, and a Subject can be
// made without a token.
func TestRemedyTakesNothingUnparsed(t *testing.T) {
	t.Parallel()
	policy := parseText(t, askPolicy)
	named := func(namespace, name string) *oidc.Identity {
		id := account(t, "prod/team-a/web")
		id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name = namespace, name
		return id
	}
	long := strings.Repeat("a", 180)
	for _, test := range []struct {
		id         *oidc.Identity
		annotation string
		repository string
		want       string
	}{
		{account(t, "prod/team-a/web"), "a", "x';reboot;'", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for x';reboot;':pull"},
		{account(t, "prod/team-a/web"), "a", "x$(id)", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for x$(id):pull"},
		{account(t, "prod/team-a/web"), "a", "**", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for **:pull"},
		{account(t, "prod/team-a/web"), "a", "x\ny", `let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for "x\ny:pull"`},
		{account(t, "prod/team-a/web"), "a", "x y", `let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web ask for "x y:pull"`},
		{account(t, "prod/team-a/web"), "a';reboot;'", "x", "correct the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web, and let it ask for pull on x"},
		{account(t, "prod/team-a/web"), "a\u00a0b", "x", "correct the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/web, and let it ask for pull on x"},
		{named("team-a", "-f"), "a", "x", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/-f ask for x:pull"},
		{named("team-a", "a\n'"), "a", "x", `let the annotation pullpass.dev/repositories of the ServiceAccount "prod/team-a/a\n'" ask for x:pull`},
		{named("a;id", "web"), "a", "x", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/a;id/web ask for x:pull"},
		{named("team-a", ""), "a", "x", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/ ask for x:pull"},
		{named("team-a", long), long + " " + long, "x", "let the annotation pullpass.dev/repositories of the ServiceAccount prod/team-a/" + long + " ask for x:pull"},
	} {
		subject := Subject{Identity: test.id, Annotations: map[string]string{"pullpass.dev/repositories": test.annotation}}
		if got := policy.Decide(subject, "", []registryauth.Scope{scopeNamed(test.repository)}).Scopes[0].Remedy; got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// Names are plain at every position.
func TestRemedyNamesArePlain(t *testing.T) {
	t.Parallel()
	id := account(t, "prod/team-a/web")
	id.Cluster, id.Kubernetes.ServiceAccount.Name = "a\nb", "c\nd"
	for _, test := range []struct {
		subject Subject
		scope   string
		want    string
	}{
		{Subject{Identity: id}, "registry:catalog:*", `an administrator of Pullpass has to allow registry:catalog:* to "a\nb/team-a/c\nd"; no rule does`},
		{Subject{Identity: id, Annotations: map[string]string{"pullpass.dev/repositories": "?"}}, "repository:x:pull",
			`correct the annotation pullpass.dev/repositories of the ServiceAccount "a\nb/team-a/c\nd", and let it ask for pull on x`},
		{Subject{Identity: &oidc.Identity{Cluster: "a\nb", Kubernetes: oidc.KubernetesIdentity{Namespace: "n", ServiceAccount: oidc.ObjectRef{Name: "s"}}}}, "repository:x:pull",
			`run in cluster "a\nb": kubectl annotate serviceaccount s -n n pullpass.dev/repositories='x:pull'`},
	} {
		if got := parseText(t, askPolicy).Decide(test.subject, "", scopesOf(t, test.scope)).Scopes[0].Remedy; got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// Everything here has the maximum length: the key of an annotation, names and actions. A truncated
// remedy has no command.
func TestRemedyIsBounded(t *testing.T) {
	t.Parallel()
	key := strings.Repeat(strings.Repeat("k", 49)+".", 5) + "dev/" + strings.Repeat("k", 63)
	policy := parseText(t, strings.Replace(askPolicy, "pullpass.dev/repositories", key, 1))
	pulling := parseText(t, strings.NewReplacer("pullpass.dev/repositories", "k", `actions: ["*"]`, "actions: [pull]").Replace(askPolicy))
	var actions []string
	for i := range 15 {
		actions = append(actions, strings.Repeat(string(rune('a'+i)), 32))
	}
	many := append(actions, "pull")
	id := account(t, "prod/team-a/"+strings.Repeat("s", 180))
	name := strings.Repeat("x", 190)
	for what, test := range map[string]struct {
		policy      *Policy
		annotations map[string]string
		actions     []string
	}{
		"no rule allows it":              {&Policy{}, nil, many},
		"a fault":                        {policy, map[string]string{key: "?"}, many},
		"in words":                       {policy, nil, many},
		"a command that alone would fit": {pulling, nil, []string{"pull", "push"}},
	} {
		scope := registryauth.Scope{Type: "repository", Name: name, Actions: test.actions}
		got := test.policy.Decide(Subject{Identity: id, Annotations: test.annotations}, "", []registryauth.Scope{scope}).Scopes[0].Remedy
		if len(got) != maxRemedyBytes || !strings.HasSuffix(got, "...") || strings.Contains(got, "kubectl") {
			t.Errorf("%s: %d bytes: %s", what, len(got), got)
		}
	}
}

// A command that just fits is not left out.
func TestLongestCommand(t *testing.T) {
	t.Parallel()
	policy, longest := parseText(t, askPolicy), 0
	id := account(t, "prod/team-a/"+strings.Repeat("s", 180))
	for n := range 250 {
		remedy := policy.Decide(Subject{Identity: id}, "", []registryauth.Scope{scopeNamed(strings.Repeat("x", n+1))}).Scopes[0].Remedy
		if strings.Contains(remedy, "kubectl") {
			longest = max(longest, len(remedy))
		}
	}
	if longest != maxRemedyBytes {
		t.Errorf("the longest command has %d bytes", longest)
	}
}

// Each command in a remedy removes nothing and adds grants, until the annotations cannot grant
// more.
func TestRemediesHelp(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(3, 4))}
	commands := 0
	for round := range *randomPolicies {
		var rules []string
		for i := range 2 + w.IntN(5) {
			rule := w.rule(fmt.Sprintf("r%d", i))
			for i%3 != 0 && !strings.Contains(rule, "annotation: ") {
				rule = w.rule(fmt.Sprintf("r%d", i))
			}
			rules = append(rules, rule)
		}
		policy := policyOf(t, rules, "")
		subject, service, requested := w.asker(), w.pick("r1", "r2"), w.request()
		most := Subject{Identity: subject.Identity, Annotations: map[string]string{"k1": "**:*", "k2": "**:*"}}
		if w.IntN(3) == 0 {
			subject.Annotations = nil
		}
		best := policy.Decide(most, service, requested)
		for i := range requested {
			fail := func(what string, d ScopeDecision) {
				t.Errorf("round %d: %s\n%s%s\n%+v asks for %s\n%+v", round, what, strings.Join(rules, ""), service, subject, d.Requested, d)
			}
			s, now := policy.Decide(subject, service, requested).Scopes[i], subject
			for {
				if (s.Remedy == "") != (s.Reason == "") {
					fail("a reason without a remedy, or the other way round", s)
				}
				arguments := command(t, s.Remedy)
				if arguments == "" {
					break
				}
				commands++
				fields, value, _ := strings.Cut(strings.TrimSuffix(arguments, "'"), "='")
				key := fields[strings.LastIndexByte(fields, ' ')+1:]
				if _, present := now.Annotations[key]; present != strings.Contains(fields, " --overwrite ") {
					fail("overwrites what is not known, or fails to overwrite", s)
				}
				before := policy.Decide(now, service, requested)
				now.Annotations = map[string]string{"k1": now.Annotations["k1"], "k2": now.Annotations["k2"], key: value}
				after := policy.Decide(now, service, requested)
				for j := range requested {
					if !includes(after.Scopes[j].Granted, before.Scopes[j].Granted) {
						fail("the remedy takes something away", s)
					}
				}
				if includes(s.Granted, after.Scopes[i].Granted) {
					fail("the remedy does not help", s)
					break
				}
				s = after.Scopes[i]
			}
			if faulty := strings.HasPrefix(s.Remedy, "correct the annotation"); !faulty && s.Reason != "" && !includes(s.Granted, best.Scopes[i].Granted) {
				fail(fmt.Sprintf("annotations could give %q", best.Scopes[i].Granted), s)
			}
		}
	}
	if commands < *randomPolicies/4 {
		t.Errorf("only %d commands: hardly anything is tested", commands)
	}
}

// The remedy names the change for the owner of the policy at once and correctly.
func TestRemedyTellsWhatNoRuleAllows(t *testing.T) {
	t.Parallel()
	policy := parseText(t, strings.Replace(askPolicy, `actions: ["*"]`, `actions: [pull, delete]`, 1))
	subject := Subject{Identity: account(t, "prod/team-a/web"), Annotations: map[string]string{"pullpass.dev/repositories": "x:delete"}}
	const want = "an administrator of Pullpass has to allow push, sign on x to prod/team-a/web; for the rest, " +
		"run in cluster prod: kubectl annotate serviceaccount web -n team-a --overwrite pullpass.dev/repositories='x:delete x:pull'"
	if got := policy.Decide(subject, "", scopesOf(t, "repository:x:pull,push,delete,sign")).Scopes[0].Remedy; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// An annotation that would be too long counts for nothing as a whole, so no command proposes it.
func TestNoCommandForAFullAnnotation(t *testing.T) {
	t.Parallel()
	policy := parseText(t, askPolicy)
	for _, test := range []struct {
		name       string
		annotation string
		want       bool
	}{
		{"empty", "", true},
		{"room for one item", strings.Repeat("a ", maxAnnotationItems-1), true},
		{"full", strings.Repeat("a ", maxAnnotationItems), false},
		{"room for seven bytes", strings.Repeat("a", 100) + " " + strings.Repeat("b", MaxAnnotationBytes-101-len(" app:push")), true},
		{"room for six bytes", strings.Repeat("a", 100) + " " + strings.Repeat("b", MaxAnnotationBytes-100-len(" app:push")), false},
	} {
		id := someone()
		subject := Subject{Identity: id, Annotations: map[string]string{"pullpass.dev/repositories": test.annotation}}
		e := evaluation{policy: policy, subject: subject}
		if _, ok := e.annotate(&policy.rules[0], annotationItem{pattern: "app", actions: action.Push}); ok != test.want {
			t.Errorf("%s: %t", test.name, ok)
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 200)
	for s, want := range map[string]bool{"a~!": true, long: true, long + "a": false, "a b": false, "a\x7f": false, "ä": false, "a\n": false} {
		if (Plain(s) == s) != want {
			t.Errorf("%.10q of %d bytes: %t", s, len(s), !want)
		}
	}
}
