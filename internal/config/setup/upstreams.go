package setup

import (
	"fmt"
	"log/slog"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
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
	if u.Credential == nil {
		return nil, nil
	}
	_, kinds := u.Credential.Kinds()
	if len(kinds) != 1 {
		return nil, fmt.Errorf("upstream %s: its credential is of no kind that is known", u.Name)
	}
	roots, err := upstream.ReadCAs(u.CAFile)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", u.Name, err)
	}
	service := logins.Service{Upstream: u.Name, URL: u.URL, Roots: roots, Logger: logger}
	if assertions != nil {
		service.Assertions = assertions
	}
	return kinds[0].Open(service)
}
