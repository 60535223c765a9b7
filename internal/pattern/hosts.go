package pattern

import (
	"slices"
	"strings"
)

// isHost reports whether a path begins with what can be the name of a registry.
func isHost(path string) bool {
	first, _ := cutComponent(path)
	return strings.ContainsAny(first, ".:")
}

// Covers returns the first upstream of the gateway whose repositories a wildcard at
// the beginning means, or a claim there, which is never the name of a host. One that
// is written out is meant.
func (p Pattern) Covers(upstreams []string) (string, bool) {
	first, rest := cutComponent(string(p))
	_, isClaim := claimPlaceholder(first)
	if !isClaim && (!strings.Contains(first, "*") || rest == "" && first != "**") { // no repository of an upstream has one component
		return "", false
	}
	i := slices.IndexFunc(upstreams, func(name string) bool {
		return isClaim && !isHost(name) || !isClaim && MatchName(first, name)
	})
	if i < 0 {
		return "", false
	}
	return upstreams[i], true
}
