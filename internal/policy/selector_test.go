package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// labelsOf reads KEY=VALUE, separated by blanks. Known labels are not nil, even if there are none.
func labelsOf(text string) map[string]string {
	set := map[string]string{}
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		set[key] = value
	}
	return set
}

const selectorPolicy = `
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- {name: r, subjects: [{namespaceSelector: %s}], allow: [{repositories: [a], actions: [pull]}]}
`

// The limits hold for both forms. At the limit a selector still matches.
func TestSelectorLimits(t *testing.T) {
	t.Parallel()
	repeat := func(n int, format, separator string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return strings.Join(list, separator)
	}
	long := func(n int) string { return "k0=" + strings.Repeat(" ", n-len("k0=v0")) + "v0" }
	matching := labelsOf(repeat(40, "k%d=v0", " "))
	for _, test := range []struct{ name, selector, fault string }{
		{"bytes", long(4096), ""},
		{"bytes", long(4097), "has 4097 bytes; at most 4096 are read: write several subjects"},
		{"requirements as text", `"` + repeat(32, "k%d", ",") + `"`, ""},
		{"requirements as text", `"` + repeat(33, "k%d", ",") + `"`, "has 33 requirements; at most 32 are read: write several subjects"},
		{"requirements", "{matchLabels: {k39: v0}, matchExpressions: [" + repeat(31, "{key: k%d, operator: Exists}", ", ") + "]}", ""},
		{"requirements", "{matchLabels: {k39: v0}, matchExpressions: [" + repeat(32, "{key: k%d, operator: Exists}", ", ") + "]}", "has 33 requirements; at most 32 are read: write several subjects"},
		{"values as text", `"k0 in (` + repeat(255, "v%d", ",") + `),k1=v0"`, ""},
		{"values as text", `"k0 in (` + repeat(256, "v%d", ",") + `),k1=v0"`, "has 257 values; at most 256 are read: write several subjects"},
		{"values", "{matchExpressions: [{key: k0, operator: In, values: [" + repeat(256, "v%d", ", ") + "]}]}", ""},
		{"values", "{matchExpressions: [{key: k0, operator: In, values: [" + repeat(257, "v%d", ", ") + "]}]}", "has 257 values; at most 256 are read: write several subjects"},
	} {
		policy, err := Parse(File{Name: "p", Data: fmt.Appendf(nil, selectorPolicy, test.selector)})
		switch {
		case test.fault == "" && err != nil:
			t.Errorf("%s, at the limit: %v", test.name, err)
		case test.fault == "":
			d := policy.Decide(Subject{Identity: someone(), NamespaceLabels: matching}, "", scopesOf(t, "repository:a:pull"))
			if len(d.Granted()) != 1 {
				t.Errorf("%s, at the limit, does not match", test.name)
			}
		case err == nil || err.Error() != "p: rules[0].subjects[0].namespaceSelector: "+test.fault:
			t.Errorf("%s: error %v", test.name, err)
		}
	}
}

// Requirements that look alike and can be met. None is a contradiction.
func TestSelectorsThatCanMatch(t *testing.T) {
	t.Parallel()
	for selector, match := range map[string]string{
		"team in (a,b),team in (b,c)":             "team=b",
		"team in (a,b),team!=a":                   "team=b",
		"team,team!=a,team notin (b)":             "team=c",
		"team!=a,team!=b":                         "",
		"!team,team!=a":                           "",
		"team=,team!=a,team":                      "team=",
		"team==":                                  "team=",
		"team==a,team=a":                          "team=a",
		"team=a,env=b":                            "team=a env=b",
		"in in (in,notin),notin notin (in),!team": "in=notin",
	} {
		policy := parseText(t, fmt.Sprintf(selectorPolicy, `"`+selector+`"`))
		d := policy.Decide(Subject{Identity: someone(), NamespaceLabels: labelsOf(match)}, "", scopesOf(t, "repository:a:pull"))
		if len(d.Granted()) != 1 {
			t.Errorf("%q does not match %q", selector, match)
		}
	}
}

// requirement is written for the test and evaluated by the definition in
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
type requirement struct {
	key, operator string
	values        []string
}

func (r requirement) matches(set map[string]string) bool {
	value, ok := set[r.key]
	switch r.operator {
	case "In":
		return ok && slices.Contains(r.values, value)
	case "NotIn":
		return !ok || !slices.Contains(r.values, value)
	case "Exists":
		return ok
	}
	return !ok
}

// Both forms of one selector match the same namespaces, and the right ones.
func TestSelectorForms(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(3, 4))}
	matched, refused := 0, 0
	for range 200 {
		var requirements []requirement
		var expressions, text []string
		for range 1 + w.IntN(3) {
			r := requirement{key: w.pick("team", "example.com/env", "x"), operator: w.pick("In", "NotIn", "Exists", "DoesNotExist")}
			written := "{key: " + r.key + ", operator: " + r.operator + "}"
			switch r.operator {
			case "In", "NotIn":
				for range 1 + w.IntN(2) {
					r.values = append(r.values, w.pick("a", "b", "C.1"))
				}
				list := strings.Join(r.values, ",")
				written = strings.TrimSuffix(written, "}") + ", values: [" + list + "]}"
				text = append(text, r.key+" "+strings.ToLower(r.operator)+" ("+list+")")
			case "Exists":
				text = append(text, r.key)
			case "DoesNotExist":
				text = append(text, "!"+r.key)
			}
			requirements, expressions = append(requirements, r), append(expressions, written)
		}
		object, objectErr := Parse(File{Data: fmt.Appendf(nil, selectorPolicy, "{matchExpressions: ["+strings.Join(expressions, ", ")+"]}")})
		line, lineErr := Parse(File{Data: fmt.Appendf(nil, selectorPolicy, `"`+strings.Join(text, ",")+`"`)})
		// All labels that a selector of these keys and values can distinguish.
		var possible []map[string]string
		values := []string{"-", "", "a", "b", "C.1", "d"}
		for _, team := range values {
			for _, env := range values {
				for _, x := range values {
					set := map[string]string{"team": team, "example.com/env": env, "x": x}
					for key, value := range set {
						if value == "-" {
							delete(set, key)
						}
					}
					possible = append(possible, set)
				}
			}
		}
		if objectErr != nil || lineErr != nil {
			refused++
			for _, set := range possible {
				if !slices.ContainsFunc(requirements, func(r requirement) bool { return !r.matches(set) }) {
					t.Errorf("%q matches %v, yet is refused: %v, %v", text, set, objectErr, lineErr)
				}
			}
			continue
		}
		matches := false
		for _, set := range possible {
			want := !slices.ContainsFunc(requirements, func(r requirement) bool { return !r.matches(set) })
			subject := Subject{Identity: someone(), NamespaceLabels: set}
			for _, policy := range []*Policy{object, line} {
				if got := len(policy.Decide(subject, "", scopesOf(t, "repository:a:pull")).Granted()) == 1; got != want {
					t.Errorf("%q matches %v: %t", text, set, got)
				}
			}
			matches = matches || want
		}
		if !matches {
			t.Errorf("%q matches nothing, and is not refused", text)
		}
		matched++
	}
	if matched < 50 || refused < 10 {
		t.Errorf("%d selectors can match and %d cannot: hardly tested", matched, refused)
	}
}

// The trace names the field. Unknown labels are a mismatch in a rule and a match in a denial.
func TestSelectorTrace(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- name: r
  subjects: [{clusters: [stage], namespaceSelector: team}, {namespaceSelector: team}, {namespaceSelector: "!team", nodes: [n1]}]
  allow: [{repositories: [a], actions: [pull]}]
deny: [{name: d, subjects: [{namespaceSelector: blocked, nodes: [n1]}, {namespaceSelector: blocked}]}]
`)
	for _, test := range []struct {
		labels map[string]string
		denied bool
		want   string
	}{
		{nil, true, "[{d policy.yaml: deny[0] true subjects[1] []}] []"},
		{labelsOf(""), false, "[{d policy.yaml: deny[0] false  [namespaceSelector namespaceSelector]}] [{r policy.yaml: rules[0] false  [clusters namespaceSelector nodes] true  false []}]"},
		{labelsOf("blocked=x"), true, "[{d policy.yaml: deny[0] true subjects[1] []}] []"},
	} {
		d, trace := policy.Explain(Subject{Identity: someone(), NamespaceLabels: test.labels}, "", nil)
		if got := fmt.Sprint(trace.Deny, trace.Rules); got != test.want || (d.DeniedBy == "d") != test.denied {
			t.Errorf("%v: %s, denied by %q", test.labels, got, d.DeniedBy)
		}
	}
	rule := policy.rules[0]
	var mismatches []string
	if asker := (subjects.Asker{Identity: someone()}); asker.MatchAny(rule.subjects, &mismatches) || fmt.Sprint(mismatches) != "[clusters namespaceSelector namespaceSelector]" {
		t.Errorf("mismatches %q without labels", mismatches)
	}
}

// checkSelectors fails if a policy has a selector that matches every namespace, or that does not
// have its documented meaning.
func checkSelectors(t *testing.T, policy *Policy) {
	var all []subjects.Match
	for _, r := range policy.rules {
		all = append(all, r.subjects...)
	}
	for _, d := range policy.deny {
		all = append(all, d.subjects...)
	}
	for _, s := range all {
		if s.NamespaceSelector == nil {
			continue
		}
		again, err := labels.Parse(s.NamespaceSelector.String())
		if s.NamespaceSelector.Empty() || err != nil || again.String() != s.NamespaceSelector.String() {
			t.Errorf("selector %q: %v", s.NamespaceSelector, err)
		}
	}
}
