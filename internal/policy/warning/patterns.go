package warning

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/subjects"
	"github.com/pullpass/pullpass/internal/term"
)

// Collisions names patterns that give one ServiceAccount the repositories of
// another one, because of what they are called: in {cluster}-{namespace} nobody
// can tell where the cluster's name ends. Whoever may name a namespace may then
// choose whose. Such patterns are in use. Of clusters
// the names are known, so only those count that can be mistaken.
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

// BehindGateway names patterns that begin with a wildcard or a claim, in rules for every service,
// if what they mean is also an upstream's, whose name stands first there:
// ** that was written for a registry of one's own would give away
// all that the gateway can reach.
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
