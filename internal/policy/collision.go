package policy

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/subjects"
	"github.com/pullpass/pullpass/internal/term"
)

// Collisions names patterns that give one ServiceAccount the repositories of
// another one, because of what they are called: in {cluster}-{namespace} nobody
// can tell where the cluster's name ends. Whoever may name a namespace may then
// choose whose. It is a warning, as Unused: such patterns are in use. Of clusters
// the names are known, so only those count that can be mistaken.
func (p *Policy) Collisions(clusters []string) []string {
	var found []string
	for _, r := range p.rules {
		own := slices.DeleteFunc(slices.Clone(clusters), func(name string) bool {
			return !slices.ContainsFunc(r.subjects, func(s subjects.Match) bool { return subjects.MatchGlobs(s.Clusters, name) })
		})
		for i, a := range r.allow {
			for j, repositories := range a.repositories {
				if example, ok := repositories.Collision(own); ok {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: %s gives one ServiceAccount the repositories of another, depending on their names%s: "+
						"put a / between them, or a _, which is in no name, unless there is a * on both sides", r.name[0], i, j, term.QuoteName(string(repositories)), example))
				}
			}
		}
	}
	return found
}
