// Package pkitest makes private keys and certificates for tests. They are valid
// now, for a day, and trusted only by the test.
package pkitest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Cert is a certificate and its private key.
type Cert struct {
	*x509.Certificate
	Key crypto.Signer
}

// NewCert makes a certificate for key, signed by parent, or by itself if parent
// is nil. Each edit may change the template, which is a leaf's.
func NewCert(tb testing.TB, key crypto.Signer, parent *Cert, edits ...func(*x509.Certificate)) *Cert {
	tb.Helper()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "pullpass test " + rand.Text()},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	for _, edit := range edits {
		edit(template)
	}
	issuer := &Cert{template, key}
	if parent != nil {
		issuer = parent
	}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, template, issuer.Certificate, key.Public(), issuer.Key))(tb)
	cert := testkit.Value(x509.ParseCertificate(der))(tb)
	return &Cert{cert, key}
}

// NewCA makes a CA, signed by parent or by itself. It is valid for longer than
// the leaves.
func NewCA(tb testing.TB, parent *Cert, edits ...func(*x509.Certificate)) *Cert {
	tb.Helper()
	ca := func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage, c.NotAfter = true, x509.KeyUsageCertSign, c.NotAfter.Add(24*time.Hour)
	}
	return NewCert(tb, ECKey(tb), parent, append([]func(*x509.Certificate){ca}, edits...)...)
}

// TLS returns c as a server or a client presents it.
func (c *Cert) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: c.Key}
}

// Pool trusts c alone.
func (c *Cert) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate)
	return pool
}

// ECKey makes an ECDSA key on P-256.
func ECKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key := testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
	return testkit.NoteKey(tb, key)
}

// EdKey makes an Ed25519 key.
func EdKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	testkit.Must(tb, err)
	return testkit.NoteKey(tb, key)
}

// RSAKey returns a key of 2048 bits, always the same: making one is slow.
func RSAKey(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()
	key := testkit.Value(sharedRSAKey())(tb)
	return testkit.NoteKey(tb, key)
}

var sharedRSAKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// CertPEM returns the certificates as PEM, in their order.
func CertPEM(certs ...*Cert) []byte {
	var out []byte
	for _, cert := range certs {
		out = append(out, PEM("CERTIFICATE", cert.Raw)...)
	}
	return out
}

// KeyPEM returns a private key as PEM, in the form PKCS#8.
func KeyPEM(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()
	der := testkit.Value(x509.MarshalPKCS8PrivateKey(key))(tb)
	return PEM("PRIVATE KEY", der)
}

// Token signs a payload with a new key, which no verifier knows.
func Token(tb testing.TB, payload []byte) string {
	tb.Helper()
	signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: ECKey(tb)}, nil))(tb)
	signed := testkit.Value(signer.Sign(payload))(tb)
	token := testkit.Value(signed.CompactSerialize())(tb)
	testkit.Note(tb, "token", token)
	return token
}

// PEM returns one block.
func PEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
