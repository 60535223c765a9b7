package identity

import "github.com/pullpass/pullpass/internal/base/names"

// Google follows https://cloud.google.com/docs/authentication/token-types#id. sub is the number of
// a service account or of a person, and is never reused. An address can be reused after it was
// deleted.
const Google Profile = "google"

var google = profile{
	name: Google,
	claims: map[string]Claim{
		"azp":            id,
		"email":          instead("sub"),
		"email_verified": boolean,
		"hd":             instead("sub"),
	},
	needs: []string{"sub"}, project: "sub",
	check: func(c Claims) string {
		if !names.IsDecimal(c["sub"].(string)) {
			return `claim "sub" is not the number of an account`
		}
		return ""
	},
	issuer: hosts([]string{"sub"}, "accounts.google.com"),
	advice: []Advice{{[]string{"sub"}, "", "any account pushes that identities[].require lets in", `sub: ["…"]`}},
}
