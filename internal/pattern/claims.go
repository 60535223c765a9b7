package pattern

import (
	"strings"
	"unicode"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const claimsPrefix = "{claims."

// claimPlaceholder returns the claim of a component that stands for its value.
func claimPlaceholder(component string) (name string, ok bool) {
	name, ok = strings.CutPrefix(component, claimsPrefix)
	if !ok || strings.IndexByte(name, '}') != len(name)-1 {
		return "", false
	}
	return name[:len(name)-1], true
}

func (p Pattern) hasClaims() bool { return strings.Contains(string(p), claimsPrefix) }

// Claims returns the claims that stand in the pattern.
func (p Pattern) Claims() []string {
	var list []string
	for component := range strings.SplitSeq(string(p), "/") {
		if name, ok := claimPlaceholder(component); ok {
			list = append(list, name)
		}
	}
	return list
}

// withClaims returns the pattern with the values of claims in it. A value is one
// that the profile calls a path, and it is the path of a repository: neither a
// pattern nor a way up can be in it. At the start of a name, it is no host either:
// there, the gateway has the names of upstreams, and a group of GitLab can be called
// ghcr.io.
func (p Pattern) withClaims(id *oidc.Identity) (Pattern, bool) {
	if !p.hasClaims() {
		return p, true
	}
	if id == nil || id.External == nil {
		return "", false
	}
	var b strings.Builder
	isStart := true
	for component := range strings.SplitSeq(string(p), "/") {
		if b.Len() > 0 {
			b.WriteByte('/')
		}
		name, ok := claimPlaceholder(component)
		if !ok {
			b.WriteString(component)
			isStart = isStart && component == "**" // of none
			continue
		}
		known, _ := id.External.Profile.Claim(name)
		value, _ := id.External.Claims[name].(string)
		if !known.IsPath || !isRepositoryPath(value) || isStart && isHost(value) {
			return "", false
		}
		b.WriteString(strings.ToLower(value))
		isStart = false
	}
	return Pattern(b.String()), true
}

func isRepositoryPath(value string) bool {
	// Some letters that are not ASCII have one that is for their lower case, as the
	// sign of the Kelvin has: they would be somebody else's.
	if strings.ContainsAny(value, ":*{") || len(value) > MaxBytes || strings.ContainsFunc(value, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false
	}
	_, err := registryauth.ParseScope("repository:" + strings.ToLower(value) + ":pull")
	return err == nil
}
