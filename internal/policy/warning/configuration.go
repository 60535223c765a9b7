// Package warning reports parts of a policy that allow less, or more, than they seem to under a
// given configuration. None of them is a fault: one policy may serve several proxies, and such
// patterns are in use.
package warning

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Unused names parts that can never match, because no such cluster, identity or service is
// configured. A denial with a mistyped name denies no subject.
func Unused(p *policy.Policy, clusters, identities, services []string) []string {
	var unused []string
	note := func(where, field, value, configured string) {
		unused = append(unused, fmt.Sprintf("%s: %s: %s matches nothing that is configured (%s)", where, field, term.QuoteName(value), configured))
	}
	checkSubjects := func(where string, matches []subjects.Match) {
		for _, s := range matches {
			for _, glob := range s.Clusters {
				if !slices.ContainsFunc(clusters, func(name string) bool { return pattern.MatchName(glob, name) }) {
					note(where, "clusters", glob, "clusters[].name")
				}
			}
			for _, name := range s.Identities {
				if !slices.Contains(identities, name) {
					note(where, "identities", name, "identities[].name")
				}
			}
		}
	}
	for _, r := range p.WrittenRules() {
		where := "rule " + r.Name
		checkSubjects(where, r.Subjects)
		for _, service := range r.Services {
			if !slices.Contains(services, service) {
				note(where, "services", service, "registries[].service")
			}
		}
	}
	for _, d := range p.WrittenDenials() {
		checkSubjects("deny rule "+d.Name, d.Subjects)
	}
	return unused
}

// WithoutLabels names rules and denials that depend on the labels of namespaces in clusters without
// a connection, where the labels are never known. A policy may serve such clusters by other rules.
func WithoutLabels(p *policy.Policy, clusters []string) []string {
	var affected []string
	check := func(where, effect string, matches []subjects.Match) {
		for i, s := range matches {
			for _, name := range clusters {
				if s.NamespaceSelector != nil && subjects.MatchGlobs(s.Clusters, name) {
					affected = append(affected, fmt.Sprintf("%s: subjects[%d] "+effect+
						": its namespaces' labels are not known without a connection (clusters[].kubernetes)", where, i, term.QuoteName(name)))
				}
			}
		}
	}
	for _, r := range p.WrittenRules() {
		check("rule "+r.Name, "matches no ServiceAccount of cluster %s", r.Subjects)
	}
	for _, d := range p.WrittenDenials() {
		check("deny rule "+d.Name, "refuses every ServiceAccount of cluster %s that its other fields match", d.Subjects)
	}
	return affected
}

// WithoutAnnotations names rules that read an annotation in clusters where annotations are never
// known. There, they grant nothing.
func WithoutAnnotations(p *policy.Policy, clusters []string) []string {
	return grantNothing(p, clusters, "its ServiceAccounts' annotations are not known without a connection or manifestFiles (clusters[].kubernetes)",
		func(r policy.WrittenRule, _ subjects.Match) bool { return r.Annotation != "" })
}

// WithoutRequests names rules that need RepositoryAccess objects in clusters where none count.
// There, they grant nothing. A rule that names no cluster is for the clusters where such objects
// count. It is named only if isEvery says that there is no such cluster.
func WithoutRequests(p *policy.Policy, clusters []string, isEvery bool) []string {
	return grantNothing(p, clusters, "RepositoryAccess objects have no effect; set clusters[].kubernetes.objects.requests",
		func(r policy.WrittenRule, s subjects.Match) bool { return r.Requests && (s.Clusters != nil || isEvery) })
}

// grantNothing names the rules that read a source of requests, in the clusters where there is none.
func grantNothing(p *policy.Policy, clusters []string, why string, reads func(policy.WrittenRule, subjects.Match) bool) []string {
	var affected []string
	for _, r := range p.WrittenRules() {
		for i, s := range r.Subjects {
			for _, name := range clusters {
				if reads(r, s) && subjects.MatchGlobs(s.Clusters, name) {
					affected = append(affected, fmt.Sprintf("rule %s: subjects[%d] gets nothing in cluster %s: %s", r.Name, i, term.QuoteName(name), why))
				}
			}
		}
	}
	return affected
}
