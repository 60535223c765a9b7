package oidc

import (
	"crypto"
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A key set of GitHub's form, with certificates, is read with GODEBUG=fips140=only. RSA keys that this mode does not allow are refused as
// keys: a signature would be blamed otherwise.
func TestKeysWithOnlyFIPS(t *testing.T) {
	t.Parallel()
	if !testkit.OnlyFIPS(t) {
		return
	}
	private := testkit.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "actions"}, NotAfter: time.Now().Add(time.Hour)}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	certificate := testkit.Value(x509.ParseCertificate(der))(t)
	var published string
	fips140.WithoutEnforcement(func() { // at the issuer
		published = jwkJSON(t, jose.JSONWebKey{Key: private.Public(), KeyID: "k", Certificates: []*x509.Certificate{certificate}})
	})
	if _, err := parseKey([]byte(published)); err != nil {
		t.Error(err)
	}

	odd := new(big.Int).Lsh(private.N, 1)
	for want, public := range map[string]crypto.PublicKey{
		"an RSA key that cannot verify signatures: crypto/rsa: use of keys with odd size":        &rsa.PublicKey{N: odd.SetBit(odd, 0, 1), E: private.E},
		"an RSA key that cannot verify signatures: crypto/rsa: use of public exponent <= 2¹⁶ is": &rsa.PublicKey{N: private.N, E: 3},
	} {
		if _, err := parseKey([]byte(jwkJSON(t, jose.JSONWebKey{Key: public, KeyID: "k"}))); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
