package policy

import (
	"fmt"

	"github.com/pullpass/pullpass/internal/term"
)

// BehindGateway names patterns that begin with a wildcard or a claim, in rules for every service,
// if what they mean is also an upstream's, whose name stands first there. It is a
// warning, as Unused: ** that was written for a registry of one's own would give away
// all that the gateway can reach.
func (p *Policy) BehindGateway(upstreams []string) []string {
	var found []string
	for _, r := range p.rules {
		if r.services != nil {
			continue
		}
		for i, a := range r.allow {
			for j, repositories := range a.repositories {
				if upstream, ok := repositories.Covers(upstreams); ok {
					found = append(found, fmt.Sprintf("rule %s: allow[%d].repositories[%d]: %s also means what is behind the gateway, at %s for example, because the rule has no services: "+
						"write which it is for, and gateway.service among them only if that is meant", r.name[0], i, j, term.QuoteName(string(repositories)), term.QuoteName(upstream)))
				}
			}
		}
	}
	return found
}
