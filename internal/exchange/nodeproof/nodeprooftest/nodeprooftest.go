// Package nodeprooftest makes the certificates of kubelets and of their CAs, for tests.
package nodeprooftest

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/test/pkitest"
)

// Holder has a certificate and its key. A Holder with a CA certificate can sign like a cluster.
type Holder struct {
	Certificate *x509.Certificate
	Key         *ecdsa.PrivateKey
}

// Made is when the clock of a test starts. All certificates are valid then, unless a test says
// otherwise.
var Made = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// NewCA returns the CA of a cluster: all have the same name.
func NewCA(t testing.TB) Holder { return Certify(t, nil, Authority("kubernetes")) }

// Authority turns a template into that of a CA.
func Authority(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: name}
		c.NotBefore, c.NotAfter = Made.AddDate(-1, 0, 0), Made.AddDate(9, 0, 0)
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	}
}

// Sign issues a kubelet's client certificate for node1, with changes.
func (h Holder) Sign(t testing.TB, changes ...func(*x509.Certificate)) Holder {
	t.Helper()
	return Certify(t, &h, changes...)
}

// Certify issues a certificate for a new key; without a parent, it signs itself.
func Certify(t testing.TB, parent *Holder, changes ...func(*x509.Certificate)) Holder {
	t.Helper()
	return CertifyKey(t, parent, pkitest.ECKey(t), changes...)
}

// CertifyKey issues a certificate for an existing key.
func CertifyKey(t testing.TB, parent *Holder, key *ecdsa.PrivateKey, changes ...func(*x509.Certificate)) Holder {
	t.Helper()
	kubelet := func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "system:node:node1", Organization: []string{"system:nodes"}}
		c.NotBefore, c.NotAfter = Made.Add(-5*time.Minute), Made.Add(time.Hour)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	var ca *pkitest.Cert
	if parent != nil {
		ca = &pkitest.Cert{Certificate: parent.Certificate, Key: parent.Key}
	}
	cert := pkitest.NewCert(t, key, ca, append([]func(*x509.Certificate){kubelet}, changes...)...)
	return Holder{cert.Certificate, key}
}

// CAs returns the CAs of a single cluster.
func (h Holder) CAs() *nodeproof.CAs {
	return nodeproof.NewCAs("prod", map[string][]*x509.Certificate{"prod": {h.Certificate}})
}

// TLS returns what a client presents.
func (h Holder) TLS() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{h.Certificate.Raw}, PrivateKey: h.Key}
}

// Named sets the common name.
func Named(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.CommonName = name }
}

// During sets the validity period, relative to Made.
func During(from, until time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = Made.Add(from), Made.Add(until) }
}

// Presented returns the certificates that a client sends, leaf first.
func Presented(holders ...Holder) []*x509.Certificate {
	var certificates []*x509.Certificate
	for _, h := range holders {
		certificates = append(certificates, h.Certificate)
	}
	return certificates
}

// Organizations sets the organizations of the subject.
func Organizations(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.Organization = names }
}

// Usage sets the extended key usages.
func Usage(usages ...x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = usages }
}
