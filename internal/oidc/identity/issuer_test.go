package identity

import "testing"

func TestUnknownIssuers(t *testing.T) {
	t.Parallel()
	for _, issuer := range []string{
		"https://github.example.com/_services/token",
		"https://gitlab.example.com",
		"https://evil-gitlab.com",
		"https://jenkins.example.com",
		"https://octo.ghe.com",
		"https://token.actions.octo.example.com",
		"https://login.example.com/" + personalTenant + "/v2.0",
		"",
		"https://[",
	} {
		if known, ok := KnownIssuer(issuer); ok || known.Profile != "" || len(known.Tenant) > 0 || !known.HasTenant(nil) {
			t.Errorf("%s: %+v, %v", issuer, known, ok)
		}
	}
}
