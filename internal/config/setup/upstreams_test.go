package setup

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each kind of credential that can be configured has logins.
func TestEachKindOfCredentialHasLogins(t *testing.T) {
	t.Parallel()
	assertions, err := NewAssertions(&config.Config{Assertions: &config.Assertions{Issuer: "https://pullpass.example.com", ManagedDir: filepath.Join(t.TempDir(), "keys")}}, nil)
	testkit.Must(t, err)
	const id = "11111111-2222-3333-4444-555555555555"
	for name, c := range map[string]struct {
		credential config.UpstreamCredential
		ofCaller   bool
	}{
		"basic":                 {config.UpstreamCredential{Basic: &config.BasicCredential{Username: "a", PasswordFile: "b"}}, false},
		"aws of the gateway":    {config.UpstreamCredential{AWS: &config.AWSCredential{Region: "eu-central-1"}}, false},
		"aws of the caller":     {config.UpstreamCredential{AWS: &config.AWSCredential{Region: "eu-central-1", RoleARN: "arn:aws:iam::123456789012:role/a"}}, true},
		"google of the gateway": {config.UpstreamCredential{Google: &config.GoogleCredential{}}, false},
		"google of the caller":  {config.UpstreamCredential{Google: &config.GoogleCredential{Audience: "//iam.googleapis.com/a"}}, true},
		"azure of the gateway":  {config.UpstreamCredential{Azure: &config.AzureCredential{}}, false},
		"azure of the caller":   {config.UpstreamCredential{Azure: &config.AzureCredential{TenantID: id, ClientID: id}}, true},
		"quay":                  {config.UpstreamCredential{Quay: &config.QuayCredential{Robot: "acme+a"}}, true},
		"artifactory":           {config.UpstreamCredential{Artifactory: &config.ArtifactoryCredential{Provider: "a", URL: "https://acme.jfrog.io"}}, true},
	} {
		u := &config.Upstream{Name: "a", URL: "https://registry.example.com", Credential: &c.credential}
		if logins, err := UpstreamLogins(u, assertions, nil); err != nil || logins == nil {
			t.Errorf("%s: %v, %v", name, logins, err)
		}
		if _, err := UpstreamLogins(u, nil, nil); (err != nil) != c.ofCaller {
			t.Errorf("%s, without assertions: %v", name, err)
		}
	}
	if logins, err := UpstreamLogins(&config.Upstream{Name: "a"}, assertions, nil); err != nil || logins != nil {
		t.Errorf("without a credential: %v, %v", logins, err)
	}
	for want, u := range map[string]*config.Upstream{
		"no kind that is known": {Name: "a", Credential: &config.UpstreamCredential{}},
		"no such file":          {Name: "a", CAFile: filepath.Join(t.TempDir(), "missing"), Credential: &config.UpstreamCredential{Azure: &config.AzureCredential{}}},
	} {
		if _, err := UpstreamLogins(u, assertions, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if assertions, err := NewAssertions(&config.Config{}, nil); assertions != nil || err != nil {
		t.Errorf("without an issuer: %v, %v", assertions, err)
	}
}
