package signing

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const testOverlap = 6 * time.Minute

func mustLoad(t testing.TB, cfg FileKeysConfig) *FileKeys {
	t.Helper()
	keys := testkit.Value(NewFileKeys(cfg))(t)
	return keys
}

func mustSigning(t testing.TB, keys Keys) *SigningKey {
	t.Helper()
	key := testkit.Value(keys.Signing())(t)
	return key
}

func TestFileKeysReadEveryForm(t *testing.T) {
	t.Parallel()
	ec := newTestSigner(t, ES256).(*ecdsa.PrivateKey)
	ed := newTestSigner(t, EdDSA)
	sec1 := testkit.Value(x509.MarshalECPrivateKey(ec))(t)
	ca := pkitest.NewCA(t, nil)
	intermediate := pkitest.NewCert(t, newTestSigner(t, ES256), ca, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign })
	leaf := pkitest.NewCert(t, ec, ca)
	deepLeaf := pkitest.NewCert(t, ec, intermediate)
	selfSigned := pkitest.NewCert(t, ec, nil)
	rsaLeaf := pkitest.NewCert(t, pkitest.RSAKey(t), ca)
	edLeaf := pkitest.NewCert(t, ed, ca)
	selfIssued := pkitest.NewCA(t, ca, func(c *x509.Certificate) { c.Subject = ca.Subject })
	sameKey := pkitest.NewCert(t, ca.Key, ca, pkitest.CaNamed("another name of the CA"))
	noUsage := pkitest.NewCert(t, ec, ca, func(c *x509.Certificate) { c.KeyUsage = 0 })

	cases := map[string]struct {
		files     keyFiles
		algorithm Algorithm
		x5c       int // certificates in the token
		published []*pkitest.Cert
	}{
		"PKCS#8 EC":                  {keyFiles{key: pkitest.KeyPEM(t, ec)}, ES256, 0, nil},
		"SEC 1 with parameters":      {keyFiles{key: append(pkitest.PEM("EC PARAMETERS", []byte{6}), pkitest.PEM("EC PRIVATE KEY", sec1)...)}, ES256, 0, nil},
		"PKCS#8 RSA":                 {keyFiles{key: pkitest.KeyPEM(t, pkitest.RSAKey(t))}, RS256, 0, nil},
		"PKCS#1 RSA":                 {keyFiles{key: pkitest.PEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(pkitest.RSAKey(t)))}, RS256, 0, nil},
		"PKCS#8 Ed25519":             {keyFiles{key: pkitest.KeyPEM(t, ed)}, EdDSA, 0, nil},
		"default is ES256":           {keyFiles{key: pkitest.KeyPEM(t, ec)}, "", 0, nil},
		"leaf and CA file":           {keyFiles{pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, 1, []*pkitest.Cert{ca}},
		"leaf and CA in the chain":   {keyFiles{cert: pkitest.CertPEM(leaf, ca), key: pkitest.KeyPEM(t, ec)}, ES256, 1, []*pkitest.Cert{ca}},
		"leaf, intermediate, CA":     {keyFiles{cert: pkitest.CertPEM(deepLeaf, intermediate, ca), key: pkitest.KeyPEM(t, ec)}, ES256, 2, []*pkitest.Cert{ca}},
		"intermediate, CA file":      {keyFiles{pkitest.CertPEM(deepLeaf, intermediate), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, 2, []*pkitest.Cert{ca}},
		"intermediate as the anchor": {keyFiles{cert: pkitest.CertPEM(deepLeaf, intermediate), key: pkitest.KeyPEM(t, ec)}, ES256, 2, []*pkitest.Cert{intermediate}},
		"CA's name, another key":     {keyFiles{pkitest.CertPEM(pkitest.NewCert(t, ec, selfIssued), selfIssued), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, 2, []*pkitest.Cert{ca}},
		"CA's key, another name":     {keyFiles{pkitest.CertPEM(pkitest.NewCert(t, ec, sameKey), sameKey), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, 2, []*pkitest.Cert{ca}},
		"leaf as the anchor":         {keyFiles{cert: pkitest.CertPEM(leaf), key: pkitest.KeyPEM(t, ec)}, ES256, 1, []*pkitest.Cert{leaf}},
		"self-signed":                {keyFiles{cert: pkitest.CertPEM(selfSigned), key: pkitest.KeyPEM(t, ec)}, ES256, 1, []*pkitest.Cert{selfSigned}},
		"certificate and key in one": {keyFiles{cert: append(pkitest.KeyPEM(t, ec), pkitest.CertPEM(leaf, ca)...), key: append(pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec)...)}, ES256, 1, []*pkitest.Cert{ca}},
		"two CAs in the CA file":     {keyFiles{pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca, selfSigned)}, ES256, 1, []*pkitest.Cert{ca, selfSigned}},
		"RSA leaf of an EC CA":       {keyFiles{pkitest.CertPEM(rsaLeaf), pkitest.KeyPEM(t, pkitest.RSAKey(t)), pkitest.CertPEM(ca)}, RS256, 1, []*pkitest.Cert{ca}},
		"Ed25519 leaf of an EC CA":   {keyFiles{pkitest.CertPEM(edLeaf), pkitest.KeyPEM(t, ed), pkitest.CertPEM(ca)}, EdDSA, 1, []*pkitest.Cert{ca}},
		"no key usage at all":        {keyFiles{pkitest.CertPEM(noUsage), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, 1, []*pkitest.Cert{ca}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys := testkit.Value(c.files.load(t, c.algorithm))(t)
			raw := testToken(t, keys)
			if _, err := newRegistry(t, keys).Verify(raw); err != nil {
				t.Errorf("distribution refuses the token: %v", err)
			}
			x5c, _ := testkit.TokenPart(t, raw, 0)["x5c"].([]any)
			if len(x5c) != c.x5c {
				t.Errorf("%d certificates in the token, want %d", len(x5c), c.x5c)
			}
			got := keys.Trusted().Certificates
			for _, want := range c.published {
				if !slices.ContainsFunc(got, want.Equal) {
					t.Errorf("%s is not published", want.Subject)
				}
			}
			if len(got) != len(c.published) {
				t.Errorf("%d certificates are published, want %d", len(got), len(c.published))
			}
			if key := mustSigning(t, keys); key.Since.IsZero() != (c.x5c == 0) || len(key.path) > 0 && !key.Since.Equal(key.path[0].NotBefore) {
				t.Errorf("it signs since %s", key.Since)
			}
		})
	}
}

func TestFileKeysRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	ec := newTestSigner(t, ES256).(*ecdsa.PrivateKey)
	other := newTestSigner(t, ES256)
	ca, otherCA := pkitest.NewCA(t, nil), pkitest.NewCA(t, nil)
	leaf := pkitest.NewCert(t, ec, ca)
	edited := func(edit func(*x509.Certificate)) keyFiles {
		return keyFiles{pkitest.CertPEM(pkitest.NewCert(t, ec, ca, edit)), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}
	}
	p384 := testkit.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"DEK-Info": "AES-256-CBC,00"}, Bytes: []byte{1}})
	weak := testkit.Value(rsa.GenerateKey(rand.Reader, 1024))(t)
	cases := map[string]struct {
		files     keyFiles
		algorithm Algorithm
		file      string // that the error names
		want      string
	}{
		"empty key file":           {keyFiles{key: []byte{}}, ES256, "tls.key", "no private key in PEM form"},
		"public key":               {keyFiles{key: pkitest.PEM("PUBLIC KEY", []byte{1})}, ES256, "tls.key", "no private key in PEM form"},
		"damaged key":              {keyFiles{key: pkitest.PEM("PRIVATE KEY", []byte{1})}, ES256, "tls.key", "is damaged"},
		"encrypted PKCS#8":         {keyFiles{key: pkitest.PEM("ENCRYPTED PRIVATE KEY", []byte{1})}, ES256, "tls.key", "is encrypted"},
		"encrypted PKCS#1":         {keyFiles{key: encrypted}, RS256, "tls.key", "is encrypted"},
		"two keys":                 {keyFiles{key: append(pkitest.KeyPEM(t, ec), pkitest.KeyPEM(t, other)...)}, ES256, "tls.key", "more than one private key"},
		"too large":                {keyFiles{key: append(pkitest.KeyPEM(t, ec), make([]byte, maxKeyFileBytes)...)}, ES256, "tls.key", "larger than"},
		"P-384":                    {keyFiles{key: pkitest.KeyPEM(t, p384)}, ES256, "tls.key", "ES256 needs P-256"},
		"weak RSA":                 {keyFiles{key: pkitest.KeyPEM(t, weak)}, RS256, "tls.key", "has 1024 bits"},
		"EC key, RS256":            {keyFiles{key: pkitest.KeyPEM(t, ec)}, RS256, "tls.key", "algorithm RS256 is configured"},
		"RSA key, ES256":           {keyFiles{key: pkitest.KeyPEM(t, pkitest.RSAKey(t))}, ES256, "tls.key", "algorithm ES256 is configured"},
		"Ed25519 key, ES256":       {keyFiles{key: pkitest.KeyPEM(t, newTestSigner(t, EdDSA))}, ES256, "tls.key", "algorithm ES256 is configured"},
		"no certificate":           {keyFiles{cert: []byte("x"), key: pkitest.KeyPEM(t, ec)}, ES256, "tls.crt", "no certificate in PEM form"},
		"damaged certificate":      {keyFiles{cert: pkitest.PEM("CERTIFICATE", []byte{1}), key: pkitest.KeyPEM(t, ec)}, ES256, "tls.crt", "certificate 1 is damaged"},
		"large certificate file":   {keyFiles{cert: append(pkitest.CertPEM(leaf), make([]byte, maxKeyFileBytes)...), key: pkitest.KeyPEM(t, ec)}, ES256, "tls.crt", "larger than"},
		"certificate of other key": {keyFiles{pkitest.CertPEM(pkitest.NewCert(t, other, ca)), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, "tls.crt", "not for this private key"},
		"CA before leaf":           {keyFiles{cert: pkitest.CertPEM(ca, leaf), key: pkitest.KeyPEM(t, ec)}, ES256, "tls.crt", "not for this private key"},
		"CA signs tokens":          {keyFiles{cert: pkitest.CertPEM(ca), key: pkitest.KeyPEM(t, ca.Key)}, ES256, "tls.crt", "is a CA's"},
		"key usage":                {edited(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), ES256, "tls.crt", "lacks digitalSignature"},
		"expired":                  {edited(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), ES256, "tls.crt", "renew it"},
		"ends in half a minute":    {edited(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * time.Second) }), ES256, "tls.crt", "about to end"},
		"not yet valid":            {edited(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), ES256, "tls.crt", "not valid before"},
		"other CA":                 {keyFiles{pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec), pkitest.CertPEM(otherCA)}, ES256, "tls.crt", "does not vouch"},
		"unrelated chain":          {keyFiles{cert: pkitest.CertPEM(leaf, otherCA), key: pkitest.KeyPEM(t, ec)}, ES256, "tls.crt", "does not vouch"},
		"empty CA file":            {keyFiles{pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec), []byte{}}, ES256, "ca.crt", "no certificate in PEM form"},
		"long chain":               {keyFiles{pkitest.CertPEM(leaf, ca, ca, ca, ca, ca), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}, ES256, "tls.crt", "make every token too large"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys, err := c.files.load(t, c.algorithm)
			if keys != nil || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
				t.Errorf("error %v, want %q and the name of %s", err, c.want, c.file)
			}
		})
	}
	for _, missing := range []string{"tls.key", "tls.crt", "ca.crt"} {
		files := keyFiles{pkitest.CertPEM(leaf), pkitest.KeyPEM(t, ec), pkitest.CertPEM(ca)}
		dir := t.TempDir()
		files.write(t, dir)
		testkit.Must(t, os.Remove(filepath.Join(dir, missing)))
		if _, err := NewFileKeys(files.config(dir, ES256)); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: error %v", missing, err)
		}
	}
	large := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 4199), E: 65537}
	if err := RS256.checkKey(large); err == nil || !strings.Contains(err.Error(), "has 4200 bits") {
		t.Errorf("an RSA key that registries cannot verify: %v", err)
	}
}

func TestFileKeysRefuseContradictions(t *testing.T) {
	t.Parallel()
	good := FileKeysConfig{KeyFile: "k", CertFile: "c", Overlap: testOverlap}
	for want, edit := range map[string]func(*FileKeysConfig){
		"keyFile is empty":      func(c *FileKeysConfig) { c.KeyFile = "" },
		"certFile is empty":     func(c *FileKeysConfig) { c.CertFile = "" },
		"contradict trust":      func(c *FileKeysConfig) { c.Trust = TrustJWKS },
		"caFile contradict":     func(c *FileKeysConfig) { c.Trust, c.CertFile, c.CAFile = TrustJWKS, "", "ca" },
		`algorithm "none"`:      func(c *FileKeysConfig) { c.Algorithm = "none" },
		`algorithm "HS256"`:     func(c *FileKeysConfig) { c.Algorithm = "HS256" },
		`trust "x"`:             func(c *FileKeysConfig) { c.Trust = "x" },
		"shorter than any":      func(c *FileKeysConfig) { c.Overlap = 59 * time.Second },
		"signing key: open k: ": func(*FileKeysConfig) {},
	} {
		cfg := good
		edit(&cfg)
		if _, err := NewFileKeys(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	good.Algorithm, good.Trust, good.Overlap = ES256, TrustCertificate, MinLifetime
	if err := good.validate(); err != nil {
		t.Errorf("the shortest overlap: %v", err)
	}
	if _, err := NewFileKeys(FileKeysConfig{Trust: "x", Algorithm: "y"}); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("not all four faults are reported at once: %v", err)
	}
}

// A key that does not load never replaces one that works; and a reload in the
// middle of a change must not sign with a certificate of another key.
func TestFileKeysKeepTheLastGoodKey(t *testing.T) {
	t.Parallel()
	ca := pkitest.NewCA(t, nil)
	pair := func() keyFiles {
		key := newTestSigner(t, ES256)
		return keyFiles{pkitest.CertPEM(pkitest.NewCert(t, key, ca)), pkitest.KeyPEM(t, key), pkitest.CertPEM(ca)}
	}
	first, second := pair(), pair()
	dir := t.TempDir()
	first.write(t, dir)
	keys := mustLoad(t, first.config(dir, ES256))
	key := mustSigning(t, keys)

	testkit.Must(t, keys.Reload())
	if mustSigning(t, keys) != key || len(keys.current.Load().retired) != 0 {
		t.Error("a reload of the same files changed something")
	}
	for want, half := range map[string]keyFiles{
		"not for this private key": {cert: second.cert},
		"no private key":           {cert: first.cert, key: []byte("-----BEGIN PRIV")},
		"no certificate":           {cert: []byte{}, key: first.key},
		"does not vouch":           {cert: first.cert, ca: pkitest.CertPEM(pkitest.NewCA(t, nil))},
	} {
		half.write(t, dir)
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reload: %v, want %q", err, want)
		}
		if mustSigning(t, keys) != key {
			t.Errorf("%s: the key changed", want)
		}
		if _, err := newRegistry(t, keys).Verify(testToken(t, keys)); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		first.write(t, dir)
	}
	second.write(t, dir)
	testkit.Must(t, keys.Reload())
	if mustSigning(t, keys).ID == key.ID {
		t.Error("the complete pair was not taken over")
	}
}

func TestFileKeysRefuseAnExpiredReplacement(t *testing.T) {
	t.Parallel()
	ca := pkitest.NewCA(t, nil)
	key := newTestSigner(t, ES256)
	files := keyFiles{pkitest.CertPEM(pkitest.NewCert(t, key, ca)), pkitest.KeyPEM(t, key), pkitest.CertPEM(ca)}
	dir := t.TempDir()
	files.write(t, dir)
	keys := mustLoad(t, files.config(dir, ES256))
	good := mustSigning(t, keys)
	expired := pkitest.NewCert(t, key, ca, func(c *x509.Certificate) { c.NotAfter = time.Now() })
	keyFiles{cert: pkitest.CertPEM(expired)}.write(t, dir)
	if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), "tls.crt") || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("reload: %v, want the expired certificate refused", err)
	}
	if mustSigning(t, keys) != good {
		t.Error("an expired certificate replaced a good one")
	}
	keyFiles{cert: pkitest.CertPEM(pkitest.NewCert(t, key, ca))}.write(t, dir)
	if err := keys.Reload(); err != nil || mustSigning(t, keys) == good {
		t.Errorf("a renewed certificate of the same key was not taken over: %v", err)
	}
}

// When the last good certificate ends, nothing can sign: registries would
// refuse every token, so it is said on this side.
func TestFileKeysStopWithTheCertificate(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		key := newTestSigner(t, ES256)
		cert := pkitest.NewCert(t, key, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(10 * time.Minute) })
		keys := testkit.Value(keyFiles{cert: pkitest.CertPEM(cert), key: pkitest.KeyPEM(t, key)}.load(t, ES256))(t)
		time.Sleep(9 * time.Minute)
		if _, err := keys.Signing(); err != nil {
			t.Errorf("a minute before the end: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := keys.Signing(); !errors.Is(err, ErrNoSigningKey) || !strings.Contains(err.Error(), "tls.crt") || !strings.Contains(err.Error(), "renew it") {
			t.Errorf("less than a minute before the end: %v, want ErrNoSigningKey and the file", err)
		}
	})
}

// newPairs returns a function that makes a new key and, if trust needs one, its certificate, always of the same CA.
func newPairs(t *testing.T, trust Trust) func() keyFiles {
	ca := pkitest.NewCA(t, nil)
	return func() keyFiles {
		key := newTestSigner(t, ES256)
		if trust == TrustJWKS {
			return keyFiles{key: pkitest.KeyPEM(t, key)}
		}
		return keyFiles{pkitest.CertPEM(pkitest.NewCert(t, key, ca)), pkitest.KeyPEM(t, key), pkitest.CertPEM(ca)}
	}
}

// Keys and CAs stay published until the last token signed with them has expired.
func TestFileKeysOverlap(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustJWKS, TrustCertificate} {
		synctest.Test(t, func(t *testing.T) {
			pair := newPairs(t, trust)
			first, second := pair(), pair()
			dir := t.TempDir()
			first.write(t, dir)
			keys := mustLoad(t, first.config(dir, ES256))
			id := mustSigning(t, keys).ID

			old := testToken(t, keys)
			second.write(t, dir)
			testkit.Must(t, keys.Reload())
			verify := func(when string) {
				t.Helper()
				for _, raw := range []string{old, testToken(t, keys)} {
					if _, err := newRegistry(t, keys).Verify(raw); err != nil {
						t.Errorf("%s, %s: %v", trust, when, err)
					}
				}
			}
			verify("right after the change")
			time.Sleep(5*time.Minute + token.Leeway - time.Second)
			testkit.Must(t, keys.Reload())
			verify("at the end of the old token")
			time.Sleep(time.Second)
			cas := 1
			if trust == TrustJWKS {
				cas = 0
			}
			if published := keys.Trusted(); len(published.JWKS.Keys) != 1 || len(published.Certificates) != cas {
				t.Errorf("%s: %d keys and %d CAs are published after the overlap, want 1 and %d", trust, len(published.JWKS.Keys), len(published.Certificates), cas)
			}
			if err := keys.Reload(); err != nil || len(keys.current.Load().retired) != 0 {
				t.Errorf("the retired key is still held, error %v", err)
			}

			first.write(t, dir) // back again
			if err := keys.Reload(); err != nil || mustSigning(t, keys).ID != id {
				t.Errorf("the first key does not come back: %v", err)
			}
		})
	}
}

// A CA rollover has three steps: registries get both CAs, the new one signs, the old one is
// removed. All tokens stay valid, also at the last registry to get the new CA, and at the first to
// drop the old one.
func TestFileKeysRollTheCAOver(t *testing.T) {
	t.Parallel()
	for _, deep := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			oldCA, newCA := pkitest.NewCA(t, nil), pkitest.NewCA(t, nil)
			pair := func(ca *pkitest.Cert) keyFiles {
				key, chain := newTestSigner(t, ES256), []*pkitest.Cert{}
				if deep {
					ca = pkitest.NewCA(t, ca)
					chain = append(chain, ca)
				}
				return keyFiles{cert: pkitest.CertPEM(append([]*pkitest.Cert{pkitest.NewCert(t, key, ca)}, chain...)...), key: pkitest.KeyPEM(t, key)}
			}
			first, second := pair(oldCA), pair(newCA)
			first.ca = pkitest.CertPEM(oldCA)
			dir := t.TempDir()
			first.write(t, dir)
			keys := mustLoad(t, first.config(dir, ES256))
			token := func() string { return testToken(t, keys) }
			onlyOld := newRegistry(t, keys)
			state := func(ca *pkitest.Cert) State {
				for _, info := range keys.Status().CAs {
					if info.ID == fingerprint(ca.Certificate) {
						return info.State
					}
				}
				return ""
			}

			keyFiles{ca: pkitest.CertPEM(oldCA, newCA)}.write(t, dir)
			testkit.Must(t, keys.Reload())
			both, before := newRegistry(t, keys), token()
			verifyAll(t, []string{before}, onlyOld)
			if state(oldCA) != StateSigning || state(newCA) != StateTrusted {
				t.Errorf("both are published: the old CA is %q, the new one %q", state(oldCA), state(newCA))
			}

			second.write(t, dir)
			testkit.Must(t, keys.Reload())
			after := token()
			if _, err := onlyOld.Verify(after); err == nil {
				t.Error("the new CA does not sign")
			}
			verifyAll(t, []string{before, after}, both)
			if state(oldCA) != StateTrusted || state(newCA) != StateSigning {
				t.Errorf("the new one signs: the old CA is %q, the new one %q", state(oldCA), state(newCA))
			}

			keyFiles{ca: pkitest.CertPEM(newCA)}.write(t, dir)
			testkit.Must(t, keys.Reload())
			if state(oldCA) != StateRetired {
				t.Errorf("the old CA is taken away, with tokens alive: it is %q", state(oldCA))
			}
			verifyAll(t, []string{before, after}, newRegistry(t, keys))
			time.Sleep(testOverlap)
			if state(oldCA) != "" || len(keys.Trusted().Certificates) != 1 {
				t.Errorf("after the overlap the old CA is %q", state(oldCA))
			}
		})
	}
}

// cert-manager renews a CA when its time has come, and the next certificate
// brings it along. No registry knows it.
func TestFileKeysRefuseACAThatNobodyKnows(t *testing.T) {
	t.Parallel()
	for _, caInFile := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			pair := func() (keyFiles, *pkitest.Cert) {
				key, ca := newTestSigner(t, ES256), pkitest.NewCA(t, nil)
				files := keyFiles{cert: pkitest.CertPEM(pkitest.NewCert(t, key, ca), ca), key: pkitest.KeyPEM(t, key)}
				if caInFile {
					files.ca = pkitest.CertPEM(ca)
				}
				return files, ca
			}
			first, _ := pair()
			second, newCA := pair()
			dir := t.TempDir()
			first.write(t, dir)
			keys := mustLoad(t, first.config(dir, ES256))
			registry := newRegistry(t, keys)

			second.write(t, dir)
			for range 2 {
				if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), "was not published before") || !strings.Contains(err.Error(), fingerprint(newCA.Certificate)) {
					t.Fatalf("reload: %v, want the CA refused, by its fingerprint", err)
				}
				verifyAll(t, []string{testToken(t, keys)}, registry)
				if len(keys.Trusted().Certificates) != 1 {
					t.Error("it is published")
				}
			}
			time.Sleep(24*time.Hour - MinLifetime)
			third, _ := pair()
			third.write(t, dir)
			if err := keys.Reload(); err == nil {
				t.Error("refused no more while the last key can sign")
			}
			time.Sleep(time.Second) // nothing is lost any more: it cannot
			testkit.Must(t, keys.Reload())
			mustSigning(t, keys)
		})
	}
}

// A registry checks all certificates on the way, so the key ends with the first.
func TestFileKeysEndWithTheirCA(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{"root", "intermediate"} {
		synctest.Test(t, func(t *testing.T) {
			soon := time.Now().Add(10 * time.Minute)
			ca := func(name string, parent *pkitest.Cert) *pkitest.Cert {
				return pkitest.NewCert(t, newTestSigner(t, ES256), parent, func(c *x509.Certificate) {
					c.Subject.CommonName, c.IsCA, c.KeyUsage = name, true, x509.KeyUsageCertSign
					if name == ending {
						c.NotAfter = soon
					}
				})
			}
			root := ca("root", nil)
			intermediate := ca("intermediate", root)
			key := newTestSigner(t, ES256)
			var log bytes.Buffer
			files := keyFiles{pkitest.CertPEM(pkitest.NewCert(t, key, intermediate), intermediate), pkitest.KeyPEM(t, key), pkitest.CertPEM(root)}
			dir := t.TempDir()
			files.write(t, dir)
			cfg := files.config(dir, ES256)
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			keys := mustLoad(t, cfg)

			if key := mustSigning(t, keys); !key.NotAfter.Equal(soon) {
				t.Errorf("the key ends at %s, the %s at %s", key.NotAfter, ending, soon)
			}
			if got := keys.Status(); !got.Keys[0].NotAfter.Equal(soon) || len(got.CAs) != 2 {
				t.Errorf("%s: status %+v", ending, got)
			}
			time.Sleep(9 * time.Minute)
			mustSigning(t, keys)
			time.Sleep(time.Second)
			if _, err := keys.Signing(); !errors.Is(err, ErrNoSigningKey) || !strings.Contains(err.Error(), "CN="+ending) {
				t.Errorf("at the end of the %s: %v", ending, err)
			}
			if _, err := NewFileKeys(cfg); err == nil || !strings.Contains(err.Error(), "CN="+ending) {
				t.Errorf("at the end of the %s they load: %v", ending, err)
			}

			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			keys.Run(ctx)
			if n := strings.Count(log.String(), "put a renewed"); n != 1 || !strings.Contains(log.String(), "CN="+ending) {
				t.Errorf("warned %d times: %s", n, log.String())
			}
		})
	}
}

// Reload that misses Kubernetes mounts: the kubelet swaps the link ..data, and
// the files' own links never change.
func TestFileKeysFollowSymbolicLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		testkit.Must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	ca := pkitest.NewCA(t, nil)
	for _, version := range []string{"..v1", "..v2"} {
		testkit.Must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		key := newTestSigner(t, ES256)
		keyFiles{cert: pkitest.CertPEM(pkitest.NewCert(t, key, ca), ca), key: pkitest.KeyPEM(t, key)}.write(t, filepath.Join(dir, version))
	}
	link("..v1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	keys := mustLoad(t, keyFiles{cert: []byte{}}.config(dir, ES256))
	before := mustSigning(t, keys).ID
	link("..v2", "..data_tmp")
	testkit.Must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	testkit.Must(t, keys.Reload())
	if mustSigning(t, keys).ID == before {
		t.Error("the swapped volume was not read")
	}
}

// Errors must not quote the key that they complain about.
func TestFileKeysErrorsShowNoKey(t *testing.T) {
	t.Parallel()
	key := pkitest.KeyPEM(t, newTestSigner(t, ES256))
	body := strings.Split(string(key), "\n")[1]
	for _, data := range [][]byte{key[:len(key)/2], bytes.Replace(key, []byte("PRIVATE"), []byte("OTHER"), 2), append(key, key...)} {
		if _, err := (keyFiles{key: data}).load(t, ES256); err == nil || strings.Contains(err.Error(), body[:8]) {
			t.Errorf("error %v", err)
		}
	}
}

// Tokens issued while keys change verify against what is published when they
// are issued, and until they end.
func TestFileKeysChangeUnderLoad(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustJWKS, TrustCertificate} {
		synctest.Test(t, func(t *testing.T) {
			pair := newPairs(t, trust)
			files := pair()
			dir := t.TempDir()
			files.write(t, dir)
			keys := mustLoad(t, files.config(dir, ES256))
			raws := issueWhile(t, keys, func() {
				for range 20 {
					pair().write(t, dir)
					if err := keys.Reload(); err != nil {
						t.Error(err)
					}
				}
			})
			time.Sleep(5*time.Minute + token.Leeway - time.Second)
			verifyAll(t, raws, newRegistry(t, keys))
		})
	}
}

// Keys in files need no log.
func TestFileKeysRunWithoutALog(t *testing.T) {
	t.Parallel()
	key := newTestSigner(t, ES256)
	cert := pkitest.NewCert(t, key, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(10 * time.Minute) })
	keys := testkit.Value(keyFiles{cert: pkitest.CertPEM(cert), key: pkitest.KeyPEM(t, key)}.load(t, ES256))(t)
	if err := keys.EndsSoon(); err == nil || !strings.HasPrefix(err.Error(), "the certificate of ") {
		t.Errorf("error %v, want the end of the certificate", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	keys.Run(ctx)
}

// Operators read there which certificates registries need.
func TestFileKeysStatusOfTheChain(t *testing.T) {
	t.Parallel()
	key := newTestSigner(t, ES256)
	ca := pkitest.NewCA(t, nil)
	intermediate := pkitest.NewCA(t, ca)
	for name, chain := range map[string][]*pkitest.Cert{
		"self-signed":  {pkitest.NewCert(t, key, nil)},
		"intermediate": {pkitest.NewCert(t, key, intermediate), intermediate, ca},
	} {
		keys := testkit.Value(keyFiles{cert: pkitest.CertPEM(chain...), key: pkitest.KeyPEM(t, key)}.load(t, ES256))(t)
		cas := keys.Status().CAs
		if len(cas) != max(1, len(chain)-1) || cas[0].ID != fingerprint(chain[len(chain)-1].Certificate) || cas[0].State != StateSigning || cas[0].Intermediate {
			t.Errorf("%s: %+v, want the certificate for registries first", name, cas)
		}
		for _, ca := range cas[1:] {
			if !ca.Intermediate {
				t.Errorf("%s: %s is not called intermediate", name, ca.Subject)
			}
		}
	}
}

// A CA that leaves its file, and a key that is replaced, stay published for tokens that have not expired.
func TestFileKeysStatusOfReplacedTrust(t *testing.T) {
	t.Parallel()
	ca, other := pkitest.NewCA(t, nil), pkitest.NewCA(t, nil)
	pair := func(cas ...*pkitest.Cert) keyFiles {
		key := newTestSigner(t, ES256)
		return keyFiles{pkitest.CertPEM(pkitest.NewCert(t, key, ca)), pkitest.KeyPEM(t, key), pkitest.CertPEM(cas...)}
	}
	first := pair(ca, other)
	dir := t.TempDir()
	first.write(t, dir)
	keys := mustLoad(t, first.config(dir, ES256))
	key := mustSigning(t, keys)
	keyFiles{ca: pkitest.CertPEM(ca)}.write(t, dir)
	testkit.Must(t, keys.Reload())
	if mustSigning(t, keys).ID != key.ID || !slices.ContainsFunc(keys.Trusted().Certificates, other.Equal) {
		t.Error("a CA that left its file is not published any more")
	}
	pair(ca).write(t, dir)
	testkit.Must(t, keys.Reload())
	status := keys.Status().Keys
	if len(status) != 2 || status[0].ID != key.ID || status[0].State != StateRetired || status[0].PublishedUntil.IsZero() {
		t.Errorf("the status is %+v, want first the key that was replaced", status)
	}
}

// Only a key set names keys that have no certificate.
func TestFileKeysWithCertificatesPublishNoOtherKey(t *testing.T) {
	t.Parallel()
	private, _ := newKeyPEM(t, ES256)
	_, public := newKeyPEM(t, ES256)
	signer := testkit.Value(parsePrivateKey(private))(t)
	keys := testkit.Value(keyFiles{cert: pkitest.CertPEM(pkitest.NewCert(t, signer, nil)), key: slices.Concat(private, public)}.load(t, ES256))(t)
	if published := keys.Trusted().JWKS.Keys; len(published) != 1 || published[0].KeyID != mustSigning(t, keys).ID {
		t.Errorf("%+v are published, want the signing key alone", published)
	}
}

// The greatest chain, file and key are good.
func TestFileKeysAtTheirLimits(t *testing.T) {
	t.Parallel()
	key := newTestSigner(t, ES256)
	chain := []*pkitest.Cert{pkitest.NewCA(t, nil)}
	for len(chain) < MaxChain-1 {
		chain = append(chain, pkitest.NewCA(t, chain[len(chain)-1]))
	}
	chain = append(chain, pkitest.NewCert(t, key, chain[len(chain)-1]))
	slices.Reverse(chain)
	if _, err := (keyFiles{cert: pkitest.CertPEM(chain...), key: pkitest.KeyPEM(t, key)}).load(t, ES256); err != nil {
		t.Errorf("a chain of %d: %v", len(chain), err)
	}
	if data, err := readCapped(strings.NewReader(strings.Repeat("a", maxKeyFileBytes)), "name"); err != nil || len(data) != maxKeyFileBytes {
		t.Errorf("a file of %d bytes: %v", len(data), err)
	}
	if err := RS256.checkKey(&rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), maxRSABits-1), E: 65537}); err != nil {
		t.Errorf("an RSA key of %d bits: %v", maxRSABits, err)
	}
}

// A volume whose server does not answer.
func TestKeyFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	if data, err := readCapped(iotest.ErrReader(broken), "name"); !errors.Is(err, broken) || data != nil {
		t.Errorf("%d bytes, error %v", len(data), err)
	}
}
