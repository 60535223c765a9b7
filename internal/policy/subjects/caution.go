package subjects

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// KnownIdentity is the configuration of an identity, as far as cautions need it.
type KnownIdentity struct {
	Profile identity.Profile
	Require []string // the claims that all of its tokens have by configuration
}

// Cautions returns known reasons why a subject of an identity matches more callers than it seems
// to. A subject that may push has more cautions.
func (m *Match) Cautions(known KnownIdentity, pushes bool) []string {
	compared, told := m.Compared(), m.Told()
	slices.Sort(compared)
	compared = slices.Compact(compared)
	compares := func(claim string) bool {
		return slices.Contains(told, claim) || slices.Contains(known.Require, claim)
	}
	var texts []string
	for _, claim := range compared {
		switch c, named := known.Profile.Claim(claim); {
		case !named && known.Profile != identity.Generic:
			texts = append(texts, fmt.Sprintf("claims.%s is not a known claim of profile %s: if it is missing, no caller matches", claim, known.Profile))
		case c.Instead != "" && !compares(c.Instead):
			texts = append(texts, fmt.Sprintf("claims.%s is a name, which can be reassigned: compare %s, which is never reassigned", claim, c.Instead))
		}
	}
	if !pushes {
		return texts
	}
	for _, c := range m.Claims {
		for _, value := range c.Values {
			if who := known.Profile.Outsiders(c.Name, value); who != "" {
				texts = append(texts, fmt.Sprintf("claims.%s may be %s, and %s: allow pushes only to jobs that outsiders cannot start", c.Name, value, who))
			}
		}
	}
	for _, a := range known.Profile.Advice() {
		if !slices.ContainsFunc(a.Claims, compares) && (a.Only == "" || compares(a.Only)) {
			texts = append(texts, strings.Join([]string{a.Risk, ": compare ", strings.Join(a.Claims, " or "), "; add ", a.Better}, ""))
		}
	}
	return texts
}

// Told returns the claims whose values select the subject, sorted. Claims that only have to be
// present are left out.
func (m *Match) Told() []string {
	var told []string
	for _, c := range m.Claims {
		if !slices.ContainsFunc(c.Values, func(value string) bool { return strings.Trim(value, "*") == "" }) {
			told = append(told, c.Name)
		}
	}
	if m.Condition != nil {
		for _, use := range m.Condition.Uses() {
			if !use.IsPresence {
				told = append(told, use.Claim)
			}
		}
	}
	slices.Sort(told)
	return slices.Compact(told)
}

// Compared returns the claims that the subject compares.
func (m *Match) Compared() []string {
	var compared []string
	for _, c := range m.Claims {
		compared = append(compared, c.Name)
	}
	if m.Condition != nil {
		for _, use := range m.Condition.Uses() {
			compared = append(compared, use.Claim)
		}
	}
	return compared
}
