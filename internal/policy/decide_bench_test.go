package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// benchmarkPolicy has the rules that grant at its end.
func benchmarkPolicy(b *testing.B, rules int) *Policy {
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1alpha1\nkind: AccessPolicy\nrules:\n")
	for i := range rules - 2 {
		fmt.Fprintf(&text, "- name: r%d\n  subjects: [{clusters: [prod], namespaces: ['group-%d-*', 'x-%d']}]\n  allow: [{repositories: ['{namespace}/**'], actions: [pull]}]\n", i, i, i)
	}
	text.WriteString("- {name: own-namespace, subjects: [{namespaces: ['team-*']}], allow: [{repositories: ['{namespace}/**'], actions: [pull]}]}\n")
	text.WriteString("- name: asked-for\n  subjects: [{namespaces: ['team-*']}]\n  annotation: k\n  allow: [{repositories: ['shared/**', '{namespace}/**'], actions: [pull, push]}]\n")
	text.WriteString("deny: [{name: quarantine, subjects: [{nodes: [worker-17]}, {namespaces: [old]}]}]\n")
	return parseText(b, text.String())
}

func BenchmarkDecide(b *testing.B) {
	subject := Subject{Identity: someone(), Annotations: map[string]string{"k": "team-a/web team-a/worker:pull,push shared/**"}}
	for _, rules := range []int{10, 1000} {
		policy := benchmarkPolicy(b, rules)
		for _, c := range []struct{ name, scope string }{
			{"granted", "repository:team-a/web:pull"},
			{"by-annotation", "repository:team-a/worker:pull,push"},
			{"refused", "repository:team-b/web:pull"},
		} {
			scopes := scopesOf(b, c.scope)
			b.Run(fmt.Sprintf("rules=%d/%s", rules, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					policy.Decide(subject, "registry.example.com", scopes)
				}
			})
		}
	}
}

// BenchmarkDecideByLabels looks at the labels for every rule, in vain but for the
// last.
func BenchmarkDecideByLabels(b *testing.B) {
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1alpha1\nkind: AccessPolicy\nrules:\n")
	const rules = 1000
	for i := range rules {
		fmt.Fprintf(&text, "- {name: r%d, subjects: [{namespaceSelector: 'example.com/team=t%d,env in (prod,staging),!legacy'}], allow: [{repositories: ['team-a/**'], actions: [pull]}]}\n", i, i)
	}
	policy := parseText(b, text.String())
	subject := Subject{Identity: someone(), NamespaceLabels: labelsOf(fmt.Sprintf("kubernetes.io/metadata.name=team-a example.com/team=t%d env=prod", rules-1))}
	scopes := scopesOf(b, "repository:team-a/web:pull")
	b.ReportAllocs()
	for b.Loop() {
		policy.Decide(subject, "registry.example.com", scopes)
	}
}

// BenchmarkDecideHostile is the dearest request that anyone who may edit a
// ServiceAccount can make: the longest annotation, the most and longest names.
func BenchmarkDecideHostile(b *testing.B) {
	policy := benchmarkPolicy(b, 10)
	var annotation strings.Builder
	for annotation.Len() < maxAnnotationBytes-pattern.MaxBytes {
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
