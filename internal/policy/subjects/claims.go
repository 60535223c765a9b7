package subjects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/condition"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

const (
	maxClaims          = 32
	maxClaimValues     = 256 // of all claims of one subject
	maxClaimNameBytes  = 128
	maxClaimValueBytes = 512
)

// Claim lists the values that a claim may have.
type Claim struct {
	Name   string
	Values []string
}

// matches reports whether the caller's token has one of the values. A value that is not a text is
// compared as text only if the profile states the type of the claim. The token was then refused if
// the claim had a different type: "true" is not a boolean.
func (c *Claim) matches(a *Asker, denies bool) bool {
	caller := a.Identity.External // a subject with claims has identities, which are compared first
	known, named := caller.Profile.Claim(c.Name)
	switch caller.Claims[c.Name].(type) {
	case string, []string:
	case bool, int64, float64:
		if !named {
			return denies
		}
	default: // it is missing, or no profile states how it is compared
		return denies
	}
	if !a.mayCompare() {
		return denies
	}
	texts := caller.Claims.Texts(c.Name)
	a.spent += priceOf(texts, len(c.Values), known.IsName)
	return slices.ContainsFunc(texts, func(text string) bool { return c.has(text, known.IsName) })
}

// priceOf returns the cost in CEL's units, each of which takes some 50 ns or more. One unit covers
// 16 comparisons of texts, or a * that goes through 64 bytes.
func priceOf(texts []string, values int, isName bool) uint64 {
	price := uint64(len(texts)*values) / 16
	if isName {
		for _, text := range texts {
			price += uint64(len(text)*values) / 64
		}
	}
	return price
}

func (c *Claim) has(value string, isName bool) bool {
	if isName && value != "" {
		return slices.ContainsFunc(c.Values, func(glob string) bool { return pattern.MatchText(glob, value) })
	}
	return slices.Contains(c.Values, value)
}

// parseClaims reads values by claim. The claims are checked against the profiles later, when the
// identities are known.
func parseClaims(n strictyaml.Node) []Claim {
	object, ok := n.Value.(map[string]any)
	switch {
	case !ok:
		n.Fault("%s: write claims, each with a list of values", strictyaml.NotA("a mapping", n.Value))
	case len(object) == 0:
		n.Fault("is empty: fill it or remove it")
	}
	var all []Claim
	values := 0
	for _, entry := range n.Entries() {
		c := Claim{Name: entry.Key}
		if c.Name == "" || len(c.Name) > maxClaimNameBytes || !names.IsVisible(c.Name) {
			entry.Fault("%s is not the name of a claim: write 1 to %d printable characters", term.QuoteName(c.Name), maxClaimNameBytes)
		}
		for _, item := range entry.List() {
			value, _ := item.Text()
			if len(value) > maxClaimValueBytes {
				item.Fault("has %d bytes; at most %d are compared", len(value), maxClaimValueBytes)
			}
			c.Values = append(c.Values, value)
		}
		values += len(c.Values)
		all = append(all, c)
	}
	if len(all) > maxClaims || values > maxClaimValues {
		n.Fault("has %d claims and %d values; at most %d and %d are read: write several subjects", len(all), values, maxClaims, maxClaimValues)
		return nil
	}
	return all
}

func parseIdentities(n strictyaml.Node) []string {
	var list []string
	for _, entry := range n.List() {
		name, ok := entry.Text()
		if ok && !names.IsLabel(name) {
			entry.Fault("%s is not the name of an identity: names are compared exactly with identities[].name, without *", term.QuoteName(name))
		}
		list = append(list, name)
	}
	return list
}

func parseCondition(n strictyaml.Node) *condition.Condition {
	text, ok := n.Text()
	if !ok {
		return nil
	}
	compiled, err := condition.Compile(text)
	if err != nil {
		n.Fault("%v", err)
		return nil
	}
	return compiled
}

// checkIdentities reports fields that can never match the subject's kind of identity, and values
// that the profiles of the identities forbid.
func (p *parser) checkIdentities(n strictyaml.Node, fields map[string]strictyaml.Node, m *Match) {
	if m.Identities == nil {
		if field, ok := fields["claims"]; ok {
			field.Fault("ServiceAccounts have no claims to compare: name the identities whose tokens have them, or write a condition")
		}
		return
	}
	for _, name := range []string{"clusters", "namespaces", "namespaceSelector", "serviceAccounts", "nodes"} {
		if field, ok := fields[name]; ok {
			field.Fault("an identity is no ServiceAccount and has none of these: write a subject for each")
		}
	}
	for _, name := range m.Identities {
		profile, known := p.identities[name]
		if !known {
			continue
		}
		for _, c := range m.Claims {
			p.checkClaim(n, name, profile, c)
		}
		if m.Condition != nil {
			checkUses(fields["condition"], name, profile, m.Condition)
		}
	}
}

func (p *parser) checkClaim(n strictyaml.Node, name string, profile identity.Profile, c Claim) {
	known, _ := profile.Claim(c.Name)
	at := n.At(fmt.Sprintf("claims[%s]", term.QuoteName(c.Name)), nil)
	for _, value := range c.Values {
		switch _, err := strconv.ParseInt(value, 10, 64); {
		case !known.IsName && strings.Contains(value, "*"):
			at.Fault("%s: * stands for other characters only in claims whose values people choose, such as ref; this one, of identity %s, is compared exactly",
				term.QuoteName(value), term.QuoteName(name))
		case known.Type == identity.Boolean && value != "true" && value != "false":
			at.Fault("%s is not a valid value: of identity %s, this claim is a boolean: write \"true\" or \"false\"", term.QuoteName(value), term.QuoteName(name))
		case known.Type == identity.Number && err != nil:
			at.Fault("%s is not a valid value: of identity %s, this claim is a number", term.QuoteName(value), term.QuoteName(name))
		}
	}
}

// checkUses reports comparisons that are never true because the claim has a different type: the
// string "true" is not a boolean.
func checkUses(n strictyaml.Node, name string, profile identity.Profile, c *condition.Condition) {
	for _, use := range c.Uses() {
		if known, ok := profile.Claim(use.Claim); ok && use.Type != "" && use.Type != known.Type {
			n.Fault("claims.%s of identity %s is a %s, and is compared with a %s, which it never equals", use.Claim, term.QuoteName(name), known.Type, use.Type)
		}
	}
}
