package config

import (
	"net/url"
	"path/filepath"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
)

// Assertions makes Pullpass an OpenID issuer that clouds and registries trust: it
// tells them which ServiceAccount is asking.
type Assertions struct {
	Issuer     string `json:"issuer" schema:"required https"` // how they reach the public listener, without path; iss of the assertions
	KeyFile    string `json:"keyFile"`                        // a private RSA key of your own; public ones beside it are published, too
	ManagedDir string `json:"managedDir"`                     // keys made and rotated by Pullpass
}

// completeAssertions sets the defaults that depend on other settings.
func (c *Config) completeAssertions() {
	if a := c.Assertions; a != nil {
		a.Issuer = strings.TrimSuffix(a.Issuer, "/")
		if a.KeyFile == "" && a.ManagedDir == "" {
			a.ManagedDir = filepath.Join("keys", "assertions")
		}
	}
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
			v.Fault("assertions.keyFile", "is that of registries[%d] as well (%s); give assertions a key of their own: a verifier that trusts them must not trust the tokens of the registry", i, term.QuoteValue(a.KeyFile))
		}
		if v.samePlace(a.ManagedDir, s.ManagedDir) {
			v.Fault("assertions.managedDir", "is that of registries[%d] as well (%s); give assertions a directory of their own", i, term.QuoteValue(a.ManagedDir))
		}
	}
}
