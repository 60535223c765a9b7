package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// shapes are texts of the i-th rule. Few or all of the rules match the subject.
var shapes = map[string]string{
	"namespaces": "- {name: r%[1]d, subjects: [{clusters: [prod], namespaces: ['group-%[1]d-*', 'x-%[1]d']}], allow: [{repositories: ['{namespace}/**'], actions: [pull]}]}\n",
	"everybody":  "- {name: r%[1]d, subjects: [{namespaces: ['*']}], allow: [{repositories: ['mirror-%[1]d/**'], actions: [pull]}]}\n",
	"labels":     "- {name: r%[1]d, subjects: [{namespaceSelector: 'example.com/team=t%[1]d,env in (prod,staging),!legacy'}], allow: [{repositories: ['team-%[1]d/**'], actions: [pull]}]}\n",
}

// benchmarkPolicy has the rules that grant at its end.
func benchmarkPolicy(b *testing.B, shape string, n int) *Policy {
	rules := make([]string, n-3, n) // a denial counts, too
	for i := range rules {
		rules[i] = fmt.Sprintf(shapes[shape], i)
	}
	return parseRules(b, append(rules,
		"- {name: own-namespace, subjects: [{namespaces: ['team-*']}], allow: [{repositories: ['{namespace}/**'], actions: [pull]}]}\n",
		"- {name: asked-for, subjects: [{namespaces: ['team-*']}], annotation: k, allow: [{repositories: ['shared/**', '{namespace}/**'], actions: [pull, push]}]}\n"+
			"deny: [{name: quarantine, subjects: [{nodes: [worker-17]}, {namespaces: [old]}]}]\n"))
}

func BenchmarkDecide(b *testing.B) {
	subject := Subject{Identity: someone(), NamespaceLabels: labelsOf("kubernetes.io/metadata.name=team-a env=prod"),
		Annotations: map[string]string{"k": "team-a/web team-a/worker:pull,push shared/**"}}
	for _, shape := range []string{"namespaces", "everybody", "labels"} {
		for _, rules := range []int{10, 1_000, 10_000} {
			policy := benchmarkPolicy(b, shape, rules)
			for _, c := range []struct{ name, scope string }{
				{"granted", "repository:team-a/web:pull"},
				{"by-annotation", "repository:team-a/worker:pull,push"},
				{"refused", "repository:team-b/web:pull"},
			} {
				scopes := scopesOf(b, c.scope)
				b.Run(fmt.Sprintf("%s/rules=%d/%s", shape, rules, c.name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						policy.Decide(subject, "registry.example.com", scopes)
					}
				})
			}
		}
	}
}

// BenchmarkDecideHostile is the most expensive request that anyone who may edit a ServiceAccount
// can make: the longest annotation, and the most and longest names.
func BenchmarkDecideHostile(b *testing.B) {
	policy := benchmarkPolicy(b, "namespaces", 10)
	var annotation strings.Builder
	for annotation.Len() < MaxAnnotationBytes-pattern.MaxBytes {
		annotation.WriteString("**/" + strings.Repeat("a/", 63) + "b ")
	}
	subject := Subject{Identity: someone(), Annotations: map[string]string{"k": annotation.String()}}
	scopes := make([]registryauth.Scope, registryauth.MaxScopes)
	for i := range scopes {
		scopes[i] = registryauth.Scope{Type: "repository", Name: "team-a/" + strings.Repeat("a/", 120) + fmt.Sprint(i), Actions: []string{"push"}}
	}
	b.ReportAllocs()
	for b.Loop() {
		policy.Decide(subject, "registry.example.com", scopes)
	}
}
