package charttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// secret is what a Secret holds.
type secret map[string][]byte

// issued stands in for cert-manager, which cannot be built as a module that others depend on: it makes the Secrets of the
// Certificates among the objects, as their specs say. An issuer that is not among them is a CA of its own.
func issued(t testing.TB, rendered objects) map[string]secret {
	t.Helper()
	secrets := map[string]secret{}
	for waiting := rendered.kind("Certificate"); len(waiting) > 0; {
		var later objects
		for _, certificate := range waiting {
			issuer := rendered.named("Issuer", certificate.Text("spec", "issuerRef", "name"))
			made, ready := secrets[issuer.Text("spec", "ca", "secretName")]
			if issuer.Text("spec", "ca", "secretName") != "" && !ready {
				later = append(later, certificate)
				continue
			}
			selfSigned := issuer != nil && !ready
			if issuer == nil {
				made = issue(t, cluster.Object{"commonName": "internal CA", "isCA": true, "usages": []any{"cert sign"},
					"privateKey": map[string]any{"algorithm": "ECDSA"}}, nil)
			}
			if selfSigned {
				made = nil
			}
			secrets[certificate.Text("spec", "secretName")] = issue(t, certificate["spec"].(map[string]any), made)
		}
		if len(later) == len(waiting) {
			t.Fatalf("no issuer for %v", later)
		}
		waiting = later
	}
	return secrets
}

// issue makes a certificate. by is the Secret of its CA; nil: it is signed with its own key.
func issue(t testing.TB, spec cluster.Object, by secret) secret {
	t.Helper()
	lifetime := 90 * 24 * time.Hour // cert-manager's default
	if text := spec.Text("duration"); text != "" {
		var err error
		lifetime, err = time.ParseDuration(text)
		testenv.Must(t, err)
	}
	serial := testenv.Value(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)))(t)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: spec.Text("commonName")}, DNSNames: texts(spec["dnsNames"]),
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(lifetime), BasicConstraintsValid: true,
	}
	template.IsCA, _ = spec["isCA"].(bool)
	for _, usage := range texts(spec["usages"]) {
		switch usage {
		case "digital signature":
			template.KeyUsage |= x509.KeyUsageDigitalSignature
		case "cert sign":
			template.KeyUsage |= x509.KeyUsageCertSign
		case "crl sign":
			template.KeyUsage |= x509.KeyUsageCRLSign
		case "server auth":
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		default:
			t.Fatalf("usage %q", usage)
		}
	}
	key := newKey(t, spec.Text("privateKey", "algorithm"))
	parent, parentKey := template, key
	if by != nil {
		block, _ := pem.Decode(by["tls.crt"])
		parent = testenv.Value(x509.ParseCertificate(block.Bytes))(t)
		block, _ = pem.Decode(by["tls.key"])
		read := testenv.Value(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
		parentKey = read.(crypto.Signer)
	}
	der := testenv.Value(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey))(t)
	pkcs8 := testenv.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	made := secret{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
	made["ca.crt"] = made["tls.crt"]
	if by != nil {
		made["ca.crt"] = by["tls.crt"]
	}
	return made
}

func newKey(t testing.TB, algorithm string) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm {
	case "ECDSA":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "RSA":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "Ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		t.Fatalf("algorithm %q", algorithm)
	}
	testenv.Must(t, err)
	return key
}
