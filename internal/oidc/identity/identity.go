package identity

import (
	"maps"
	"slices"
	"strconv"

	"github.com/pullpass/pullpass/internal/base/lru"
)

// Claims are the claims of one token, by name. A value is a string, a bool, an int64 or float64
// (JSON numbers, integral or not), or a []string. All other values are []any and map[string]any of
// these. A value is never nil: a claim that is null is left out. Claims must not be changed.
type Claims map[string]any

// Texts returns the texts to compare with a claim: its value, or the members of a list of strings.
// Numbers and booleans have their single JSON form. It returns nothing for a claim that is missing
// or has another type.
func (c Claims) Texts(name string) []string {
	switch value := c[name].(type) {
	case string:
		return []string{value}
	case []string:
		return value
	case bool:
		return []string{strconv.FormatBool(value)}
	case int64:
		return []string{strconv.FormatInt(value, 10)}
	case float64:
		return []string{strconv.FormatFloat(value, 'f', -1, 64)}
	}
	return nil
}

// External is a caller that is not a ServiceAccount of a cluster. It is immutable and safe to
// share.
type External struct {
	Provider string // identities[].name
	Profile  Profile
	Claims   Claims
	// Project is an id that the profile's issuers never reuse: that of the repository, project or
	// workload. Run is the id of the run, workflow or pipeline of a CI job. It is empty if there is
	// none.
	Project string
	Run     string
}

// Bytes returns the memory that e takes up, as package lru counts it. Texts that e shares with its
// claims count once.
func (e *External) Bytes() int {
	const own = 5*2*wordBytes + wordBytes
	return lru.Bytes(own) + size(map[string]any(e.Claims))
}

const wordBytes = 8

// size returns the size of the memory that a value points to, with words of 64 bits. A slot of a
// map is a key, a value and a byte. A group has eight slots, of which one may be empty. A small map
// is one group. A larger map may be half empty.
func size(value any) int {
	const text, slot = 2 * wordBytes, 4*wordBytes + 1
	switch v := value.(type) {
	case string:
		return lru.Bytes(text) + lru.Bytes(len(v))
	case int64, float64:
		return lru.Bytes(wordBytes)
	case []string:
		sum := lru.Bytes(3*wordBytes) + lru.Bytes(len(v)*text)
		for _, s := range v {
			sum += lru.Bytes(len(s))
		}
		return sum
	case []any:
		sum := lru.Bytes(3*wordBytes) + lru.Bytes(len(v)*2*wordBytes)
		for _, member := range v {
			sum += size(member)
		}
		return sum
	case map[string]any:
		sum := lru.Bytes(6*wordBytes) + lru.Bytes(max(8, 2*len(v)+8)*slot)
		for name, member := range v {
			sum += lru.Bytes(len(name)) + size(member)
		}
		return sum
	}
	return 0 // bool: Go has both values once
}

// Unmet returns a claim that has none of its required values, and whether there is one. A missing
// claim counts. One member of a list is enough. Of several such claims, it returns the first by
// name.
func (c Claims) Unmet(require map[string][]string) (name string, unmet bool) {
	for _, claim := range slices.Sorted(maps.Keys(require)) {
		if !slices.ContainsFunc(c.Texts(claim), func(text string) bool { return slices.Contains(require[claim], text) }) {
			return claim, true
		}
	}
	return "", false
}
