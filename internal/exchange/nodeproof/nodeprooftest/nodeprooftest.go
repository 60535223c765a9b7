package exchange_test

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

// holder has a certificate and its key. A holder with a CA certificate can sign like a cluster.
type holder struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// made is the start of the rig's clock. All certificates are valid then, unless a test says
// otherwise.
var made = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// newCA returns the CA of a cluster: all have the same name.
func newCA(t testing.TB) holder { return certify(t, nil, authority("kubernetes")) }

// authority turns a template into that of a CA.
func authority(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: name}
		c.NotBefore, c.NotAfter = made.AddDate(-1, 0, 0), made.AddDate(9, 0, 0)
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	}
}

// sign issues a kubelet's client certificate for node1, with changes.
func (h holder) sign(t testing.TB, changes ...func(*x509.Certificate)) holder {
	t.Helper()
	return certify(t, &h, changes...)
}

func certify(t testing.TB, parent *holder, changes ...func(*x509.Certificate)) holder {
	t.Helper()
	return certifyKey(t, parent, pkitest.ECKey(t), changes...)
}

// certifyKey issues a certificate for an existing key.
func certifyKey(t testing.TB, parent *holder, key *ecdsa.PrivateKey, changes ...func(*x509.Certificate)) holder {
	t.Helper()
	kubelet := func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "system:node:node1", Organization: []string{"system:nodes"}}
		c.NotBefore, c.NotAfter = made.Add(-5*time.Minute), made.Add(time.Hour)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	var ca *pkitest.Cert
	if parent != nil {
		ca = &pkitest.Cert{Certificate: parent.certificate, Key: parent.key}
	}
	cert := pkitest.NewCert(t, key, ca, append([]func(*x509.Certificate){kubelet}, changes...)...)
	return holder{cert.Certificate, key}
}

// cas returns the CAs of a single cluster.
func (h holder) cas() *nodeproof.CAs {
	return nodeproof.NewCAs("prod", map[string][]*x509.Certificate{"prod": {h.certificate}})
}

func (h holder) tls() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{h.certificate.Raw}, PrivateKey: h.key}
}

// named sets the common name.
func named(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.CommonName = name }
}

// during sets the validity period, relative to the start of the rig's clock.
func during(from, until time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = made.Add(from), made.Add(until) }
}

// presented returns the certificates that a client sends, leaf first.
func presented(holders ...holder) []*x509.Certificate {
	var certificates []*x509.Certificate
	for _, h := range holders {
		certificates = append(certificates, h.certificate)
	}
	return certificates
}
