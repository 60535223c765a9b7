package gateway

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// mayLead reports whether the keys in a token's header are worth a verification. distribution's code
// verifies signatures with every key in the header before it knows whether one is trusted, and a
// client can choose keys that take a second. So trusted keys must lead to every certificate, and the
// chain must be short. Pullpass's tokens have no jwk.
func (t *trust) mayLead(raw string) bool {
	part, _, _ := strings.Cut(raw, ".")
	plain, err := base64.RawURLEncoding.DecodeString(part)
	var header struct {
		JWK jsontext.Value `json:"jwk"`
		X5c [][]byte       `json:"x5c"`
	}
	if err != nil || json.Unmarshal(plain, &header) != nil || header.JWK != nil || len(header.X5c) > signing.MaxChain {
		return false
	}
	chain := make([]*x509.Certificate, len(header.X5c))
	for i, der := range header.X5c {
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return false
		}
	}
	return t.vouchesFor(chain)
}

// vouchesFor reports whether roots lead to all certificates of a chain, in whatever order they are.
// It begins with the roots, so that only trusted keys verify. One certificate that leads elsewhere is
// too many: its key, too, would be tried on the first certificate's signature. Every holder of a token
// knows that certificate.
func (t *trust) vouchesFor(chain []*x509.Certificate) bool {
	trusted := slices.Clone(t.certificates)
	for grows := true; grows; {
		grows = false
		for _, cert := range chain {
			if !slices.ContainsFunc(trusted, cert.Equal) && slices.ContainsFunc(trusted, func(by *x509.Certificate) bool {
				return bytes.Equal(cert.RawIssuer, by.RawSubject) && cert.CheckSignatureFrom(by) == nil
			}) {
				trusted, grows = append(trusted, cert), true
			}
		}
	}
	return !slices.ContainsFunc(chain, func(cert *x509.Certificate) bool { return !slices.ContainsFunc(trusted, cert.Equal) })
}
