package signing

import (
	"bytes"
	"crypto"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"

	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const tokenLifetime = 5 * time.Minute

var issuingAlgorithms = []Algorithm{ES256, RS256, EdDSA}

func newTestSigner(t testing.TB, algorithm Algorithm) crypto.Signer {
	t.Helper()
	if algorithm == RS256 {
		return pkitest.RSAKey(t)
	}
	key := testkit.Value(generateKey(algorithm))(t)
	return key
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
func (k fixedKeys) Shared() []*SigningKey         { return []*SigningKey{k.key} }

func newFixedKeys(t testing.TB, algorithm Algorithm, trust Trust) fixedKeys {
	t.Helper()
	signer := newTestSigner(t, algorithm)
	if trust == TrustJWKS {
		key := testkit.Value(newSigningKey(algorithm, signer, nil, nil))(t)
		return fixedKeys{key: key, trusted: keyTrust(key)}
	}
	ca := pkitest.NewCA(t, nil)
	leaf := pkitest.NewCert(t, signer, ca)
	key := testkit.Value(newSigningKey(algorithm, signer, []*x509.Certificate{leaf.Certificate}, []*x509.Certificate{leaf.Certificate}))(t)
	return fixedKeys{key: key, trusted: TrustBundle{Certificates: []*x509.Certificate{ca.Certificate}}}
}

// issued is a token that a key signed.
type issued struct {
	raw    string
	keyID  string
	expiry time.Time
}

// issue signs a token in distribution's form with the key of now.
func issue(keys Keys, lifetime time.Duration) (issued, error) {
	key, err := keys.Signing()
	if err != nil {
		return issued{}, err
	}
	now := time.Now().Truncate(time.Second)
	expiry := now.Add(lifetime)
	payload, err := json.Marshal(token.ClaimSet{
		Issuer: signingtest.Issuer, Subject: "system:serviceaccount:team-a:web", Audience: token.AudienceList{signingtest.Service},
		Expiration: expiry.Unix(), NotBefore: now.Unix(), IssuedAt: now.Unix(), JWTID: rand.Text(),
	})
	if err != nil {
		return issued{}, err
	}
	raw, err := key.Sign(payload)
	return issued{raw, key.ID, expiry}, err
}

func mustIssue(t testing.TB, keys Keys, lifetime time.Duration) issued {
	t.Helper()
	signed := testkit.Value(issue(keys, lifetime))(t)
	return signed
}

func testToken(t testing.TB, keys Keys) string {
	t.Helper()
	return mustIssue(t, keys, tokenLifetime).raw
}

// newRegistry trusts what keys publish now, and nothing that they publish later.
func newRegistry(t testing.TB, keys ...Keys) signingtest.Registry {
	t.Helper()
	jwks := testkit.Value(MarshalJWKS(keys...))(t)
	return signingtest.NewRegistry(t, jwks, MarshalCertificates(keys...))
}

// keyFiles are the files of a test; nil means that there is none.
type keyFiles struct{ cert, key, ca []byte }

func (f keyFiles) write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range map[string][]byte{"tls.crt": f.cert, "tls.key": f.key, "ca.crt": f.ca} {
		if data == nil {
			continue
		}
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
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
	var done atomic.Bool
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for stop := false; !stop; {
				stop = done.Load() // one more after the last change
				signed, err := issue(keys, tokenLifetime)
				if err != nil {
					t.Error(err)
					return
				}
				verifyAll(t, []string{signed.raw}, newRegistry(t, keys))
				mu.Lock()
				all = append(all, signed.raw)
				mu.Unlock()
			}
		})
	}
	change()
	done.Store(true)
	wg.Wait()
	return all
}

func verifyAll(t *testing.T, raws []string, registry signingtest.Registry) {
	t.Helper()
	for _, raw := range raws {
		if _, err := registry.Verify(raw); err != nil {
			t.Errorf("distribution refuses a token: %v", err)
			return
		}
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data := testkit.Value(os.ReadFile(name))(t)
	return data
}

// One r or s in 256 has a leading zero byte; a short signature is refused.
func TestECDSASignaturesHaveFixedLength(t *testing.T) {
	t.Parallel()
	keys := newFixedKeys(t, ES256, TrustJWKS)
	for range 1000 {
		raw := testToken(t, keys)
		signature, err := base64.RawURLEncoding.DecodeString(raw[strings.LastIndexByte(raw, '.')+1:])
		if err != nil || len(signature) != 64 {
			t.Fatalf("signature of %d bytes, error %v, want 64", len(signature), err)
		}
	}
}

// Private keys in logs and errors.
func TestSigningKeyDoesNotPrintItself(t *testing.T) {
	t.Parallel()
	private := newTestSigner(t, EdDSA).(ed25519.PrivateKey)
	key := testkit.Value(newSigningKey(EdDSA, private, nil, nil))(t)
	keys := fixedKeys{key: key}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		for _, value := range []any{keys.key, *keys.key, keys, &keys} {
			got := fmt.Sprintf(verb, value)
			for _, form := range []string{fmt.Sprintf("%x", []byte(private[:8])), strings.Trim(fmt.Sprint([]byte(private[:8])), "[]"), string(private[:8])} {
				if strings.Contains(got, form) {
					t.Errorf("%s of %T shows the private key", verb, value)
				}
			}
		}
	}
	if data, err := json.Marshal(keys.key); err != nil || strings.Contains(string(data), base64.StdEncoding.EncodeToString(private[:8])[:8]) {
		t.Errorf("JSON %s, error %v", data, err)
	}
}

// A key in a device has another type. It is refused, since its signature could have another form.
type deviceKey struct{ crypto.Signer }

func TestKeysThatCannotSign(t *testing.T) {
	t.Parallel()
	device := deviceKey{newTestSigner(t, ES256)}
	if _, err := newSigningKey(ES256, device, nil, nil); err == nil || !strings.Contains(err.Error(), "type signing.deviceKey cannot sign tokens") {
		t.Errorf("a key in a device: %v", err)
	}
	if _, err := encodeKeyPEM(device); err == nil || !strings.Contains(err.Error(), "encode the key: ") {
		t.Errorf("a key in a device: %v", err)
	}
	exchange := testkit.Value(ecdh.X25519().GenerateKey(rand.Reader))(t)
	der := testkit.Value(x509.MarshalPKCS8PrivateKey(exchange))(t)
	if _, err := parsePrivateKey(pkitest.PEM("PRIVATE KEY", der)); err == nil || !strings.Contains(err.Error(), "type *ecdh.PrivateKey cannot sign") {
		t.Errorf("a key for key exchange: %v", err)
	}
	if _, err := thumbprint(exchange.PublicKey()); err == nil || !strings.Contains(err.Error(), "thumbprint of the key: ") {
		t.Errorf("a key for key exchange has a thumbprint: %v", err)
	}
	leaf := pkitest.NewCert(t, device.Signer, nil)
	if _, err := verifyLeaf([]*x509.Certificate{leaf.Certificate}, []*x509.Certificate{leaf.Certificate}, struct{}{}, time.Now()); err == nil || !strings.Contains(err.Error(), "not for this private key") {
		t.Errorf("a certificate for a key that cannot be compared: %v", err)
	}
	broken := errors.New("broken")
	key := &SigningKey{ID: "1", signature: func([]byte) ([]byte, error) { return nil, broken }}
	if raw, err := key.Sign([]byte("{}")); !errors.Is(err, broken) || raw != "" {
		t.Errorf("a token without a signature: %q, error %v", raw, err)
	}
}

// Each text is logged when it changes, and no error is not a text.
func TestLastLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var last lastLogged
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, err := range []error{errors.New("one"), errors.New("one"), nil, errors.New("one"), errors.New("two"), nil, nil} {
		last.log(logger, slog.LevelWarn, "attention", err)
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines, want 3: %s", n, log.String())
	}
}
