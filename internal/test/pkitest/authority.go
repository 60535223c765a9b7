package pkitest

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Intermediate is a CA below a.
func (a Authority) Intermediate(t testing.TB, name string) Authority {
	t.Helper()
	return Authority{NewCA(t, a.Cert, CaNamed(name))}
}

// Authority signs the certificates of a test.
type Authority struct{ *Cert }

func NewAuthority(t testing.TB, name string) Authority {
	t.Helper()
	return Authority{NewCA(t, nil, CaNamed(name))}
}

// CaNamed makes a template a CA's, good for an hour.
func CaNamed(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.Subject, c.NotAfter = pkix.Name{CommonName: name}, time.Now().Add(time.Hour)
		c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
	}
}

func (a Authority) Pem() string { return string(CertPEM(a.Cert)) }

// Leaf returns a certificate and key as PEM, good from notBefore to notAfter
// (relative to now). The names of nodes are in their group.
func (a Authority) Leaf(t testing.TB, name string, notBefore, notAfter time.Duration) (cert, key string) {
	t.Helper()
	leaf := NewCert(t, ECKey(t), a.Cert, func(c *x509.Certificate) {
		c.Subject, c.DNSNames = pkix.Name{CommonName: name}, []string{"localhost"}
		if strings.HasPrefix(name, "system:node:") {
			c.Subject.Organization = []string{"system:nodes"}
		}
		c.NotBefore, c.NotAfter = time.Now().Add(notBefore), time.Now().Add(notAfter)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
	return string(CertPEM(leaf)), string(KeyPEM(t, leaf.Key))
}

func (a Authority) Client(t testing.TB, name string) *tls.Certificate {
	t.Helper()
	return a.ClientUntil(t, name, time.Hour)
}

func (a Authority) ClientUntil(t testing.TB, name string, end time.Duration) *tls.Certificate {
	t.Helper()
	cert, key := a.Leaf(t, name, -time.Hour, end)
	pair := testkit.Value(tls.X509KeyPair([]byte(cert), []byte(key)))(t)
	return &pair
}
