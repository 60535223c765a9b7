package statetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLS makes a CA and a certificate for 127.0.0.1, and returns the CA's file and
// the arguments with which a server uses them.
func TLS(tb testing.TB) (caFile string, args []string) {
	tb.Helper()
	dir := tb.TempDir()
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: caTemplate.NotBefore, NotAfter: caTemplate.NotAfter,
	}
	caKey, key := newKey(tb), newKey(tb)
	caFile = filepath.Join(dir, "ca.crt")
	writeCertificate(tb, caFile, caTemplate, caTemplate, caKey, caKey)
	writeCertificate(tb, filepath.Join(dir, "redis.crt"), template, caTemplate, key, caKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	writePEM(tb, filepath.Join(dir, "redis.key"), "PRIVATE KEY", der)
	return caFile, []string{
		"--tls-ca-cert-file", caFile, "--tls-cert-file", filepath.Join(dir, "redis.crt"), "--tls-key-file", filepath.Join(dir, "redis.key"),
		"--tls-auth-clients", "no",
	}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func writeCertificate(tb testing.TB, file string, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	writePEM(tb, file, "CERTIFICATE", der)
}

func writePEM(tb testing.TB, file, label string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: label, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
}
