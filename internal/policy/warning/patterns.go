package warning

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Collisions names patterns that can give one ServiceAccount the repositories of a different one,
// because of their names. In {cluster}-{namespace}, the end of the cluster's name is ambiguous.
// Anyone who may name a namespace may then choose a different owner's repositories. Such patterns
// are in use. The names of clusters are known, so only ambiguous names of clusters count.
func Collisions(p *policy.Policy, clusters []string) []string {
	var found []string
	for _, r := range p.WrittenRules() {
		own := slices.DeleteFunc(slices.Clone(clusters), func(name string) bool {
			return !slices.ContainsFunc(r.Subjects, func(s subjects.Match) bool { return subjects.MatchGlobs(s.Clusters, name) })
		})
		for i, a := range r.Allow {
			for j, repositories := range a.Repositories {
				if example, ok := repositories.Collision(own); ok {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: %s gives one ServiceAccount the repositories of another, depending on their names%s: "+
						"put a / between them, or a _, which is in no name, unless there is a * on both sides", r.Name, i, j, term.QuoteName(string(repositories)), example))
				}
			}
		}
	}
	return found
}

// BehindGateway names patterns in rules for every service that begin with a wildcard, a claim or a
// ServiceAccount and also match an upstream's repositories. The name of an upstream is the first
// component there. A ** that was written for a private registry would grant everything that the
// gateway can reach.
func BehindGateway(p *policy.Policy, upstreams []string) []string {
	var found []string
	for _, r := range p.WrittenRules() {
		if r.Services != nil {
			continue
		}
		for i, a := range r.Allow {
			for j, repositories := range a.Repositories {
				if upstream, ok := repositories.Covers(upstreams); ok {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: %s also means what is behind the gateway, at %s for example, because the rule has no services: "+
						"write which it is for, and gateway.service among them only if that is meant", r.Name, i, j, term.QuoteName(string(repositories)), term.QuoteName(upstream)))
				}
			}
		}
	}
	return found
}
