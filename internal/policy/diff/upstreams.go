package diff

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// opened returns the actions that the gateway lets clients do at upstreams on this side only.
func (c *comparison) opened(service Service) map[string]action.Set {
	opened := map[string]action.Set{}
	other, ok := c.from.service(service.Name)
	for name, actions := range service.Upstreams {
		if more := actions &^ other.Upstreams[name]; ok && more != 0 {
			opened[name] = more
		}
	}
	return opened
}

// compareUpstreams adds what units grant at upstreams that allow it on this side only. Both sides may
// issue the same token, but the gateway lets it do more.
func (c *comparison) compareUpstreams() {
	for _, service := range c.to.Services {
		opened := c.opened(service)
		for _, name := range slices.Sorted(maps.Keys(opened)) {
			for _, u := range c.to.units {
				actions := u.atoms() & opened[name]
				if actions == 0 || !u.serves(service.Name) || !u.pattern.Overlaps(pattern.Pattern(name+"/**")) {
					continue
				}
				for _, b := range c.kinds(u) {
					b.unit = u
					e := b.entry(service.Name, actions)
					e.Where = append(e.Where, "upstream "+name)
					e.Unjudged = fmt.Sprintf("the gateway allows it at upstream %s on one side only; compare upstreams[].actions", name)
					c.found = append(c.found, e)
				}
			}
		}
	}
}
