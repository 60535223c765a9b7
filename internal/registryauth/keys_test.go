package registryauth

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"
)

const (
	testIssuer  = "pullpass.example.com"
	testService = "registry.example.com"
	testSubject = "system:serviceaccount:team-a:web"
)

var issuingAlgorithms = []Algorithm{ES256, RS256, EdDSA}

// issuingRSAKey is shared: making one is slow.
var issuingRSAKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newTestSigner(t testing.TB, algorithm Algorithm) crypto.Signer {
	t.Helper()
	if algorithm == RS256 {
		return issuingRSAKey()
	}
	key, err := generateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// testCert is a certificate and its key.
type testCert struct {
	*x509.Certificate
	key crypto.Signer
}

// newTestCert makes a certificate for key, signed by parent or by itself. edit
// may change the template of a sound leaf.
func newTestCert(t testing.TB, key crypto.Signer, parent *testCert, edit func(*x509.Certificate)) *testCert {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "pullpass test " + rand.Text()},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if edit != nil {
		edit(template)
	}
	signedBy, signer := template, key
	if parent != nil {
		signedBy, signer = parent.Certificate, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signedBy, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &testCert{cert, key}
}

func newTestCA(t testing.TB, parent *testCert) *testCert {
	t.Helper()
	return newTestCert(t, newTestSigner(t, ES256), parent, func(c *x509.Certificate) {
		c.IsCA = true
		c.KeyUsage = x509.KeyUsageCertSign
		c.NotAfter = c.NotAfter.Add(24 * time.Hour)
	})
}

// fixedKeys is one key and what is published for it.
type fixedKeys struct {
	key     *SigningKey
	trusted TrustBundle
	err     error
}

func (k fixedKeys) Signing() (*SigningKey, error) { return k.key, k.err }
func (k fixedKeys) Trusted() TrustBundle          { return k.trusted }
func (k fixedKeys) Status() Status                { return Status{} }
func (k fixedKeys) EndsSoon() error               { return nil }

func newFixedKeys(t testing.TB, algorithm Algorithm, trust Trust) fixedKeys {
	t.Helper()
	signer := newTestSigner(t, algorithm)
	if trust == TrustJWKS {
		key, err := newSigningKey(algorithm, signer, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return fixedKeys{key: key, trusted: keyTrust(key)}
	}
	ca := newTestCA(t, nil)
	leaf := newTestCert(t, signer, ca, nil)
	key, err := newSigningKey(algorithm, signer, []*x509.Certificate{leaf.Certificate}, []*x509.Certificate{leaf.Certificate})
	if err != nil {
		t.Fatal(err)
	}
	return fixedKeys{key: key, trusted: TrustBundle{Certificates: []*x509.Certificate{ca.Certificate}}}
}

func newTestIssuer(t testing.TB, keys Keys, edit func(*IssuerConfig)) *Issuer {
	t.Helper()
	cfg := IssuerConfig{Issuer: testIssuer, Service: testService, Lifetime: 5 * time.Minute, Keys: keys}
	if edit != nil {
		edit(&cfg)
	}
	issuer, err := NewIssuer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

func issueTestToken(t testing.TB, issuer *Issuer) Token {
	t.Helper()
	issued, err := issuer.Issue(Grant{Subject: testSubject, Access: []Scope{{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}}})
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

// registryTrust reads the published files as distribution's access controller
// reads its rootcertbundle and jwks.
func registryTrust(t testing.TB, keys ...Keys) token.VerifyOptions {
	t.Helper()
	opts := token.VerifyOptions{
		TrustedIssuers:    []string{testIssuer},
		AcceptedAudiences: []string{testService},
		Roots:             x509.NewCertPool(),
		TrustedKeys:       map[string]crypto.PublicKey{},
	}
	data, err := MarshalJWKS(keys...)
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	for _, key := range set.Keys {
		opts.TrustedKeys[key.KeyID] = key.Public()
	}
	rest := MarshalCertificates(keys...)
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		opts.Roots.AddCert(cert)
		opts.TrustedKeys[token.GetJWKThumbprint(cert.PublicKey)] = cert.PublicKey
	}
	return opts
}

// registryVerify judges a token as distribution does, by its own code.
func registryVerify(raw string, opts token.VerifyOptions) (*token.ClaimSet, error) {
	parsed, err := token.NewToken(raw, []jose.SignatureAlgorithm{jose.ES256, jose.RS256, jose.EdDSA})
	if err != nil {
		return nil, err
	}
	return parsed.Verify(opts)
}

// tokenPart decodes the header (0) or the claims (1) of a token.
func tokenPart(t testing.TB, raw string, part int) map[string]any {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[part])
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func certPEM(certs ...*testCert) []byte {
	var out []byte
	for _, cert := range certs {
		out = append(out, encodeCertificatePEM(cert.Certificate)...)
	}
	return out
}

func keyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	data, err := encodeKeyPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func pemBlock(kind string, der []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// keyFiles are the files of a test; nil means that there is none.
type keyFiles struct{ cert, key, ca []byte }

func (f keyFiles) write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range map[string][]byte{"tls.crt": f.cert, "tls.key": f.key, "ca.crt": f.ca} {
		if data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// config names the files that f has.
func (f keyFiles) config(dir string, algorithm Algorithm) FileKeysConfig {
	cfg := FileKeysConfig{Algorithm: algorithm, Trust: TrustJWKS, KeyFile: filepath.Join(dir, "tls.key"), Overlap: testOverlap}
	if f.cert != nil {
		cfg.Trust, cfg.CertFile = TrustCertificate, filepath.Join(dir, "tls.crt")
	}
	if f.ca != nil {
		cfg.CAFile = filepath.Join(dir, "ca.crt")
	}
	return cfg
}

func (f keyFiles) load(t testing.TB, algorithm Algorithm) (*FileKeys, error) {
	t.Helper()
	dir := t.TempDir()
	f.write(t, dir)
	return NewFileKeys(f.config(dir, algorithm))
}

// issueWhile issues tokens from several goroutines while change runs, and
// verifies each at once. It returns them all.
func issueWhile(t *testing.T, keys Keys, change func()) []string {
	t.Helper()
	issuer := newTestIssuer(t, keys, nil)
	var done atomic.Bool
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for stop := false; !stop; {
				stop = done.Load() // one more after the last change
				issued, err := issuer.Issue(Grant{Subject: testSubject})
				if err != nil {
					t.Error(err)
					return
				}
				verifyAll(t, []string{issued.Value.Reveal()}, registryTrust(t, keys))
				mu.Lock()
				all = append(all, issued.Value.Reveal())
				mu.Unlock()
			}
		})
	}
	change()
	done.Store(true)
	wg.Wait()
	return all
}

func verifyAll(t *testing.T, raws []string, opts token.VerifyOptions) {
	t.Helper()
	for _, raw := range raws {
		if _, err := registryVerify(raw, opts); err != nil {
			t.Errorf("distribution refuses a token: %v", err)
			return
		}
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	return data
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
