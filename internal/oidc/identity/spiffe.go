package identity

import "strings"

// SPIFFE follows the standard of JWT-SVIDs, section 3. Its only own claim is sub, a SPIFFE ID.
const SPIFFE Profile = "spiffe"

var spiffe = profile{
	name:  SPIFFE,
	needs: []string{"sub"}, project: "sub",
	check: func(c Claims) string {
		if !isSPIFFEID(c["sub"].(string)) {
			return `claim "sub" is not the SPIFFE ID of a workload: spiffe://TRUST-DOMAIN/PATH`
		}
		return ""
	},
	noIssuedAt: true, // the standard does not ask for iat
	advice:     []Advice{{[]string{"sub"}, "", "any workload of the trust domain pushes", `sub: ["spiffe://…"]`}},
}

// isSPIFFEID follows the standard of SPIFFE IDs, section 2. It accepts only one form of each id, so
// ids are equal only if their texts are equal.
func isSPIFFEID(s string) bool {
	rest, ok := strings.CutPrefix(s, "spiffe://")
	domain, path, _ := strings.Cut(rest, "/")
	if !ok || domain == "" || len(domain) > 255 || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
		for _, c := range []byte(segment) {
			if !isAlphanumeric(c) && c != '.' && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
