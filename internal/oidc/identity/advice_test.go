package identity

import (
	"strings"
	"testing"
)

// A placeholder is a component of a pattern: a name with a slash would be two.
func TestPathsCanBeWritten(t *testing.T) {
	t.Parallel()
	for _, p := range Profile("").Values() {
		for _, claim := range p.Paths() {
			if strings.ContainsAny(claim, "/}") {
				t.Errorf("%s: no pattern can have {claims.%s}", p, claim)
			}
		}
	}
}
