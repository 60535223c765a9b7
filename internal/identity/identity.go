package identity

import (
	"slices"
	"strconv"

	"github.com/pullpass/pullpass/internal/lru"
)

// Claims are those of one token, by name: string, bool, int64 or float64 (JSON
// numbers, integral or not), []string for lists of strings, and for whatever else
// issuers write []any and map[string]any of these. There is no nil: what is null
// is not there. They must not be changed.
type Claims map[string]any

// Texts returns what a claim is compared with as text: its value, or those of the
// members of a list of strings. Numbers and truth values have their one JSON form.
// Nothing comes of a claim that is missing or that holds anything else.
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

// External is a caller that is no ServiceAccount of a cluster. It is immutable and
// safe to share.
type External struct {
	Provider string // identities[].name
	Profile  Profile
	Claims   Claims
	// Project is what the profile's issuers never name twice: the id of the
	// repository, project or workload. Run is the id of the run, workflow or pipeline
	// of a CI job; empty where there is none.
	Project string
	Run     string
}

// Bytes returns how much memory e takes up, as package lru counts it. Texts that
// it shares with its claims count once.
func (e *External) Bytes() int {
	const own = 5*2*wordBytes + wordBytes
	return lru.Bytes(own) + size(map[string]any(e.Claims))
}

const wordBytes = 8

// size returns what a value points to, on a machine with words of 64 bits. A map's
// slots are a key, a value and a byte, in groups of eight of which one may be
// empty; small ones are one group, larger ones may be half empty.
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

// Unmet returns a claim that does not have any of the values that are required of
// it, and whether there is one: a claim that is missing, too. Of a list, one member
// suffices. Of several, it is the first by name.
func (c Claims) Unmet(require map[string][]string) (name string, unmet bool) {
	for claim, values := range require {
		if !slices.ContainsFunc(c.Texts(claim), func(text string) bool { return slices.Contains(values, text) }) && (!unmet || claim < name) {
			name, unmet = claim, true
		}
	}
	return name, unmet
}
