package oidc

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/names"
)

const (
	maxClusterBytes  = 63
	maxAudienceBytes = 512
)

// validate reports every fault of the configuration at once. An empty setting
// is a fault wherever it would switch a check off.
func (c Config) validate() error {
	var faults []error
	if len(c.Issuers) == 0 {
		faults = append(faults, errors.New("issuers: at least one is required"))
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Errorf("cache of %d bytes: must not be negative", c.CacheBytes))
	}
	clusters, urls := map[string]bool{}, map[string]bool{}
	for n, i := range c.Issuers {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("issuer %d (cluster %s): %w", n, quote(i.Cluster), fmt.Errorf(format, args...)))
		}
		i.validate(fault)
		if clusters[i.Cluster] {
			fault("cluster: another issuer has the same name")
		}
		if urls[i.URL] {
			fault("issuer: another cluster has the same issuer %s", quote(i.URL))
		}
		clusters[i.Cluster], urls[i.URL] = true, true
	}
	return errors.Join(faults...)
}

func (i Issuer) validate(fault func(format string, args ...any)) {
	if !isClusterName(i.Cluster) {
		fault("cluster: must be 1 to %d letters, digits, '.', '-' or '_'", maxClusterBytes)
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
	if !slices.Contains(i.Bound.Values(), i.Bound) {
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
		return nil, fmt.Errorf("%s is not a URL", quote(s)) // what url.Parse reports may hold a password
	case u.User != nil:
		return nil, errors.New("must not hold a user name or password; use discovery.tokenFile")
	case u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%s is not an https URL", quote(s))
	case strings.Contains(s, "#"):
		return nil, fmt.Errorf("%s must not have a fragment", quote(s))
	}
	return u, nil
}

func isClusterName(s string) bool {
	if s == "" || len(s) > maxClusterBytes {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlphanumeric(c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
