package registryauth

import (
	"crypto"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const testSubject = "system:serviceaccount:team-a:web"

var issuingAlgorithms = []signing.Algorithm{signing.ES256, signing.RS256, signing.EdDSA}

func newTestSigner(t testing.TB, algorithm signing.Algorithm) crypto.Signer {
	t.Helper()
	switch algorithm {
	case signing.RS256:
		return pkitest.RSAKey(t)
	case signing.EdDSA:
		return pkitest.EdKey(t)
	}
	return pkitest.ECKey(t)
}

// testKeys is a key in files, and its certificate with TrustCertificate.
type testKeys struct {
	*signing.FileKeys
	signer crypto.Signer
	cert   *pkitest.Cert
}

func newTestKeys(t testing.TB, algorithm signing.Algorithm, trust signing.Trust, edits ...func(*x509.Certificate)) testKeys {
	t.Helper()
	return testKeysOf(t, newTestSigner(t, algorithm), algorithm, trust, edits...)
}

// testKeysOf is for a private key that is there already. edits change its
// certificate.
func testKeysOf(t testing.TB, signer crypto.Signer, algorithm signing.Algorithm, trust signing.Trust, edits ...func(*x509.Certificate)) testKeys {
	t.Helper()
	keys := testKeys{signer: signer}
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	cfg := signing.FileKeysConfig{
		Algorithm: algorithm, Trust: trust, Overlap: time.Hour, KeyFile: write("tls.key", pkitest.KeyPEM(t, signer)),
	}
	if trust == signing.TrustCertificate {
		ca := pkitest.NewCA(t, nil)
		keys.cert = pkitest.NewCert(t, signer, ca, edits...)
		cfg.CertFile, cfg.CAFile = write("tls.crt", pkitest.CertPEM(keys.cert)), write("ca.crt", pkitest.CertPEM(ca))
	}
	var err error
	if keys.FileKeys, err = signing.NewFileKeys(cfg); err != nil {
		t.Fatal(err)
	}
	return keys
}

// noKeys cannot sign.
type noKeys struct {
	signing.Keys
	err error
}

func (k noKeys) Signing() (*signing.SigningKey, error) { return nil, k.err }

func newTestIssuer(t testing.TB, keys signing.Keys, edit func(*IssuerConfig)) *Issuer {
	t.Helper()
	cfg := IssuerConfig{Issuer: signingtest.Issuer, Service: signingtest.Service, Lifetime: 5 * time.Minute, Keys: keys}
	if edit != nil {
		edit(&cfg)
	}
	issuer := testkit.Value(NewIssuer(cfg))(t)
	return issuer
}

func issueTestToken(t testing.TB, issuer *Issuer) Token {
	t.Helper()
	issued := testkit.Value(issuer.Issue(Grant{Subject: testSubject, Access: []Scope{{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}}}))(t)
	return issued
}

// newRegistry trusts what keys publish.
func newRegistry(t testing.TB, keys ...signing.Keys) signingtest.Registry {
	t.Helper()
	jwks := testkit.Value(signing.MarshalJWKS(keys...))(t)
	return signingtest.NewRegistry(t, jwks, signing.MarshalCertificates(keys...))
}
