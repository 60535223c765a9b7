package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
)

// Assertions makes Pullpass an OpenID issuer that clouds and registries trust: it
// tells them which ServiceAccount is asking.
type Assertions struct {
	Issuer     string `json:"issuer" schema:"required https"` // how they reach the public listener, without path; iss of the assertions
	KeyFile    string `json:"keyFile"`                        // a private RSA key of your own; public ones beside it are published, too
	ManagedDir string `json:"managedDir"`                     // keys made and rotated by Pullpass
}

// Identity says as whom a cloud is asked.
type Identity string

// The identities.
const (
	IdentityGateway Identity = "gateway" // the gateway's own: that of its pod or machine
	IdentityCaller  Identity = "caller"  // the ServiceAccount that asks the gateway, by an assertion
)

// Values returns all that there are.
func (Identity) Values() []Identity { return []Identity{IdentityGateway, IdentityCaller} }

// AWSCredential is for Amazon ECR.
type AWSCredential struct {
	Identity Identity `json:"identity"` // whose IAM role asks: the gateway's own, or roleARN for the caller
	Region   string   `json:"region"`   // of the registry; empty: as its host says
	RoleARN  string   `json:"roleARN"`  // identity caller: the role whose trust policy knows the callers
}

// SetDefaults leaves the region empty: its default depends on the upstream.
func (a *AWSCredential) SetDefaults() { *a = AWSCredential{Identity: IdentityGateway} }

// GoogleCredential is for Google Artifact Registry.
type GoogleCredential struct {
	Identity Identity `json:"identity"` // who asks: the gateway's own service account, or the caller
	// Audience is the workload identity pool's provider, with identity caller:
	// //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER
	Audience string `json:"audience"`
	// ServiceAccount is whom callers impersonate, with identity caller; empty: each is
	// a principal of its own.
	ServiceAccount string `json:"serviceAccount"`
}

// SetDefaults sets the default identity.
func (g *GoogleCredential) SetDefaults() { *g = GoogleCredential{Identity: IdentityGateway} }

// AzureCredential is for Azure Container Registry.
type AzureCredential struct {
	Identity Identity `json:"identity"` // who asks: the gateway's own identity, or the caller
	TenantID string   `json:"tenantID"` // identity caller: the tenant of clientID
	ClientID string   `json:"clientID"` // of the identity that trusts the callers; with identity gateway, of one of several that the machine has
}

// SetDefaults sets the default identity.
func (a *AzureCredential) SetDefaults() { *a = AzureCredential{Identity: IdentityGateway} }

// QuayCredential is for Quay: always the caller's.
type QuayCredential struct {
	Robot string `json:"robot" schema:"required nonempty"` // ORGANIZATION+NAME, whose federation knows the callers
}

// ArtifactoryCredential is for JFrog Artifactory: always the caller's.
type ArtifactoryCredential struct {
	Provider string `json:"provider" schema:"required nonempty"` // name of the OpenID Connect integration
	Audience string `json:"audience"`                            // that it expects; empty: the upstream's url
	URL      string `json:"url" schema:"url"`                    // of the platform; empty: the upstream's url
}

// ofCaller reports whether requests to an upstream use the caller's identity, which needs an
// assertion.
func (c *UpstreamCredential) ofCaller() bool {
	return c != nil && (c.Quay != nil || c.Artifactory != nil ||
		c.AWS != nil && c.AWS.Identity == IdentityCaller ||
		c.Google != nil && c.Google.Identity == IdentityCaller ||
		c.Azure != nil && c.Azure.Identity == IdentityCaller)
}

// completeAssertions sets the defaults that depend on other settings.
func (c *Config) completeAssertions() {
	if a := c.Assertions; a != nil {
		a.Issuer = strings.TrimSuffix(a.Issuer, "/")
		if a.KeyFile == "" && a.ManagedDir == "" {
			a.ManagedDir = filepath.Join("keys", "assertions")
		}
	}
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		if u.Credential == nil {
			continue
		}
		if aws := u.Credential.AWS; aws != nil && aws.Region == "" {
			aws.Region = regionOf(u.URL)
		}
		if a := u.Credential.Artifactory; a != nil {
			a.URL = strings.TrimSuffix(a.URL, "/")
			if a.URL == "" {
				a.URL = u.URL
			}
			if a.Audience == "" {
				a.Audience = u.URL
			}
		}
	}
}

// regionOf returns the region in the host of a registry of ECR, or an empty text:
// ACCOUNT.dkr.ecr.REGION.amazonaws.com, or ACCOUNT.dkr-ecr.REGION.on.aws.
func regionOf(upstream string) string {
	u, err := url.Parse(upstream)
	if err != nil {
		return ""
	}
	labels := strings.Split(u.Hostname(), ".")
	switch {
	case len(labels) > 4 && labels[1] == "dkr" && (labels[2] == "ecr" || labels[2] == "ecr-fips"):
		return labels[3]
	case len(labels) > 3 && (labels[1] == "dkr-ecr" || labels[1] == "dkr-ecr-fips"):
		return labels[2]
	}
	return ""
}

func (v *validator) assertions(c *Config) {
	a := c.Assertions
	if a == nil {
		for i := range c.Upstreams {
			if c.Upstreams[i].Credential.ofCaller() {
				v.Fault("assertions", "is missing; upstreams[%d].credential is the caller's, so write assertions.issuer: how the upstream reaches the public listener, https://pullpass.example.com", i)
				return
			}
		}
		return
	}
	const want = "how clouds reach the public listener, https://pullpass.example.com"
	v.httpsURL("assertions.issuer", a.Issuer, want)
	if u, err := url.Parse(a.Issuer); err == nil && (u.Path != "" || u.RawQuery != "" || u.ForceQuery) {
		v.Fault("assertions.issuer", "has a path or a query (%s); write %s", term.QuoteValue(a.Issuer), want)
	}
	if a.KeyFile != "" && a.ManagedDir != "" {
		v.Fault("assertions.keyFile", "cannot be set together with managedDir (%s); remove one of them", term.QuoteValue(a.KeyFile))
	}
	for i := range c.Registries {
		s := &c.Registries[i].Signing
		if v.samePlace(a.KeyFile, s.KeyFile) {
			v.Fault("assertions.keyFile", "is that of registries[%d] as well (%s); give assertions a key of their own: who trusts them must not trust its tokens", i, term.QuoteValue(a.KeyFile))
		}
		if v.samePlace(a.ManagedDir, s.ManagedDir) {
			v.Fault("assertions.managedDir", "is that of registries[%d] as well (%s); give assertions a directory of their own", i, term.QuoteValue(a.ManagedDir))
		}
	}
}

// credential checks that an upstream has one kind of credential, with the fields that the kind
// needs.
func (v *validator) credential(path string, c *UpstreamCredential) {
	if c == nil {
		return
	}
	var kinds []string
	for _, kind := range []struct {
		name  string
		isSet bool
		check func(path string)
	}{
		{"basic", c.Basic != nil, func(path string) { v.basic(path, c.Basic) }},
		{"aws", c.AWS != nil, func(path string) { v.aws(path, c.AWS) }},
		{"google", c.Google != nil, func(path string) { v.google(path, c.Google) }},
		{"azure", c.Azure != nil, func(path string) { v.azure(path, c.Azure) }},
		{"quay", c.Quay != nil, func(path string) { v.quay(path, c.Quay) }},
		{"artifactory", c.Artifactory != nil, func(path string) { v.artifactory(path, c.Artifactory) }},
	} {
		if kind.isSet {
			kinds = append(kinds, kind.name)
			kind.check(path + "." + kind.name)
		}
	}
	switch {
	case len(kinds) == 0:
		v.Fault(path, "is empty; write one kind of credential, or remove it and the upstream is asked anonymously")
	case len(kinds) > 1:
		v.Fault(path, "has %s; keep one of them", strings.Join(kinds, " and "))
	}
}

func (v *validator) basic(path string, c *BasicCredential) {
	if c.Username == "" || strings.ContainsAny(c.Username, ":\r\n") || !names.IsVisible(c.Username) {
		v.Fault(path+".username", "is not a user name (%s); write it without colon and spaces", term.QuoteValue(c.Username))
	}
	if c.PasswordFile == "" {
		v.Fault(path+".passwordFile", "is missing; name the file with the password")
	}
}

func (v *validator) aws(path string, c *AWSCredential) {
	oneOf(v, path+".identity", c.Identity)
	switch {
	case c.Region == "":
		v.Fault(path+".region", "is missing; the upstream's host does not name it, so write the registry's: eu-central-1")
	case !names.IsLabel(c.Region):
		v.Fault(path+".region", "is not a region (%s); write the registry's: eu-central-1", term.QuoteValue(c.Region))
	}
	const example = "arn:aws:iam::123456789012:role/pullpass"
	v.ofCaller(path+".roleARN", c.Identity, c.RoleARN, "write the role that callers assume: "+example)
	if c.RoleARN == "" {
		return
	}
	// arn:PARTITION:iam::ACCOUNT:role/PATH
	if parts := strings.SplitN(c.RoleARN, ":", 6); len(parts) != 6 || parts[0] != "arn" || parts[2] != "iam" || !strings.HasPrefix(parts[5], "role/") ||
		!isDecimal(parts[4]) || !names.IsVisible(c.RoleARN) {
		v.Fault(path+".roleARN", "is not the ARN of a role (%s); write it as IAM shows it: %s", term.QuoteValue(c.RoleARN), example)
	}
}

func (v *validator) google(path string, c *GoogleCredential) {
	oneOf(v, path+".identity", c.Identity)
	const example = "//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER"
	v.ofCaller(path+".audience", c.Identity, c.Audience, "write the provider's name: "+example)
	if c.Audience != "" && !isPoolProvider(c.Audience) {
		v.Fault(path+".audience", "is not the provider of a workload identity pool (%s); write %s", term.QuoteValue(c.Audience), example)
	}
	if c.ServiceAccount == "" {
		return
	}
	v.ofCaller(path+".serviceAccount", c.Identity, c.ServiceAccount, "")
	if name, domain, found := strings.Cut(c.ServiceAccount, "@"); !found || !names.IsLabel(name) || !names.IsSubdomain(domain) {
		v.Fault(path+".serviceAccount", "is not a service account's address (%s); write NAME@PROJECT.iam.gserviceaccount.com", term.QuoteValue(c.ServiceAccount))
	}
}

// isPoolProvider checks only the form.
func isPoolProvider(s string) bool {
	parts := strings.Split(s, "/")
	return len(parts) == 11 && strings.HasPrefix(s, "//iam.googleapis.com/projects/") && isDecimal(parts[4]) &&
		parts[5] == "locations" && parts[7] == "workloadIdentityPools" && parts[9] == "providers" &&
		!slices.Contains(parts[3:], "") && names.IsVisible(s)
}

func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (v *validator) azure(path string, c *AzureCredential) {
	oneOf(v, path+".identity", c.Identity)
	const example = "as Entra shows it, 00000000-0000-0000-0000-000000000000"
	v.ofCaller(path+".tenantID", c.Identity, c.TenantID, "write the tenant of the identity, "+example)
	if c.Identity == IdentityCaller && c.ClientID == "" {
		v.Fault(path+".clientID", "is missing; write the client ID of the identity that trusts the callers, %s", example)
	}
	for _, id := range []struct{ name, value string }{{"tenantID", c.TenantID}, {"clientID", c.ClientID}} {
		if id.value != "" && !isGUID(id.value) {
			v.Fault(path+"."+id.name, "is not an ID (%s); write it %s", term.QuoteValue(id.value), example)
		}
	}
}

func isGUID(s string) bool {
	parts := strings.Split(s, "-")
	if len(parts) != 5 {
		return false
	}
	for i, length := range []int{8, 4, 4, 4, 12} {
		if len(parts[i]) != length || strings.Trim(parts[i], "0123456789abcdefABCDEF") != "" {
			return false
		}
	}
	return true
}

func (v *validator) quay(path string, c *QuayCredential) {
	if organization, name, found := strings.Cut(c.Robot, "+"); !found || organization == "" || name == "" || strings.Contains(c.Robot, ":") || !names.IsVisible(c.Robot) {
		v.Fault(path+".robot", "is not a robot account (%s); write ORGANIZATION+NAME", term.QuoteValue(c.Robot))
	}
}

func (v *validator) artifactory(path string, c *ArtifactoryCredential) {
	if !isName(c.Provider) {
		v.Fault(path+".provider", "is not a name (%s); write the provider name of the OpenID Connect integration", term.QuoteValue(c.Provider))
	}
	if c.Audience != "" && (len(c.Audience) > maxAudienceBytes || !names.IsVisible(c.Audience)) {
		v.Fault(path+".audience", "is not an audience (%s); use at most %d visible ASCII characters", term.QuoteValue(c.Audience), maxAudienceBytes)
	}
	if c.URL != "" {
		v.baseURL(path+".url", c.URL, "where the platform is, https://acme.jfrog.io")
	}
}

// ofCaller requires a field with identity caller and forbids it otherwise.
func (v *validator) ofCaller(path string, identity Identity, value, remedy string) {
	switch {
	case identity == IdentityCaller && value == "":
		v.Fault(path, "is missing; %s", remedy)
	case identity == IdentityGateway && value != "":
		v.Fault(path, "has no use with identity %s (%s); remove it, or write identity: %s", identity, term.QuoteValue(value), IdentityCaller)
	}
}
