// Package certs makes the keys and certificates of the end-to-end tests, in a directory that ends with the test.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const lifetime = 24 * time.Hour

// CA is a certificate authority for one test.
type CA struct {
	// File is the path of the CA certificate (PEM).
	File string
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair names the files (PEM) of a certificate and its key.
type Pair struct{ CertFile, KeyFile string }

// NewCA makes a CA.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	return newCA(t, name, nil)
}

// Intermediate makes a CA below this one.
func (ca *CA) Intermediate(t testing.TB, name string) *CA { t.Helper(); return newCA(t, name, ca) }

// newCA makes a CA below parent; nil: a root.
func newCA(t testing.TB, name string, parent *CA) *CA {
	t.Helper()
	ca := &CA{dir: t.TempDir(), key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber:          serial(t),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Minute),
		NotAfter:              time.Now().Add(lifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	issuer, signer := template, ca.key
	if parent != nil {
		issuer, signer = parent.cert, parent.key
	}
	der := testenv.Value(x509.CreateCertificate(rand.Reader, template, issuer, ca.key.Public(), signer))(t)
	ca.cert = testenv.Value(x509.ParseCertificate(der))(t)
	ca.File = filepath.Join(ca.dir, "ca.crt")
	writePEM(t, ca.File, "CERTIFICATE", der)
	return ca
}

// Pool holds the CA certificate alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Server issues a certificate for a server on localhost and 127.0.0.1, and under other host names and addresses.
func (ca *CA) Server(t testing.TB, name string, hosts ...string) Pair {
	t.Helper()
	return ca.ServerUntil(t, ca.cert.NotAfter, name, hosts...)
}

// ServerUntil is Server with an end, which may have passed.
func (ca *CA) ServerUntil(t testing.TB, end time.Time, name string, hosts ...string) Pair {
	t.Helper()
	template := &x509.Certificate{
		NotAfter:    end,
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return ca.issue(t, name, template)
}

// Client issues a client certificate: Kubernetes reads the user from its common name and the groups from its organizations.
func (ca *CA) Client(t testing.TB, user string, groups ...string) Pair {
	t.Helper()
	return ca.ClientUntil(t, ca.cert.NotAfter, user, groups...)
}

// ClientUntil is Client with an end, which may have passed.
func (ca *CA) ClientUntil(t testing.TB, end time.Time, user string, groups ...string) Pair {
	t.Helper()
	return ca.issue(t, user, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotAfter:    end,
	})
}

// Transport trusts the CA alone, and presents the certificates. Its connections end with the test.
func (ca *CA) Transport(t testing.TB, certificates ...tls.Certificate) *http.Transport {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), Certificates: certificates}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// Signer issues a certificate for signing tokens. It has no extended key usage.
func (ca *CA) Signer(t testing.TB, name string) Pair {
	t.Helper()
	return ca.issue(t, name, &x509.Certificate{Subject: pkix.Name{CommonName: name}})
}

func (ca *CA) issue(t testing.TB, name string, template *x509.Certificate) Pair {
	t.Helper()
	key := newKey(t)
	template.SerialNumber = serial(t)
	template.NotBefore = ca.cert.NotBefore
	if template.NotAfter.IsZero() {
		template.NotAfter = ca.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der := testenv.Value(x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key))(t)
	dir := testenv.Value(os.MkdirTemp(ca.dir, ""))(t)
	pair := Pair{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	writePEM(t, pair.CertFile, "CERTIFICATE", der)
	writeKey(t, pair.KeyFile, key)
	return pair
}

// TLS loads the pair.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	cert := testenv.Value(tls.LoadX509KeyPair(p.CertFile, p.KeyFile))(t)
	return cert
}

// RSAKey is an RSA key with its files (PEM), as kube-apiserver takes them.
type RSAKey struct {
	*rsa.PrivateKey
	PrivateFile, PublicFile string
}

// NewRSAKey makes a 2048-bit RSA key: what ServiceAccount tokens are usually signed with.
func NewRSAKey(t testing.TB) RSAKey {
	t.Helper()
	key := testenv.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	dir := t.TempDir()
	k := RSAKey{key, filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub")}
	writeKey(t, k.PrivateFile, key)
	public := testenv.Value(x509.MarshalPKIXPublicKey(key.Public()))(t)
	writePEM(t, k.PublicFile, "PUBLIC KEY", public)
	return k
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key := testenv.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n := testenv.Value(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)))(t)
	return n
}

func writeKey(t testing.TB, path string, key crypto.Signer) {
	t.Helper()
	secrets.NoteKey(key)
	der := testenv.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	writePEM(t, path, "PRIVATE KEY", der)
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	testenv.WriteFile(t, path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
