package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Trust is the way by which a registry trusts a signing key.
type Trust string

const (
	// TrustCertificate puts the certificate chain into each token (x5c). The registry's
	// rootcertbundle holds only the CA, so keys may change freely.
	TrustCertificate Trust = "certificate"
	// TrustJWKS names the key (kid) and sends no chain. The registry holds a key
	// set file, which it reads once.
	TrustJWKS Trust = "jwks"
)

// Values returns every Trust.
func (Trust) Values() []Trust { return []Trust{TrustCertificate, TrustJWKS} }

func (t Trust) validate() error {
	if slices.Contains(t.Values(), t) {
		return nil
	}
	return fmt.Errorf("trust %q is unknown: use %q or %q", string(t), TrustCertificate, TrustJWKS)
}

// Algorithm is a JWS signature algorithm (RFC 7518, RFC 8037).
type Algorithm string

// The signature algorithms of tokens.
const (
	ES256 Algorithm = "ES256" // ECDSA, P-256: small and fast, the default
	RS256 Algorithm = "RS256" // RSA, 2048 bits or more: for registries that support only RSA
	EdDSA Algorithm = "EdDSA" // Ed25519: distribution 3 and zot, not distribution 2
)

// Values returns every Algorithm.
func (Algorithm) Values() []Algorithm { return []Algorithm{ES256, RS256, EdDSA} }

func (a Algorithm) validate() error {
	if slices.Contains(a.Values(), a) {
		return nil
	}
	return fmt.Errorf("algorithm %q is unknown: use %q, %q or %q", string(a), ES256, RS256, EdDSA)
}

// checkKey returns an error if pub cannot verify signatures of a.
func (a Algorithm) checkKey(pub crypto.PublicKey) error {
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		if a == ES256 && pub.Curve == elliptic.P256() {
			return nil
		}
		return fmt.Errorf("the key is ECDSA %s, but algorithm %s is configured; ES256 needs P-256", pub.Curve.Params().Name, a)
	case *rsa.PublicKey:
		bits := pub.N.BitLen()
		if a != RS256 {
			return fmt.Errorf("the key is RSA, but algorithm %s is configured", a)
		}
		if bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("the RSA key has %d bits; use %d to %d", bits, minRSABits, maxRSABits)
		}
		return nil
	case ed25519.PublicKey:
		if a == EdDSA {
			return nil
		}
		return fmt.Errorf("the key is Ed25519, but algorithm %s is configured", a)
	}
	return fmt.Errorf("a key of type %T cannot sign tokens: use ECDSA P-256, RSA or Ed25519", pub)
}

const (
	minRSABits        = 2048
	maxRSABits        = 4096 // the largest that go-jose, and so distribution, verifies
	maxSignatureBytes = maxRSABits / 8
)

// MinLifetime is the shortest lifetime that the token specification allows (expires_in: never less
// than 60 seconds). A key signs only while its certificates stay valid for at least this long.
const MinLifetime = 60 * time.Second

// MaxLifetime is the longest lifetime that can be configured: registry tokens cannot be revoked.
const MaxLifetime = time.Hour

// ErrNoSigningKey says that no key can sign at present. It is a fault of this process, not of the
// client: 503.
var ErrNoSigningKey = errors.New("no usable signing key")

// Keys holds the keys of one registry. Implementations are safe for concurrent use. Signing is
// called for every token and takes no lock.
type Keys interface {
	// Signing returns the present signing key. Its certificate, if it has one, and those above it
	// are valid for at least MinLifetime. An error wraps ErrNoSigningKey.
	Signing() (*SigningKey, error)
	// Trusted returns the keys and CAs that a registry must trust now: for the signing key, for
	// keys with tokens that have not expired, and for a key that will sign soon.
	Trusted() TrustBundle
	// Shared returns all private keys of this replica, from which replicas derive shared secrets
	// (Derived). If possible, the first one is a key that the other replicas have also read by now.
	// For some minutes after a change, that is the previous key. The result is empty if there is no
	// key.
	Shared() []*SigningKey
	// Status describes the keys and the CAs for operators and for metrics.
	Status() Status
	// EndsSoon returns an error if a certificate that tokens need expires soon and an operator must
	// act. Otherwise it returns nil.
	EndsSoon() error
}

// TrustBundle is the public half of a set of keys. Both kinds of trust have the key set: a gateway
// that reads it repeatedly can follow each rotation. A registry that reads it once must use
// TrustJWKS, whose keys do not change without the registry. Only TrustCertificate has certificates.
type TrustBundle struct {
	JWKS         jose.JSONWebKeySet
	Certificates []*x509.Certificate
}

// SigningKey is a private key, ready to sign. It is immutable and safe for concurrent use. It
// cannot print its private part.
type SigningKey struct {
	ID        string // RFC 7638 thumbprint, SHA-256
	Algorithm Algorithm
	Since     time.Time // start of its signing, or of its certificate's validity; zero if neither is known
	NotAfter  time.Time // expiry of its certificate, or of one above it; zero without one

	public crypto.PublicKey
	path   []*x509.Certificate // from its certificate to the registry's root; empty with TrustJWKS
	header string              // protected header in base64url, the same in every token
	// signature holds the private key in a function, so that it cannot be printed. A Format method
	// would not help: fmt does not call it for unexported fields.
	signature func(message []byte) ([]byte, error)
	derived   func(purpose string) ([]byte, error)
}

// newSigningKey prepares signer. chain is sent with each token, leaf first. path leads from the
// chain's leaf to the registry's root. Both are empty with TrustJWKS.
func newSigningKey(algorithm Algorithm, signer crypto.Signer, chain, path []*x509.Certificate) (*SigningKey, error) {
	if err := algorithm.checkKey(signer.Public()); err != nil {
		return nil, err
	}
	id, err := thumbprint(signer.Public())
	if err != nil {
		return nil, err
	}
	key := &SigningKey{ID: id, Algorithm: algorithm, public: signer.Public(), path: path}
	if key.signature, err = signatureFunc(signer); err != nil {
		return nil, err
	}
	// GODEBUG=fips140=only allows fewer keys than checkKey: RSA has even sizes, exponents above 2¹⁶, and two primes of one size.
	if _, err := key.signature(nil); err != nil {
		return nil, fmt.Errorf("the key cannot sign: %w", err)
	}
	if key.derived, err = derivedFunc(signer); err != nil {
		return nil, err
	}
	// The kid is sent also with x5c, so that logs can be joined. Registries read x5c first
	// (distribution's VerifySigningKey).
	header := struct {
		Alg Algorithm `json:"alg"`
		Kid string    `json:"kid"`
		Typ string    `json:"typ"`
		X5c [][]byte  `json:"x5c,omitempty"` // standard base64, as RFC 7515 section 4.1.6 requires
	}{Alg: algorithm, Kid: id, Typ: "JWT"}
	for i, cert := range chain {
		if i > 0 && selfSigned(cert) {
			continue // the registry has the root; sending it proves nothing
		}
		header.X5c = append(header.X5c, cert.Raw)
	}
	if len(path) > 0 {
		key.Since, key.NotAfter = path[0].NotBefore, endOf(path)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("token header: %w", err)
	}
	key.header = base64.RawURLEncoding.EncodeToString(raw)
	return key, nil
}

// usable returns an error if a token signed at now cannot live for MinLifetime.
func (k *SigningKey) usable(now time.Time) error {
	for _, cert := range k.path {
		if err := checkValidity(cert, now); err != nil {
			return err
		}
	}
	return nil
}

// root returns the certificate that the registry must have. It returns nil with TrustJWKS.
func (k *SigningKey) root() *x509.Certificate {
	if len(k.path) == 0 {
		return nil
	}
	return k.path[len(k.path)-1]
}

// Sign returns the compact serialization (RFC 7515 section 7.1) of payload.
//
// It does not use go-jose, because go-jose serializes the header, including certificates, for each
// token.
func (k *SigningKey) Sign(payload []byte) (string, error) {
	enc := base64.RawURLEncoding
	size := len(k.header) + 1 + enc.EncodedLen(len(payload))
	token := make([]byte, 0, size+1+enc.EncodedLen(maxSignatureBytes))
	token = append(token, k.header...)
	token = append(token, '.')
	token = enc.AppendEncode(token, payload)

	signature, err := k.signature(token)
	if err != nil {
		return "", fmt.Errorf("sign with key %s: %w", k.ID, err)
	}
	token = append(token, '.')
	return string(enc.AppendEncode(token, signature)), nil
}

// Derived returns 32 bytes that only holders of the private key can compute (RFC 5869). Every
// replica with the key gets the same bytes. Each purpose gets different bytes.
func (k *SigningKey) Derived(purpose string) ([]byte, error) { return k.derived(purpose) }

func derivedFunc(signer crypto.Signer) (func(purpose string) ([]byte, error), error) {
	secret, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, fmt.Errorf("derive from the key: %w", err)
	}
	pseudorandom, err := hkdf.Extract(sha256.New, secret, nil)
	if err != nil {
		return nil, fmt.Errorf("derive from the key: %w", err)
	}
	return func(purpose string) ([]byte, error) { return hkdf.Expand(sha256.New, pseudorandom, purpose, 32) }, nil
}

// signatureFunc returns the JWS signature of a message by signer (RFC 7518
// sections 3.3 and 3.4, RFC 8037 section 3.1).
func signatureFunc(signer crypto.Signer) (func([]byte) ([]byte, error), error) {
	switch key := signer.(type) {
	case *ecdsa.PrivateKey:
		return func(message []byte) ([]byte, error) {
			digest := sha256.Sum256(message)
			r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
			if err != nil {
				return nil, err
			}
			signature := make([]byte, 64) // both as 32 octets, whatever their value
			r.FillBytes(signature[:32])
			s.FillBytes(signature[32:])
			return signature, nil
		}, nil
	case *rsa.PrivateKey:
		return func(message []byte) ([]byte, error) {
			digest := sha256.Sum256(message)
			return rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
		}, nil
	case ed25519.PrivateKey:
		return func(message []byte) ([]byte, error) { return ed25519.Sign(key, message), nil }, nil
	}
	return nil, fmt.Errorf("a key of type %T cannot sign tokens: use ECDSA P-256, RSA or Ed25519", signer)
}

const (
	// settleTime is the maximum delay until another replica reads a new key. A kubelet renews a
	// Secret within a minute or two, and a directory is read each minute.
	settleTime = 3 * time.Minute
	// heldFor is how long a replaced key in files is held for Shared. Other replicas read the new
	// key settleTime later, and use the old key for the same time again.
	heldFor = 3 * settleTime
)

// heldKey is a private key, with the times between which it is held. A zero start means that it was
// held before this process started. A zero end means that the end is unknown.
type heldKey struct {
	*SigningKey
	since, until time.Time
}

func (k heldKey) ended(now time.Time) bool { return !k.until.IsZero() && !now.Before(k.until) }

// shared puts keys, the newest of which is last, into the order of Keys.Shared.
func shared(held []heldKey, now time.Time) []*SigningKey {
	var keys []*SigningKey
	settled := 0 // if none has settled, the other replicas most likely have the oldest
	for _, key := range held {
		if key.ended(now) {
			continue
		}
		if now.Sub(key.since) >= settleTime {
			settled = len(keys)
		}
		keys = append(keys, key.SigningKey)
	}
	if len(keys) > 0 {
		keys[0], keys[settled] = keys[settled], keys[0]
	}
	return keys
}

// publicJWK returns the public half in its published form.
func (k *SigningKey) publicJWK() jose.JSONWebKey {
	return publicJWK(k.public, k.ID, k.Algorithm)
}

func publicJWK(key crypto.PublicKey, id string, algorithm Algorithm) jose.JSONWebKey {
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(algorithm), Use: "sig"}
}

func thumbprint(pub crypto.PublicKey) (string, error) {
	jwk := jose.JSONWebKey{Key: pub}
	sum, err := jwk.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("thumbprint of the key: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

func generateKey(algorithm Algorithm) (crypto.Signer, error) {
	switch algorithm {
	case ES256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RS256:
		return rsa.GenerateKey(rand.Reader, minRSABits)
	case EdDSA:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, algorithm.validate()
}
