package pattern

import (
	"slices"
	"strings"
)

// isHost reports whether a path begins with a possible name of a registry.
func isHost(path string) bool {
	first, _ := cutComponent(path)
	return strings.ContainsAny(first, ".:")
}

// Covers returns the first upstream of the gateway that a wildcard, a claim or the name of a
// ServiceAccount at the beginning would match. A claim there is never the name of a host, but a
// ServiceAccount can be called ghcr.io. An upstream that is written out is intended.
func (p Pattern) Covers(upstreams []string) (string, bool) {
	first, rest := cutComponent(strings.ReplaceAll(string(p), "{serviceAccount}", "*"))
	_, isClaim := claimPlaceholder(first)
	if !isClaim && (!strings.Contains(first, "*") || rest == "" && first != "**") { // every repository of an upstream has more than one component
		return "", false
	}
	i := slices.IndexFunc(upstreams, func(name string) bool {
		return isClaim && !isHost(name) || MatchName(first, name)
	})
	if i < 0 {
		return "", false
	}
	return upstreams[i], true
}
