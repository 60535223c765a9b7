package identity

import (
	"maps"
	"slices"
)

// maxNamedBytes bounds what of one claim stands in an event.
const maxNamedBytes = 256

// Named returns the claims that the profile names, as policies compare them. It is
// for people: lists, and what is longer than 256 bytes, are left out.
func (x *External) Named() map[string]string {
	named := map[string]string{}
	for name, c := range profiles[x.Profile].claims {
		if texts := x.Claims.Texts(name); c.Type != List && len(texts) == 1 && len(texts[0]) <= maxNamedBytes {
			named[name] = texts[0]
		}
	}
	return named
}

// ProjectClaim is the claim that External.Project is made of.
func (p Profile) ProjectClaim() string { return profiles[p].project }

// RunClaim is the claim that External.Run is made of; empty: the tokens name no run.
func (p Profile) RunClaim() string { return profiles[p].run }

// Paths returns the names of the claims that are paths, sorted.
func (p Profile) Paths() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(profiles[p].claims)), func(name string) bool { return !profiles[p].claims[name].IsPath })
}
