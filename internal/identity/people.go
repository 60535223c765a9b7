package identity

import (
	"maps"
	"slices"
	"strconv"
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

// Typed turns texts that Named returned into claims again. What is no value of its
// claim is left out.
func (p Profile) Typed(named map[string]string) Claims {
	claims := Claims{}
	for name, text := range named {
		switch profiles[p].claims[name].Type {
		case String:
			claims[name] = text
		case Boolean:
			if value, err := strconv.ParseBool(text); err == nil {
				claims[name] = value
			}
		case Number:
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				claims[name] = value
			}
		}
	}
	return claims
}

// ProjectClaim is the claim that External.Project is made of.
func (p Profile) ProjectClaim() string { return profiles[p].project }

// RunClaim is the claim that External.Run is made of; empty: the tokens name no run.
func (p Profile) RunClaim() string { return profiles[p].run }

// Paths returns the names of the claims that are paths, sorted.
func (p Profile) Paths() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(profiles[p].claims)), func(name string) bool { return !profiles[p].claims[name].IsPath })
}
