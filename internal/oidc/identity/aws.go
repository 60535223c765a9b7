package identity

import (
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
)

// AWS follows
// https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_providers_outbound_token_claims.html.
// The claim about the account and the session is an object, and is not compared.
const AWS Profile = "aws"

var aws = profile{
	name:  AWS,
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
	issuer: func(host, _ string) ([]string, bool) {
		return nil, strings.HasSuffix(host, ".tokens.sts.global.api.aws")
	},
	advice: []Advice{{[]string{"sub"}, "", "any role of the account pushes", `sub: ["arn:aws:iam::…"]`}},
}
