package diff

import (
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// maxTokens bounds the sets of claims that are tried in one box.
const maxTokens = 1 << 14

// nearJobs returns what is near a box of callers that are not ServiceAccounts.
func (f *finder) nearJobs(b *box, a action.Set) near {
	var n near
	denials := func(side *compiled) (all []*denial) {
		for _, name := range []string{b.identity, ""} {
			for _, i := range side.barredID[name] {
				all = append(all, side.denials[i])
			}
		}
		return all
	}
	n.denials = denials(f.to)
	if b.denial != nil {
		return n
	}
	n.barred = denials(f.from)
	n.rules = f.rules(slices.Concat(f.from.jobs[b.identity], f.from.jobs[""]), b, a, func(*whom) bool { return true })
	return n
}

// job chooses the claims of a token.
func (f *finder) job(b *box, a action.Set, n near) (*point, error) {
	configured, ok := f.to.identity(b.identity)
	if !ok {
		return nil, nil
	}
	c := claimChoices{profile: configured.Profile, values: map[string][]any{}}
	if other, ok := f.from.identity(b.identity); ok && !other.checksAs(&configured) {
		c.required = []map[string][]string{configured.Require, other.Require}
	}
	c.collect(b, n)
	names := slices.Sorted(maps.Keys(c.values))
	tried := 0
	var choose func(chosen identity.Claims, rest []string) (*point, error)
	choose = func(chosen identity.Claims, rest []string) (*point, error) {
		if len(rest) == 0 {
			if tried++; tried > maxTokens {
				return nil, errTooLarge
			}
			p := point{service: b.service, identity: b.identity}
			p.claims = configured.Profile.Complete(configured.Issuer, configured.Require, chosen)
			p.tokenID, _ = p.claims["jti"].(string)
			return f.judge(b, a, n, p)
		}
		for _, value := range c.values[rest[0]] {
			if value == nil {
				delete(chosen, rest[0])
			} else {
				chosen[rest[0]] = value
			}
			if found, err := choose(chosen, rest[1:]); found != nil || err != nil {
				return found, err
			}
		}
		delete(chosen, rest[0])
		return nil, nil
	}
	if found, err := choose(identity.Claims{}, names); found != nil || err != nil {
		return found, err
	}
	return nil, c.err
}

// claimChoices are values of claims; nil: the claim is missing.
type claimChoices struct {
	profile  identity.Profile
	required []map[string][]string // that the sides want to be different
	values   map[string][]any
	err      error // there are other values
}

func (c *claimChoices) collect(b *box, n near) {
	type comparison struct{ needed, denied, others []string }
	compared := map[string]*comparison{}
	of := func(name string) *comparison {
		if compared[name] == nil {
			compared[name] = &comparison{}
		}
		return compared[name]
	}
	types := map[string][]identity.Type{}
	read := func(w *whom, isNeeded bool) {
		for _, claim := range w.Claims {
			own := of(claim.Name)
			if isNeeded && !w.Denies {
				own.needed = append(own.needed, claim.Values...)
			} else {
				own.others = append(own.others, claim.Values...)
			}
		}
		if w.Condition == nil {
			return
		}
		for _, use := range w.Condition.Uses() {
			own := of(use.Claim)
			for term := range terms(w.condition) {
				if !strings.Contains(term, use.Claim[strings.LastIndex(use.Claim, ".")+1:]) {
					continue
				}
				for _, text := range literals(term) {
					if own.others = append(own.others, text); comparesParts(term) {
						own.others = append(own.others, text+"*", "*"+text)
					}
				}
			}
			own.others = append(own.others, numbers(w.condition)...)
			types[use.Claim] = append(types[use.Claim], use.Type)
		}
	}
	for _, w := range b.subjects() {
		read(w, true)
	}
	n.whoms(func(w *whom) bool { read(w, false); return true })
	if b.denial != nil {
		for _, claim := range b.denial.whom.Claims {
			of(claim.Name).denied = claim.Values
		}
	}
	for w := range n.whoms {
		if w.TokenIDs != nil {
			of("jti").others = append(of("jti").others, w.TokenIDs...)
		}
	}
	if b.denial != nil && b.denial.whom.TokenIDs != nil {
		of("jti").needed = append(of("jti").needed, b.denial.whom.TokenIDs...)
	}
	c.paths(b, n, func(name, value string) {
		own := of(name)
		own.others = append(own.others, value)
	})
	for _, required := range c.required {
		for name, values := range required {
			of(name).others = append(of(name).others, values...)
		}
	}
	for name, own := range compared {
		c.values[name] = c.choices(name, own.needed, own.denied, own.others, types[name])
	}
}

// numbers returns the numbers in a condition, and those beside them.
func numbers(condition string) []string {
	var all []string
	for _, field := range strings.FieldsFunc(condition, func(r rune) bool { return r < '0' || '9' < r }) {
		if len(field) < 10 {
			all = append(all, field, "1"+field)
		}
	}
	return all
}

// paths notes values of claims with which a pattern matches names that others match.
func (c *claimChoices) paths(b *box, n near, note func(name, value string)) {
	all := map[pattern.Pattern]bool{b.unit.pattern: true}
	for _, u := range n.rules {
		all[u.pattern] = true
	}
	for p := range all {
		for _, claim := range p.Claims() {
			note(claim, "example/app")
			note(claim, "1")
		}
		if len(p.Claims()) == 0 {
			continue
		}
		for other := range all {
			text := withoutPlaceholders(string(other))
			choices, _ := p.Solve(strings.ReplaceAll(strings.ReplaceAll(text, "**", "example"), "*", "example"))
			for _, values := range choices {
				for name, value := range values {
					if claim, ok := strings.CutPrefix(name, "claims."); ok {
						note(claim, value)
					}
				}
			}
		}
	}
}

// choices returns the values of a claim that are told apart. A claim that a rule needs is not
// missing. A list can have a value of a rule and one of a denial.
func (c *claimChoices) choices(name string, needed, denied, others []string, types []identity.Type) []any {
	known, isNamed := c.profile.Claim(name)
	if isNamed {
		types = []identity.Type{known.Type}
	}
	var list []string
	seen := map[string]bool{}
	word := func(value string) {
		if !seen[value] {
			seen[value] = true
			list = append(list, value)
		}
	}
	globs := func(values []string) []string {
		if known.IsName {
			return values
		}
		return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return strings.Contains(v, "*") })
	}
	var bases [][]string
	if needed == nil {
		bases = [][]string{nil}
	}
	for _, value := range needed {
		bases = append(bases, []string{value})
	}
	for _, base := range bases {
		if !known.IsName && base != nil {
			word(base[0])
			continue
		}
		if c.err != nil {
			break
		}
		for value, err := range texts.representatives("example", base, append(globs(others), globs(needed)...)) {
			if err != nil {
				c.err = err
				continue
			}
			word(value)
		}
	}
	if !isNamed { // conditions search in any text
		for _, value := range others {
			word(strings.ReplaceAll(value, "*", "x"))
		}
	}
	if needed == nil {
		word("1")
		if slices.Contains(types, identity.Boolean) {
			word("true")
		}
	}
	var all []any
	for _, value := range list {
		all = append(all, typed(value, types)...)
	}
	if !isNamed || slices.Contains(types, identity.List) {
		for _, one := range needed {
			for _, other := range denied {
				all = append(all, []string{one, other})
			}
		}
	}
	if slices.Contains(types, identity.List) {
		for i, one := range list {
			for _, other := range list[i+1:] {
				if len(all) < 200 {
					all = append(all, []string{one, other})
				}
			}
		}
	}
	if needed == nil {
		all = append(all, nil)
	}
	return all
}

// typed returns a value as claims of these types have it.
func typed(value string, types []identity.Type) []any {
	has := func(t identity.Type) bool { return slices.Contains(types, t) }
	var all []any
	if len(types) == 0 || has(identity.String) || has("") {
		all = append(all, value)
	}
	if has(identity.List) || len(types) == 0 {
		all = append(all, []string{value})
	}
	if has(identity.Boolean) {
		all = append(all, value == "true")
	}
	if has(identity.Number) {
		if number, ok := integer(value); ok {
			all = append(all, number)
		}
	}
	return all
}

func integer(text string) (n int64, ok bool) {
	for _, c := range []byte(text) {
		if c < '0' || '9' < c {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, text != "" && len(text) < 18
}
