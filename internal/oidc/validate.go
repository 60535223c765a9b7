package oidc

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

const (
	maxNameBytes     = 63
	maxAudienceBytes = 512
)

// validate reports every fault of the configuration at once. An empty setting is a fault if it
// would disable a check.
func (c Config) validate() error {
	var faults []error
	if len(c.Issuers) == 0 {
		faults = append(faults, errors.New("issuers: at least one is required"))
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Errorf("cache of %d bytes: must not be negative", c.CacheBytes))
	}
	known, urls := map[string]bool{}, map[string]bool{}
	for n, i := range c.Issuers {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("issuer %d (%s): %w", n, i.title(), fmt.Errorf(format, args...)))
		}
		i.validate(fault)
		if known[i.name()] {
			fault("name: another issuer has the same name")
		}
		if urls[i.URL] {
			fault("issuer: another entry has the same issuer %s", quote(i.URL))
		}
		known[i.name()], urls[i.URL] = true, true
	}
	return errors.Join(faults...)
}

func (i Issuer) validate(fault func(format string, args ...any)) {
	if !isName(i.name()) {
		fault("name: must be 1 to %d letters, digits, '.', '-' or '_'", maxNameBytes)
	}
	if u, err := parseHTTPS(i.URL); err != nil {
		fault("issuer: %w", err)
	} else if u.RawQuery != "" || u.ForceQuery {
		fault("issuer: %s must not have a query", quote(i.URL))
	}
	if len(i.Audiences) == 0 {
		fault("audiences: at least one is required")
	}
	for n, audience := range i.Audiences {
		if audience == "" || len(audience) > maxAudienceBytes || !names.IsVisible(audience) {
			fault("audiences[%d]: must be 1 to %d printable characters without spaces", n, maxAudienceBytes)
		}
	}
	i.PullSecrets.validate(i.Audiences, fault)
	if i.Provider != nil {
		i.validateProvider(fault)
	} else if !slices.Contains(i.Bound.Values(), i.Bound) {
		fault("bound: %s is not one of %q, %q and %q", quote(string(i.Bound)), BoundPod, BoundPodOrNode, BoundAny)
	}
	if i.MaxLifetime <= 0 {
		fault("maxTokenLifetime: must be positive")
	}
	if i.MaxKeyAge <= 0 {
		fault("discovery.maxKeyAge: must be positive")
	}
	i.Discovery.validate(fault)
}

// validateProvider requires the matching profile for a known issuer, and a tenant for an issuer
// that all customers share.
func (i Issuer) validateProvider(fault func(format string, args ...any)) {
	p := i.Provider
	if i.Cluster != "" || i.Bound != "" || i.RequireNode || i.PullSecrets.Audience != "" {
		fault("cluster, bound, node and pullSecrets are of clusters, and this is none")
	}
	if !slices.Contains(p.Profile.Values(), p.Profile) {
		fault("profile: %s is not one of %q", quote(string(p.Profile)), p.Profile.Values())
	}
	for claim, values := range p.Require {
		if claim == "" || len(values) == 0 || slices.Contains(values, "") {
			fault("require: claim %s needs values that are not empty", quote(claim))
		}
	}
	known, ok := identity.KnownIssuer(i.URL)
	if ok && known.Profile != p.Profile {
		fault("profile: must be %s for issuer %s", known.Profile, quote(i.URL))
	}
	if !known.HasTenant(p.Require) {
		fault("require: needs one of %q: anyone can get tokens of issuer %s", known.Tenant, quote(i.URL))
	}
}

func (d Discovery) validate(fault func(format string, args ...any)) {
	set := 0
	for _, s := range []string{d.URL, d.JWKSURL, d.JWKSFile} {
		if s != "" {
			set++
		}
	}
	if set > 1 {
		fault("discovery: at most one of url, jwksURL and jwksFile can be set")
	}
	if d.URL != "" {
		if _, err := parseHTTPS(d.URL); err != nil {
			fault("discovery.url: %w", err)
		}
	}
	if d.JWKSURL != "" {
		if _, err := parseHTTPS(d.JWKSURL); err != nil {
			fault("discovery.jwksURL: %w", err)
		}
	}
	if d.JWKSFile != "" && (d.CAFile != "" || d.TokenFile != "") {
		fault("discovery: caFile and tokenFile have no use with jwksFile, which needs no network")
	}
}

// parseHTTPS accepts an absolute https URL without credentials and fragment.
func parseHTTPS(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s is not a URL", quote(s)) // the error of url.Parse may contain a password
	case u.User != nil:
		return nil, errors.New("must not hold a user name or password; use discovery.tokenFile")
	case u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%s is not an https URL", quote(s))
	case strings.Contains(s, "#"):
		return nil, fmt.Errorf("%s must not have a fragment", quote(s))
	}
	return u, nil
}

func isName(s string) bool {
	if s == "" || len(s) > maxNameBytes {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlphanumeric(c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
