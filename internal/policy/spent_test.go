package policy

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// inGroups is an identity with n groups.
func inGroups(n int) Subject {
	claims := identity.Claims{"sub": "x", "ref": "refs/heads/main", "build_branch": strings.Repeat("ab", 4000)}
	groups := make([]string, n)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%06d", i)
	}
	claims["groups"] = groups
	return Subject{Identity: &oidc.Identity{Subject: "x", External: &identity.External{Provider: "ci", Profile: identity.Buildkite, Claims: claims}}}
}

// many returns a policy of rules, or denials, with one subject that does not match, and a last one
// with a condition. The subject is parsed once, because compiling thousands of conditions takes
// long.
// thousands of conditions takes a while.
func many(t testing.TB, list string, n int, subject string) *Policy {
	t.Helper()
	var files []File
	allow, last := ", allow: [{repositories: [a], actions: [pull]}]", `claims.sub == "x"`
	if list == "deny" {
		files = filesOf("rules", []string{"- {name: all, subjects: [{identities: [ci]}]" + allow + "}\n"})
		allow, last = "", `claims.sub != "x"`
	}
	entries := []string{
		fmt.Sprintf("- {name: r, subjects: [{identities: [ci], %s}]%s}\n", subject, allow),
		fmt.Sprintf("- {name: last, subjects: [{identities: [ci], condition: '%s'}]%s}\n", last, allow),
	}
	p := mustParse(t, append(files, filesOf(list, entries)...)...)
	if list == "deny" {
		p.setDenials(slices.Concat(slices.Repeat(p.deny[:1], n), p.deny[1:]))
	} else {
		p.ruleSet = newRuleSet(slices.Concat(slices.Repeat(p.rules[:1], n), p.rules[1:]), nil)
	}
	return p
}

var dearSubjects = map[string]string{
	"condition": `condition: 'claims.groups.exists(g, g.startsWith("zz"))'`,
	"member":    `condition: '"zz" in claims.groups'`,
	"values":    `claims: {groups: [` + strings.TrimSuffix(strings.Repeat("h000000,", 250), ",") + `]}`,
	"globs":     `claims: {build_branch: [` + strings.TrimSuffix(strings.Repeat(`"*a*b*a*c",`, 250), ",") + `]}`,
}

// Each condition is bounded, but a thousand of them took two seconds.
func TestWhatConditionsCostIsBounded(t *testing.T) {
	t.Parallel()
	subject := inGroups(900)
	for what, dear := range dearSubjects {
		for _, list := range []string{"rules", "deny"} {
			for n, isTooMuch := range map[int]bool{2: false, 300: true} {
				policy := many(t, list, n, dear)
				d := policy.Decide(subject, "", scopesOf(t, "repository:a:pull"))
				s := d.Scopes[0]
				isRefused := s.Granted == nil && strings.Contains(s.Reason, tooMuch)
				if isRefused != isTooMuch || isTooMuch && list == "deny" != (d.DeniedBy != "") || !isTooMuch && s.Reason != "" {
					t.Errorf("%d %s, %s: %q, %+v", n, list, what, d.DeniedBy, s)
				}
				for range 2 {
					if again := policy.Decide(subject, "", scopesOf(t, "repository:a:pull")); !reflect.DeepEqual(again, d) {
						t.Errorf("%d %s, %s: %+v, then %+v", n, list, what, d, again)
					}
				}
			}
		}
	}
}

// If the last condition that could be evaluated spends the budget, later rules that compare claims
// are in doubt. This holds with and without an index.
func TestSpentBeforeClaims(t *testing.T) {
	t.Parallel()
	subject, scopes := inGroups(900), scopesOf(t, "repository:a:pull")
	dear := many(t, "rules", 1, dearSubjects["condition"]).rules[0]
	claims := many(t, "rules", 1, "claims: {ref: [refs/heads/other]}").rules[0]
	after := func(n int) *Policy {
		return &Policy{ruleSet: newRuleSet(append(slices.Repeat([]rule{dear}, n), claims), nil)}
	}
	explained := func(n int) Decision { d, _ := after(n).Explain(subject, "", scopes); return d }
	n := sort.Search(300, func(n int) bool { return strings.Contains(explained(n).Scopes[0].Reason, tooMuch) })
	if n == 0 || n == 300 {
		t.Fatalf("%d conditions are too much", n)
	}
	if d, want := after(n).Decide(subject, "", scopes), explained(n); !reflect.DeepEqual(d, want) {
		t.Errorf("after %d conditions: decided %+v, explained %+v", n, d, want)
	}
}

const tooMuch = "cannot be judged: too much was compared for one request"

// The maximum number of rules with a usual condition, and the token of a large company.
func TestUsualConditionsAreNotTooMuch(t *testing.T) {
	t.Parallel()
	for n, subject := range map[int]string{
		maxRules - 1: `condition: 'claims.sub == "x" && claims.ref.startsWith("refs/tags/")'`,
		80:           `condition: 'claims.groups.exists(g, g == "team-a")'`,
		200:          `claims: {groups: [a, b, c, d, e, f, g, h]}`,
	} {
		if d := many(t, "rules", n, subject).Decide(inGroups(200), "", scopesOf(t, "repository:a:pull")); len(d.Granted()) != 1 {
			t.Errorf("%d rules with %s: %+v", n, subject, d)
		}
	}
}

// Traces include rules for other services, which cost the decision nothing.
func TestOtherServicesCostNothing(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("apiVersion: " + APIVersion + "\nkind: " + Kind + "\nrules:\n")
	for i := range 300 {
		fmt.Fprintf(&text, "- {name: r%d, services: [other], subjects: [{identities: [ci], %s}], allow: [{repositories: [a], actions: [pull]}]}\n", i, dearSubjects["condition"])
	}
	text.WriteString(`- {name: last, subjects: [{identities: [ci], condition: 'claims.sub == "x"'}], allow: [{repositories: [a], actions: [pull]}]}` + "\n")
	policy, scopes := parseText(t, text.String()), scopesOf(t, "repository:a:pull,push")
	d := policy.Decide(inGroups(900), "here", scopes)
	explained, trace := policy.Explain(inGroups(900), "here", scopes)
	if len(d.Granted()) != 1 || !reflect.DeepEqual(explained, d) {
		t.Errorf("decided %+v, explained %+v", d, explained)
	}
	if last := trace.Rules[299].Mismatches; len(last) != 1 || !strings.Contains(last[0], "too much was compared") {
		t.Errorf("what people are told of is not bounded: %q", last)
	}
}

func BenchmarkDecideByConditions(b *testing.B) {
	for name, c := range map[string]struct {
		rules, groups int
		subject       string
	}{
		"usual":   {1000, 10, `condition: 'claims.sub == "x" && claims.ref.startsWith("refs/tags/")'`},
		"claims":  {1000, 10, `claims: {groups: [a, b]}`},
		"hostile": {1000, 900, dearSubjects["condition"]},
	} {
		policy, subject, scopes := many(b, "rules", c.rules, c.subject), inGroups(c.groups), scopesOf(b, "repository:a:pull")
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				policy.Decide(subject, "", scopes)
			}
		})
	}
}
