package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

const maxClaimBytes = 512 // of the name of a claim, and of a value that is required

// Provider is an issuer whose tokens are of others than pods: of CI jobs, and of
// workloads of clouds and of SPIFFE.
type Provider struct {
	Name      string           `json:"name" schema:"required label"`         // stands in policies, audit lines and metrics; no cluster has the same
	Issuer    string           `json:"issuer" schema:"required https"`       // exact value of iss
	Profile   identity.Profile `json:"profile" schema:"required"`            // what claims its tokens have
	Audiences []string         `json:"audiences" schema:"required nonempty"` // a token needs one of these; name one that nothing else uses
	// Require are claims that every token has, each with one of these values exactly.
	// Issuers that serve all tenants need their tenant here.
	Require          map[string][]string `json:"require"`
	MaxTokenLifetime Duration            `json:"maxTokenLifetime"` // tokens that live longer are refused
	Discovery        Discovery           `json:"discovery"`
}

// SetDefaults fills in what is not required.
func (p *Provider) SetDefaults() {
	*p = Provider{
		Discovery:        Discovery{MaxKeyAge: Duration(24 * time.Hour)},
		Require:          map[string][]string{},
		MaxTokenLifetime: Duration(time.Hour),
	}
}

// identities checks the identities, and that no cluster has the same name or issuer.
func (v *validator) identities(c *Config) {
	clusters, issuers := map[string]int{}, map[string]int{}
	for i := range c.Clusters {
		clusters[c.Clusters[i].Name], issuers[c.Clusters[i].Issuer] = i, i
	}
	for i := range c.Identities {
		p := &c.Identities[i]
		path := fmt.Sprintf("identities[%d]", i)
		v.provider(path, p)
		if n, ok := clusters[p.Name]; ok {
			v.Fault(path+".name", "is that of clusters[%d] as well (%s); give it a different name", n, term.QuoteValue(p.Name))
		}
		if n, ok := issuers[p.Issuer]; ok && p.Issuer != "" {
			v.Fault(path+".issuer", "is that of clusters[%d] as well (%s); keep one of them: only pods have tokens of a cluster", n, term.QuoteValue(p.Issuer))
		}
	}
	v.Unique(len(c.Identities), "identities[%d].name", func(i int) string { return c.Identities[i].Name })
	v.Unique(len(c.Identities), "identities[%d].issuer", func(i int) string { return c.Identities[i].Issuer })
}

func (v *validator) provider(path string, p *Provider) {
	v.issuer(path, p.Name, p.Issuer, "the issuer as in its tokens", p.Audiences)
	for i, audience := range p.Audiences {
		// An error, not a warning. At most issuers a job chooses its audience, so such an audience
		// is never needed. It would admit tokens that were issued for other recipients.
		if whose := identity.AudienceOfOthers(p.Profile, p.Issuer, audience); whose != "" {
			v.Fault(fmt.Sprintf("%s.audiences[%d]", path, i),
				"is %s (%s): any recipient of such a token could use it here; name one of your own, and have jobs ask for it", whose, term.QuoteValue(audience))
		}
	}
	v.require(path+".require", p.Require)
	known, ok := identity.KnownIssuer(p.Issuer)
	if ok && known.Profile != p.Profile {
		v.Fault(path+".profile", "does not know the tokens of issuer %s (%s); write %s", term.QuoteValue(p.Issuer), term.QuoteValue(string(p.Profile)), known.Profile)
	}
	if !known.HasTenant(p.Require) {
		v.Fault(path+".require", "names no tenant, and anyone can get tokens of issuer %s; require %s, by id: names can be reassigned",
			term.QuoteValue(p.Issuer), strings.Join(known.Tenant, " or "))
	}
	v.positive(path+".maxTokenLifetime", p.MaxTokenLifetime)
	v.discovery(path+".discovery", &p.Discovery)
}

func (v *validator) require(path string, require map[string][]string) {
	for _, claim := range slices.Sorted(maps.Keys(require)) {
		at := strictyaml.Join(path, claim)
		if claim == "" || len(claim) > maxClaimBytes || !names.IsVisible(claim) {
			v.Fault(path, "has a claim that cannot be one (%s); use 1 to %d visible ASCII characters", term.QuoteValue(claim), maxClaimBytes)
			continue
		}
		if len(require[claim]) == 0 {
			v.Fault(at, "is empty; name the values that the claim may have, or remove it")
		}
		for i, value := range require[claim] {
			switch {
			case value == "" || len(value) > maxClaimBytes:
				v.Fault(fmt.Sprintf("%s[%d]", at, i), "is not a value (%s); use 1 to %d bytes", term.QuoteValue(value), maxClaimBytes)
			case strings.Contains(value, "*"):
				v.Fault(fmt.Sprintf("%s[%d]", at, i), "is a pattern (%s), and values are compared as they are; write them out, or let rules say it (subjects[].claims)", term.QuoteValue(value))
			}
		}
	}
}

// providerWarnings warn of required names where an id could be required, and of issuers whose owner
// is unknown.
func (c *Config) providerWarnings(warn func(path, text string)) {
	for i := range c.Identities {
		p := &c.Identities[i]
		if p.Profile == identity.Generic && len(p.Require) == 0 {
			warn(fmt.Sprintf("identities[%d].require", i), "is empty, so that every token of this issuer counts; require its tenant if others have tokens of it, too")
		}
		for _, claim := range slices.Sorted(maps.Keys(p.Require)) {
			known, _ := p.Profile.Claim(claim)
			if id := known.Instead; id != "" && len(p.Require[id]) == 0 {
				warn(fmt.Sprintf("identities[%d].require.%s", i, claim), "is a name, which can be reassigned; require "+id)
			}
		}
	}
}
