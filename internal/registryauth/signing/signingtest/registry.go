// Package signingtest is a registry for tests. It uses distribution's own code, which trusts the
// published files and verifies tokens with them.
package signingtest

import (
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"testing"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The values of iss and aud that the registry expects.
const (
	Issuer  = "pullpass.example.com"
	Service = "registry.example.com"
)

// Registry verifies tokens like a registry that read the files once.
type Registry struct{ options token.VerifyOptions }

// NewRegistry reads the published files as distribution's access controller reads its jwks and its
// rootcertbundle.
func NewRegistry(tb testing.TB, jwks, certificates []byte) Registry {
	tb.Helper()
	options := token.VerifyOptions{
		TrustedIssuers:    []string{Issuer},
		AcceptedAudiences: []string{Service},
		Roots:             x509.NewCertPool(),
		TrustedKeys:       map[string]crypto.PublicKey{},
	}
	var set jose.JSONWebKeySet
	testkit.Must(tb, json.Unmarshal(jwks, &set))
	for _, key := range set.Keys {
		options.TrustedKeys[key.KeyID] = key.Public()
	}
	for block, rest := pem.Decode(certificates); block != nil; block, rest = pem.Decode(rest) {
		cert := testkit.Value(x509.ParseCertificate(block.Bytes))(tb)
		options.Roots.AddCert(cert)
		options.TrustedKeys[token.GetJWKThumbprint(cert.PublicKey)] = cert.PublicKey
	}
	return Registry{options}
}

// Verify verifies a token.
func (r Registry) Verify(raw string) (*token.ClaimSet, error) {
	parsed, err := token.NewToken(raw, []jose.SignatureAlgorithm{jose.ES256, jose.RS256, jose.EdDSA})
	if err != nil {
		return nil, err
	}
	return parsed.Verify(r.options)
}
