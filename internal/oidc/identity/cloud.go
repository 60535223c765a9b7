package identity

import (
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
)

// spiffe follows the standard of JWT-SVIDs, section 3. Its only own claim is sub, a SPIFFE ID.
var spiffe = profile{
	needs: []string{"sub"}, project: "sub",
	check: func(c Claims) string {
		if !isSPIFFEID(c["sub"].(string)) {
			return `claim "sub" is not the SPIFFE ID of a workload: spiffe://TRUST-DOMAIN/PATH`
		}
		return ""
	},
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

// google follows https://cloud.google.com/docs/authentication/token-types#id. sub is the number of
// a service account or of a person, and is never reused. An address can be reused after it was
// deleted.
var google = profile{
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
}

// azure follows https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference.
// An application has an object (oid) in each tenant (tid) that admits it.
var azure = profile{
	claims: map[string]Claim{
		"tid":                pathID,
		"oid":                pathID,
		"appid":              pathID,
		"azp":                pathID,
		"idtyp":              id,
		"ver":                id,
		"uti":                id,
		"idp":                id,
		"appidacr":           id,
		"azpacr":             id,
		"xms_mirid":          instead("oid"),
		"xms_az_rid":         instead("oid"),
		"roles":              list,
		"groups":             list,
		"wids":               list,
		"scp":                id,
		"name":               instead("oid"),
		"email":              instead("oid"),
		"upn":                instead("oid"),
		"unique_name":        instead("oid"),
		"preferred_username": instead("oid"),
	},
	needs:   []string{"tid", "oid"},
	remedy:  "ask for an access token or ID token of an application of this tenant",
	project: "oid",
	check: func(c Claims) string {
		// https://login.microsoftonline.com/TENANT/v2.0 or https://sts.windows.net/TENANT/
		if !inPath(c, c["tid"]) {
			return `claim "tid" is not the tenant of "iss"`
		}
		return ""
	},
}

// aws follows
// https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_providers_outbound_token_claims.html.
// The claim about the account and the session is an object, and is not compared.
var aws = profile{
	needs: []string{"sub"}, project: "sub",
	check: func(c Claims) string {
		// arn:PARTITION:iam::ACCOUNT:role/PATH
		sub := c["sub"].(string)
		parts := strings.SplitN(sub, ":", 6)
		if len(parts) != 6 || parts[0] != "arn" || parts[1] == "" || parts[2] != "iam" || parts[3] != "" || len(parts[4]) != 12 || !names.IsDecimal(parts[4]) ||
			!strings.HasPrefix(parts[5], "role/") || parts[5] == "role/" || !names.IsVisible(sub) {
			return `claim "sub" is not the ARN of a role: arn:aws:iam::ACCOUNT:role/NAME`
		}
		return ""
	},
}

// inPath reports whether a component of the issuer's path is this value.
func inPath(c Claims, value any) bool {
	issuer, _ := c["iss"].(string)
	for part := range strings.SplitSeq(issuer, "/") {
		if part == value {
			return true
		}
	}
	return false
}
