package policy

import (
	"fmt"
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

// The trace names the field. Unknown labels are a mismatch in a rule and a match in a denial.
func TestSelectorTrace(t *testing.T) {
	t.Parallel()
	policy := parseText(t, `
apiVersion: pullpass.dev/v1beta1
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
