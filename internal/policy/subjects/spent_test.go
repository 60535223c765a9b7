package subjects

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each comparison is bounded, but a thousand of them took two seconds.
func TestWhatOneRequestCostsIsBounded(t *testing.T) {
	t.Parallel()
	groups := make([]string, 900)
	for i := range groups {
		groups[i] = "g" + strings.Repeat("0", 6)
	}
	caller := &oidc.Identity{Subject: "x", External: &identity.External{Provider: "ci", Profile: identity.Buildkite, Claims: identity.Claims{
		"groups": groups, "build_branch": strings.Repeat("ab", 4000),
	}}}
	for what, dear := range map[string]string{
		"condition": `condition: 'claims.groups.exists(g, g.startsWith("zz"))'`,
		"member":    `condition: '"zz" in claims.groups'`,
		"values":    `claims: {groups: [` + strings.TrimSuffix(strings.Repeat("h000000,", 250), ",") + `]}`,
		"globs":     `claims: {build_branch: [` + strings.TrimSuffix(strings.Repeat(`"*a*b*a*c",`, 250), ",") + `]}`,
	} {
		list := parse(t, "[{identities: [ci], "+dear+"}]")
		a := Asker{Identity: caller}
		for range 300 {
			a.MatchAny(list, nil)
		}
		// A comparison that has begun is completed: the most expensive is one claim with 250
		// values.
		if most := uint64(maxSpent + 250*8000/64 + 250); a.spent < maxSpent || a.spent > most {
			t.Errorf("%s: %d units; at most %d are allowed", what, a.spent, most)
		}
		spent := a.spent
		a.Unserved(func() { a.MatchAny(list, nil) })
		if a.spent != spent || a.unserved == 0 {
			t.Errorf("%s: the explanation cost the decision %d units, and itself %d", what, a.spent-spent, a.unserved)
		}
	}
}

// A value that is compared exactly is not gone through.
func TestPriceOfClaims(t *testing.T) {
	t.Parallel()
	for isName, want := range map[bool]uint64{false: 1, true: 17} {
		if got := priceOf([]string{strings.Repeat("a", 64)}, 16, isName); got != want {
			t.Errorf("%d units, want %d", got, want)
		}
	}
}

func parse(t *testing.T, text string) []Match {
	t.Helper()
	list := testkit.Value(parseList(text))(t)
	return list
}

func parseList(text string) ([]Match, error) {
	var faults strictyaml.Faults
	document, _ := strictyaml.ParseDocument("p", []byte("subjects: "+text), 1<<20, &faults, "")
	list := Parse(document.Fields("subjects")["subjects"], Options{})
	return list, faults.Err()
}
