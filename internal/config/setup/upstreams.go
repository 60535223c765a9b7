package setup

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/artifactory"
	"github.com/pullpass/pullpass/internal/gateway/upstream/aws"
	"github.com/pullpass/pullpass/internal/gateway/upstream/azure"
	"github.com/pullpass/pullpass/internal/gateway/upstream/google"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/quay"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
)

// NewAssertions opens the keys of the issuer that upstreams trust. It returns nil if none is
// configured. Keys in a directory may still be missing: Maintain makes them.
func NewAssertions(cfg *config.Config, logger *slog.Logger) (*assertion.Issuer, error) {
	a := cfg.Assertions
	if a == nil {
		return nil, nil
	}
	return assertion.New(assertion.Config{Issuer: a.Issuer, KeyFile: a.KeyFile, ManagedDir: a.ManagedDir, Logger: logger})
}

// UpstreamLogins returns the credentials for an upstream. nil means anonymous requests. assertions
// may be nil if no credential uses the caller's identity. It opens the CA file and uses no network.
func UpstreamLogins(u *config.Upstream, assertions *assertion.Issuer, logger *slog.Logger) (upstream.Logins, error) {
	c := u.Credential
	if c == nil {
		return nil, nil
	}
	if c.Basic != nil {
		return upstream.NewBasic(c.Basic.Username, c.Basic.PasswordFile, nil), nil
	}
	roots, err := upstream.ReadCAs(u.CAFile)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", u.Name, err)
	}
	var signs logins.Assertions // stays nil without an issuer
	if assertions != nil {
		signs = assertions
	}
	switch {
	case c.AWS != nil:
		return aws.New(context.Background(), aws.Config{
			Upstream: u.Name, Region: c.AWS.Region, RoleARN: c.AWS.RoleARN, Assertions: signs, Logger: logger,
		})
	case c.Google != nil:
		return google.New(google.Config{
			Upstream: u.Name, Audience: c.Google.Audience, ServiceAccount: c.Google.ServiceAccount, Assertions: signs, Logger: logger,
		})
	case c.Azure != nil:
		return azure.New(azure.Config{
			Upstream: u.Name, URL: u.URL, Roots: roots, TenantID: c.Azure.TenantID, ClientID: c.Azure.ClientID, Assertions: signs, Logger: logger,
		})
	case c.Quay != nil:
		return quay.New(quay.Config{
			Upstream: u.Name, URL: u.URL, Roots: roots, Robot: c.Quay.Robot, Assertions: signs, Logger: logger,
		})
	case c.Artifactory != nil:
		return artifactory.New(artifactory.Config{
			Upstream: u.Name, URL: c.Artifactory.URL, Roots: roots, Provider: c.Artifactory.Provider, Audience: c.Artifactory.Audience, Assertions: signs, Logger: logger,
		})
	}
	return nil, fmt.Errorf("upstream %s: its credential is of no kind that is known", u.Name)
}
