package identity

import (
	"net/url"
	"slices"
	"strings"
)

// Known holds the facts that the URL of an issuer implies.
type Known struct {
	// Profile is the only profile that may check its tokens.
	Profile Profile
	// Tenant lists claims of which one must be required, because any customer can get tokens of the
	// issuer. If it is empty, the issuer belongs to one customer. The claims are ids, because names
	// can be given to another owner.
	Tenant []string
}

// HasTenant reports whether one of the tenant's claims is required, if that is necessary.
func (k Known) HasTenant(require map[string][]string) bool {
	return len(k.Tenant) == 0 || slices.ContainsFunc(k.Tenant, func(claim string) bool { return len(require[claim]) > 0 })
}

// KnownIssuer returns the facts about an issuer. An issuer that Pullpass does not know can also be
// shared by all customers.
func KnownIssuer(issuer string) (Known, bool) {
	u, err := url.Parse(issuer)
	if err != nil {
		return Known{}, false
	}
	host, path := strings.ToLower(u.Hostname()), strings.Trim(u.Path, "/")
	for _, p := range profiles {
		if p.issuer == nil {
			continue
		}
		if tenant, ok := p.issuer(host, path); ok {
			return Known{p.name, tenant}, true
		}
	}
	return Known{}, false
}

// hosts is the issuer of a profile whose issuers have these hosts.
func hosts(tenant []string, hosts ...string) func(host, path string) ([]string, bool) {
	return func(host, _ string) ([]string, bool) { return tenant, slices.Contains(hosts, host) }
}

// AudienceOfOthers names the owner of an audience that was not chosen for Pullpass, as in "AWS's".
// Anyone who gets such a token could use it here. It is empty for an audience that may belong to
// Pullpass.
func AudienceOfOthers(p Profile, issuer, audience string) string {
	switch audience {
	case "sts.amazonaws.com":
		return "AWS's"
	case "api://AzureADTokenExchange", "api://AzureADTokenExchangeUSGov", "api://AzureADTokenExchangeChina",
		"https://management.azure.com", "https://management.azure.com/", "https://management.core.windows.net/", "https://graph.microsoft.com":
		return "Azure's"
	case "sigstore":
		return "Sigstore's"
	case "pypi":
		return "PyPI's"
	case issuer:
		return "the issuer's default"
	}
	switch {
	case strings.HasPrefix(strings.TrimPrefix(audience, "https:"), "//iam.googleapis.com/"):
		return "Google Cloud's"
	case strings.HasPrefix(audience, "npm:"): // and the host of a registry of packages
		return "npm's"
	}
	if isDefault := p.known().isDefault; isDefault != nil && isDefault(issuer, audience) {
		return "the issuer's default"
	}
	return ""
}
