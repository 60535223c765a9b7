package identity

import (
	"maps"
	"slices"
	"strconv"
)

// maxNamedBytes bounds the value of one claim in an event.
const maxNamedBytes = 256

// Named returns the claims that the profile names, as policies compare them. It is for display: it
// leaves out lists and values that are longer than 256 bytes.
func (x *External) Named() map[string]string {
	named := map[string]string{}
	for name, c := range x.Profile.known().claims {
		if texts := x.Claims.Texts(name); c.Type != List && len(texts) == 1 && len(texts[0]) <= maxNamedBytes {
			named[name] = texts[0]
		}
	}
	return named
}

// Typed turns texts that Named returned into claims again. It leaves out a text that is not a value
// of its claim.
func (p Profile) Typed(named map[string]string) Claims {
	claims := Claims{}
	for name, text := range named {
		switch p.known().claims[name].Type {
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

// ProjectClaim returns the claim that becomes External.Project.
func (p Profile) ProjectClaim() string { return p.known().project }

// RunClaim returns the claim that becomes External.Run. It is empty if the tokens name no run.
func (p Profile) RunClaim() string { return p.known().run }

// RefClaims returns the claims that tell apart what the jobs of a project run. It is empty if the
// profile knows none.
func (p Profile) RefClaims() []string { return p.known().refs }

// Paths returns the names of the claims that are paths, sorted.
func (p Profile) Paths() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.known().claims)), func(name string) bool { return !p.known().claims[name].IsPath })
}
