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
	switch host {
	case "token.actions.githubusercontent.com":
		if path != "" {
			return Known{Profile: GitHub}, true // that of one enterprise: its slug
		}
		return Known{GitHub, []string{"repository_owner_id", "repository_id", "enterprise_id"}}, true
	case "gitlab.com":
		return Known{GitLab, []string{"project_id", "namespace_id"}}, true
	case "agent.buildkite.com":
		return Known{Buildkite, []string{"organization_id", "pipeline_id"}}, true
	case "oidc.circleci.com":
		return Known{Profile: CircleCI}, true
	case "api.bitbucket.org":
		return Known{Profile: Bitbucket}, true
	case "app.terraform.io", "app.eu.terraform.io":
		return Known{Terraform, []string{"terraform_organization_id", "terraform_project_id", "terraform_workspace_id"}}, true
	case "accounts.google.com":
		return Known{Google, []string{"sub"}}, true
	case "login.microsoftonline.com", "sts.windows.net", "login.microsoftonline.us", "login.partner.microsoftonline.cn", "sts.chinacloudapi.cn":
		if tenant, _, _ := strings.Cut(path, "/"); strings.EqualFold(tenant, personalTenant) {
			return Known{Azure, []string{"oid"}}, true
		}
		return Known{Profile: Azure}, true
	}
	switch {
	case strings.HasPrefix(host, "token.actions.") && strings.HasSuffix(host, ".ghe.com"):
		return Known{Profile: GitHub}, true
	case strings.HasSuffix(host, ".tokens.sts.global.api.aws"):
		return Known{Profile: AWS}, true
	}
	return Known{}, false
}

// personalTenant is the tenant of all personal accounts of Microsoft.
const personalTenant = "9188040d-6c67-4c5b-b112-36a304b66dad"

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
	isDefault := false
	switch p {
	case GitHub:
		isDefault = isOwnerURL(issuer, audience)
	case Buildkite:
		isDefault = strings.HasPrefix(audience, "https://buildkite.com/")
	case CircleCI:
		isDefault = strings.HasSuffix(issuer, "/org/"+audience)
	case Bitbucket:
		isDefault = strings.HasPrefix(audience, "ari:cloud:bitbucket::workspace/")
	case Terraform:
		isDefault = strings.HasSuffix(audience, ".workload.identity")
	}
	if isDefault {
		return "the issuer's default"
	}
	return ""
}

// isOwnerURL reports whether an audience is the URL of an owner of repositories:
// https://HOST/OWNER. HOST is github.com, SUB.ghe.com, or the host of an Enterprise Server, whose
// issuer is https://HOST/_services/token.
func isOwnerURL(issuer, audience string) bool {
	a, err := url.Parse(audience)
	if err != nil {
		return false
	}
	i, err := url.Parse(issuer)
	if err != nil {
		return false
	}
	host, issuingHost := strings.ToLower(a.Hostname()), strings.ToLower(i.Hostname())
	owner := strings.Trim(a.Path, "/")
	return owner != "" && !strings.Contains(owner, "/") &&
		(host == "github.com" || host == issuingHost || "token.actions."+host == issuingHost)
}
