package identity

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

// profileTest is what the test of a profile says of it.
type profileTest struct {
	claims       Claims // of a token
	project, run string
	issuers      map[string]bool // whether all customers share them
	audiences    []audienceTest
	repeats      map[string]bool // claims
}

type audienceTest struct {
	issuer, audience string
	others           bool
}

func (test profileTest) check(t *testing.T, p Profile) {
	t.Helper()
	e, err := p.External("ci", test.claims)
	if err != nil || e.Project != test.project || e.Run != test.run || e.Provider != "ci" || e.Profile != p || !maps.Equal(e.Claims, test.claims) {
		t.Errorf("%s: %+v, %v", p, e, err)
	}
	for _, name := range p.known().needs {
		for _, bad := range []any{nil, "", 7, true, []string{"a"}, strings.Repeat("a", 129) + "\n"} {
			claims := maps.Clone(test.claims)
			claims[name] = bad
			if bad == nil {
				delete(claims, name)
			}
			if e, err := p.External("ci", claims); err == nil && !(p == Generic && reflect.TypeOf(bad) == reflect.TypeFor[string]()) {
				t.Errorf("%s: with %s = %v it is %+v", p, name, bad, e)
			}
		}
	}
	for issuer, shared := range test.issuers {
		known, ok := KnownIssuer(issuer)
		if !ok || known.Profile != p || len(known.Tenant) > 0 != shared {
			t.Errorf("%s: %+v, %v", issuer, known, ok)
		}
		if known.HasTenant(nil) == shared || known.HasTenant(map[string][]string{"ref": {"a"}}) == shared {
			t.Errorf("%s: HasTenant is wrong for require without a tenant", issuer)
		}
		for _, claim := range known.Tenant {
			if c, ok := p.Claim(claim); !ok || c.Instead != "" || c.IsName || c.Type != String {
				t.Errorf("%s: the tenant %s is not an id", issuer, claim)
			}
			if !known.HasTenant(map[string][]string{claim: {"a"}}) || known.HasTenant(map[string][]string{claim: {}}) {
				t.Errorf("%s: %s does not count as the tenant, or counts without values", issuer, claim)
			}
		}
	}
	for _, test := range test.audiences {
		if whose := AudienceOfOthers(p, test.issuer, test.audience); (whose != "") != test.others {
			t.Errorf("%s at %s is %q", test.audience, test.issuer, whose)
		}
	}
	for claim, want := range test.repeats {
		if got := p.Repeats(claim); got != want {
			t.Errorf("%s of %s: %t", claim, p, got)
		}
	}
}
