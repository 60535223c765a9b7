package statetest

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// TLS makes a CA and a certificate for 127.0.0.1, and returns the CA's file and
// the arguments with which a server uses them.
func TLS(tb testing.TB) (caFile string, args []string) {
	tb.Helper()
	dir := tb.TempDir()
	ca := pkitest.NewCA(tb, nil)
	server := pkitest.NewCert(tb, pkitest.ECKey(tb), ca, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	for name, data := range map[string][]byte{
		"ca.crt": pkitest.CertPEM(ca), "redis.crt": pkitest.CertPEM(server), "redis.key": pkitest.KeyPEM(tb, server.Key),
	} {
		testkit.Must(tb, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	caFile = filepath.Join(dir, "ca.crt")
	return caFile, []string{
		"--tls-ca-cert-file", caFile, "--tls-cert-file", filepath.Join(dir, "redis.crt"), "--tls-key-file", filepath.Join(dir, "redis.key"),
		"--tls-auth-clients", "no",
	}
}
