package oidc

import (
	"errors"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
)

// Claims without their token are checked like those of a token, except for the facts that only the
// token proves.
func TestIdentifyClaims(t *testing.T) {
	t.Parallel()
	for _, c := range providerCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			judge := func(patch map[string]any) (Identity, *Error) {
				id, err := c.issuer.IdentifyClaims([]byte(c.patched(t, patch)))
				refused, _ := errors.AsType[*Error](err)
				return id, refused
			}
			id, refused := judge(nil)
			if refused != nil || id.External == nil || id.External.Project == "" || id.Subject != c.issuer.Provider.Name+"/"+c.token["sub"].(string) {
				t.Errorf("the good claims: %+v, %v", id, refused)
			}
			if without, refused := judge(map[string]any{"iss": nil, "aud": nil, "exp": nil, "iat": nil, "nbf": nil, "jti": nil}); refused != nil || without.External.Project != id.External.Project {
				t.Errorf("without what only a token needs: %+v, %v", without, refused)
			}
			for name, patch := range map[string]map[string]any{
				"iss":    {"iss": "https://issuer.example.com"},
				"aud":    {"aud": "other"},
				"aud ":   {"aud": 1},
				"sub":    {"sub": "a\nb"},
				"sub  ":  {"sub": ""},
				"sub ":   {"sub": strings.Repeat("a", maxSubjectBytes+1)},
				"jti":    {"jti": "sha256:1"},
				"a pod":  {"kubernetes.io": map[string]any{"namespace": "a"}},
				"a type": {"exp": "soon"},
				"a part": {"exp": 1.5},
			} {
				id, refused := judge(patch)
				reason := refusal.TokenClaims
				switch name {
				case "iss":
					reason = refusal.TokenUnknownIssuer
				case "aud":
					reason = refusal.TokenAudience
				case "sub", "sub ":
					if refused != nil && refused.Reason == refusal.TokenRequire { // some identities require a value of sub
						reason = refusal.TokenRequire
					}
				}
				if refused == nil || refused.Reason != reason || id.External != nil || refused.Provider != c.issuer.Provider.Name {
					t.Errorf("%s: %+v, %v", name, id, refused)
				}
			}
			// Claims that make a token invalid are refused here, too.
			for _, h := range c.hostile {
				if refusal.Reason(h.reason) != refusal.TokenClaims && refusal.Reason(h.reason) != refusal.TokenRequire && refusal.Reason(h.reason) != refusal.TokenAudience {
					continue
				}
				if _, refused := judge(h.patch); refused == nil && !onlyOfTokens(h.patch) {
					t.Errorf("hostile claims pass: %s", h.name)
				}
			}
		})
	}
	if _, err := (&Issuer{Provider: &Provider{Name: "x"}}).IdentifyClaims([]byte("{\"sub\": \"\xff\"}")); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
		t.Errorf("no UTF-8: %v", err)
	}
}

// onlyOfTokens reports whether a patch changes nothing but the times of a token, or
// takes away what claims without a token need not have.
func onlyOfTokens(patch map[string]any) bool {
	for name, value := range patch {
		switch name {
		case "exp", "iat", "nbf":
		case "iss", "sub", "aud", "jti":
			if value != nil {
				return false
			}
		default:
			return false
		}
	}
	return true
}
