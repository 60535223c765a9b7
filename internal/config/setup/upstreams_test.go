package setup

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/gateway/upstream/artifactory"
	"github.com/pullpass/pullpass/internal/gateway/upstream/aws"
	"github.com/pullpass/pullpass/internal/gateway/upstream/azure"
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/gateway/upstream/google"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/quay"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each kind of credential that can be configured has logins.
func TestEachKindOfCredentialHasLogins(t *testing.T) {
	t.Parallel()
	assertions, err := NewAssertions(&config.Config{Assertions: &config.Assertions{Issuer: "https://pullpass.example.com", ManagedDir: filepath.Join(t.TempDir(), "keys")}}, nil)
	testkit.Must(t, err)
	seen := map[string]bool{}
	const id = "11111111-2222-3333-4444-555555555555"
	for name, c := range map[string]struct {
		credential config.UpstreamCredential
		ofCaller   bool
	}{
		"basic":                 {config.UpstreamCredential{Basic: &basic.Credential{Username: "a", PasswordFile: "b"}}, false},
		"aws of the gateway":    {config.UpstreamCredential{AWS: &aws.Credential{Region: "eu-central-1"}}, false},
		"aws of the caller":     {config.UpstreamCredential{AWS: &aws.Credential{Identity: logins.Caller, Region: "eu-central-1", RoleARN: "arn:aws:iam::123456789012:role/a"}}, true},
		"google of the gateway": {config.UpstreamCredential{Google: &google.Credential{}}, false},
		"google of the caller":  {config.UpstreamCredential{Google: &google.Credential{Identity: logins.Caller, Audience: "//iam.googleapis.com/a"}}, true},
		"azure of the gateway":  {config.UpstreamCredential{Azure: &azure.Credential{}}, false},
		"azure of the caller":   {config.UpstreamCredential{Azure: &azure.Credential{Identity: logins.Caller, TenantID: id, ClientID: id}}, true},
		"quay":                  {config.UpstreamCredential{Quay: &quay.Credential{Robot: "acme+a"}}, true},
		"artifactory":           {config.UpstreamCredential{Artifactory: &artifactory.Credential{Provider: "a", URL: "https://acme.jfrog.io"}}, true},
	} {
		kinds, _ := c.credential.Kinds()
		seen[kinds[0]] = true
		u := &config.Upstream{Name: "a", URL: "https://registry.example.com", Credential: &c.credential}
		if logins, err := UpstreamLogins(u, assertions, nil); err != nil || logins == nil {
			t.Errorf("%s: %v, %v", name, logins, err)
		}
		if _, err := UpstreamLogins(u, nil, nil); (err != nil) != c.ofCaller {
			t.Errorf("%s, without assertions: %v", name, err)
		}
	}
	if all := reflect.TypeFor[config.UpstreamCredential]().NumField(); len(seen) != all {
		t.Errorf("%d of %d kinds were tried", len(seen), all)
	}
	if logins, err := UpstreamLogins(&config.Upstream{Name: "a"}, assertions, nil); err != nil || logins != nil {
		t.Errorf("without a credential: %v, %v", logins, err)
	}
	for want, u := range map[string]*config.Upstream{
		"no kind that is known": {Name: "a", Credential: &config.UpstreamCredential{}},
		"no such file":          {Name: "a", CAFile: filepath.Join(t.TempDir(), "missing"), Credential: &config.UpstreamCredential{Azure: &azure.Credential{}}},
	} {
		if _, err := UpstreamLogins(u, assertions, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if assertions, err := NewAssertions(&config.Config{}, nil); assertions != nil || err != nil {
		t.Errorf("without an issuer: %v, %v", assertions, err)
	}
}
