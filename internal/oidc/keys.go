package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxKeys    = 64
	minRSABits = 2048 // RFC 7518, section 3.3
)

// algorithms are the signature algorithms of kube-apiserver. All are asymmetric.
var algorithms = [...]jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// key is a public key with its one algorithm. The key decides how a signature is checked. The
// header of a token can only name the same algorithm (RFC 8725, section 3.1).
type key struct {
	id        string
	algorithm jose.SignatureAlgorithm
	public    interface{ Equal(crypto.PublicKey) bool } // *rsa.PublicKey or *ecdsa.PublicKey
}

// keySet holds the keys that an issuer published at one moment. It is immutable.
type keySet struct {
	byID      map[string]*key
	fetchedAt time.Time
}

func (s *keySet) find(id string) *key {
	if s == nil {
		return nil
	}
	return s.byID[id]
}

func (s *keySet) size() int {
	if s == nil {
		return 0
	}
	return len(s.byID)
}

// newKeySet reuses the keys of the previous set that are published again, so that a key keeps its
// address while it is published.
func newKeySet(keys map[string]*key, previous *keySet, now time.Time) *keySet {
	for id, k := range keys {
		if old := previous.find(id); old != nil && old.public.Equal(k.public) {
			keys[id] = old
		}
	}
	return &keySet{byID: keys, fetchedAt: now}
}

// parseKeySet reads a JWK set (RFC 7517) and returns its usable keys by id. An unusable key does
// not invalidate the others. A set without any usable key is an error, so that it cannot replace a
// good one.
func parseKeySet(data []byte) (map[string]*key, error) {
	var document struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", boundedError(err))
	}
	if len(document.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, at most %d are read", len(document.Keys), maxKeys)
	}
	keys := map[string]*key{}
	ambiguous := map[string]bool{}
	var ignored error
	for n, raw := range document.Keys {
		k, err := parseKey(raw)
		if err != nil {
			if ignored == nil {
				ignored = fmt.Errorf("keys[%d]: %w", n, err)
			}
			continue
		}
		if other := keys[k.id]; other != nil && !other.public.Equal(k.public) {
			ambiguous[k.id] = true
		}
		keys[k.id] = k
	}
	// Two keys have the same id, so the id does not identify a key.
	for id := range ambiguous {
		ignored = fmt.Errorf("several keys have the kid %s", quote(id))
		delete(keys, id)
	}
	if len(keys) == 0 {
		if ignored == nil {
			ignored = errors.New("the set is empty")
		}
		return nil, fmt.Errorf("no usable key: %w", ignored)
	}
	return keys, nil
}

func parseKey(data []byte) (*key, error) {
	var jwk jose.JSONWebKey
	var err error
	// go-jose computes the SHA-1 of a certificate in x5c, which GitHub's keys have, and nothing trusts it. GODEBUG=fips140=only would
	// end the process for that.
	fips140.WithoutEnforcement(func() { err = json.Unmarshal(data, &jwk) })
	if err != nil {
		return nil, boundedError(err)
	}
	if jwk.KeyID == "" || len(jwk.KeyID) > maxKeyIDBytes {
		return nil, fmt.Errorf("kid must have 1 to %d bytes", maxKeyIDBytes)
	}
	if jwk.Use != "" && jwk.Use != "sig" {
		return nil, fmt.Errorf("use is %s, not sig", quote(jwk.Use))
	}
	var members struct { // go-jose ignores it (RFC 7517, section 4.3)
		KeyOps []string `json:"key_ops"`
	}
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, boundedError(err)
	}
	if members.KeyOps != nil && !slices.Contains(members.KeyOps, "verify") {
		return nil, errors.New("key_ops is without verify")
	}
	k := &key{id: jwk.KeyID}
	switch public := jwk.Key.(type) {
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < minRSABits {
			return nil, fmt.Errorf("an RSA key of %d bits, at least %d are required", bits, minRSABits)
		}
		// crypto/rsa would refuse every signature of such a key.
		if public.N.Bit(0) == 0 || public.E&1 == 0 || public.E > math.MaxInt32 {
			return nil, errors.New("an RSA key whose modulus or exponent is even, or whose exponent has more than 31 bits")
		}
		// GODEBUG=fips140=only allows fewer keys: even sizes, and exponents above 2¹⁶.
		if err := rsa.VerifyPKCS1v15(public, crypto.SHA256, make([]byte, sha256.Size), make([]byte, public.Size())); !errors.Is(err, rsa.ErrVerification) {
			return nil, fmt.Errorf("an RSA key that cannot verify signatures: %w", err)
		}
		k.public, k.algorithm = public, jose.RS256
	case *ecdsa.PublicKey:
		k.public = public
		switch public.Curve {
		case elliptic.P256():
			k.algorithm = jose.ES256
		case elliptic.P384():
			k.algorithm = jose.ES384
		case elliptic.P521():
			k.algorithm = jose.ES512
		}
	}
	if k.algorithm == "" {
		return nil, errors.New("not a public RSA or EC key")
	}
	if jwk.Algorithm != "" && jwk.Algorithm != string(k.algorithm) {
		return nil, fmt.Errorf("alg is %s, but such a key is only used with %s", quote(jwk.Algorithm), k.algorithm)
	}
	return k, nil
}

// verify reports whether the signature is valid for this key and the signed part of a token (RFC
// 7518, sections 3.3 and 3.4).
//
// It calls the standard library itself. The token is already decoded, and go-jose would decode
// header and payload again, for a third of the cost of the verification. Tests compare every
// accepted token with go-jose.
func (k *key) verify(signed string, signature []byte) bool {
	var buffer [usualTokenBytes]byte
	message := append(buffer[:0], signed...)
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		digest := sha256.Sum256(message)
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature) == nil
	case *ecdsa.PublicKey:
		var digest []byte
		switch k.algorithm {
		case jose.ES256:
			d := sha256.Sum256(message)
			digest = d[:]
		case jose.ES384:
			d := sha512.Sum384(message)
			digest = d[:]
		case jose.ES512:
			d := sha512.Sum512(message)
			digest = d[:]
		}
		// Each of the two numbers has a fixed length. Any other form would be a second valid
		// signature.
		half := (public.Params().BitSize + 7) / 8
		if len(signature) != 2*half {
			return false
		}
		r, s := new(big.Int).SetBytes(signature[:half]), new(big.Int).SetBytes(signature[half:])
		return ecdsa.Verify(public, digest, r, s) // refuses zeros
	}
	return false
}
