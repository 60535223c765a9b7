package signing

import (
	"crypto/x509"
	"testing"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A file of keys is read whole or refused: an accepted private key signs, and public keys fit the
// algorithm.
func FuzzKeys(f *testing.F) {
	key := pkitest.ECKey(f)
	f.Add(pkitest.KeyPEM(f, key))
	f.Add(append(pkitest.KeyPEM(f, key), pkitest.CertPEM(pkitest.NewCA(f, nil))...))
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if signer, err := parsePrivateKey(data); (signer == nil) == (err == nil) {
			t.Errorf("%q: %v, %v", data, signer, err)
		}
		for _, algorithm := range []Algorithm{ES256, RS256, EdDSA} {
			bundle, err := parsePublicKeys(data, algorithm)
			if err != nil {
				continue
			}
			for _, public := range bundle.JWKS.Keys {
				testkit.Must(t, algorithm.checkKey(public.Key))
			}
		}
		certificates, err := parseCertificates(data)
		if (len(certificates) == 0) == (err == nil) {
			t.Errorf("%q: %d certificates, %v", data, len(certificates), err)
		}
		for _, c := range certificates {
			if _, err := x509.ParseCertificate(c.Raw); err != nil {
				t.Errorf("%q: %v", data, err)
			}
		}
	})
}
