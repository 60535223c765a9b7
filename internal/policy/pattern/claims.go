package pattern

import (
	"strings"
	"unicode"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const claimsPrefix = "{claims."

// claimPlaceholder returns the claim of a component that is a claim placeholder.
func claimPlaceholder(component string) (name string, ok bool) {
	after, isClaim := strings.CutPrefix(component, claimsPrefix)
	name, rest, isClosed := strings.Cut(after, "}")
	return name, isClaim && isClosed && rest == ""
}

func (p Pattern) hasClaims() bool { return strings.Contains(string(p), claimsPrefix) }

// Claims returns the claims in the pattern.
func (p Pattern) Claims() []string {
	var list []string
	for component := range strings.SplitSeq(string(p), "/") {
		if name, ok := claimPlaceholder(component); ok {
			list = append(list, name)
		}
	}
	return list
}

// withClaims returns the pattern with its claims replaced by their values. The profile must call
// the claim a path. A value must be a repository path, so it can hold neither a pattern nor "..".
// At the start of a name, a value must not look like a host either. There, the gateway has the
// names of upstreams, and a group of GitLab can be called ghcr.io.
func (p Pattern) withClaims(id *oidc.Identity) (Pattern, bool) {
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
			isStart = isStart && component == "**" // ** can match zero components
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
	// Some letters outside ASCII have an ASCII lower case, such as the Kelvin sign. Their lower
	// case could be the path of a different owner.
	if strings.ContainsAny(value, ":*{") || len(value) > MaxBytes || strings.ContainsFunc(value, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false
	}
	_, err := registryauth.ParseScope("repository:" + strings.ToLower(value) + ":pull")
	return err == nil
}
