package tokentest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // for crypto.Hash
	_ "crypto/sha512"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Algorithm returns the algorithm of RFC 7518 that the product uses with the key.
func Algorithm(private crypto.Signer) string {
	switch public := private.Public().(type) {
	case *ecdsa.PublicKey:
		return map[elliptic.Curve]string{elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512"}[public.Curve]
	case ed25519.PublicKey:
		return "EdDSA"
	}
	return "RS256"
}

// Sign signs with any key and algorithm. A key of another type than the algorithm's signs in its
// own way, with the hash of the algorithm. HMAC takes the secret.
func Sign(algorithm string, private crypto.Signer, secret []byte, signed string) []byte {
	hash := crypto.SHA256
	switch {
	case strings.HasSuffix(algorithm, "384"):
		hash = crypto.SHA384
	case strings.HasSuffix(algorithm, "512"):
		hash = crypto.SHA512
	}
	if strings.HasPrefix(algorithm, "HS") {
		var sum []byte
		fips140.WithoutEnforcement(func() { // attackers are not bound to it
			mac := hmac.New(hash.New, secret)
			mac.Write([]byte(signed))
			sum = mac.Sum(nil)
		})
		return sum
	}
	h := hash.New()
	h.Write([]byte(signed))
	digest := h.Sum(nil)
	var signature []byte
	var err error
	switch key := private.(type) {
	case ed25519.PrivateKey:
		return ed25519.Sign(key, []byte(signed))
	case *ecdsa.PrivateKey:
		r, s := numbers(key, digest)
		return slices.Concat(fixed(key, r), fixed(key, s))
	case *rsa.PrivateKey:
		if strings.HasPrefix(algorithm, "PS") {
			signature, err = rsa.SignPSS(rand.Reader, key, hash, digest, nil)
		} else {
			signature, err = rsa.SignPKCS1v15(nil, key, hash, digest)
		}
	}
	if err != nil {
		panic(err)
	}
	return signature
}

// Secrets returns forms of a public key that a confused verifier takes for the secret of HMAC.
func Secrets(public crypto.PublicKey, kid string) map[string][]byte {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		panic(err)
	}
	jwk, err := jose.JSONWebKey{Key: public, KeyID: kid}.MarshalJSON()
	if err != nil {
		panic(err)
	}
	all := map[string][]byte{
		"der": der, "pem": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "jwk": jwk, "kid": []byte(kid), "empty": nil, "zero": {0},
	}
	switch key := public.(type) {
	case *rsa.PublicKey:
		all["pkcs1"], all["number"] = x509.MarshalPKCS1PublicKey(key), key.N.Bytes()
	case *ecdsa.PublicKey:
		point, err := key.Bytes()
		if err != nil {
			panic(err)
		}
		all["number"] = point[1 : 1+len(point)/2]
	case ed25519.PublicKey:
		all["number"] = key
	}
	return all
}

// signature makes the signature that a method describes: "" is genuine, ALGORITHM is that of the
// key and algorithm, and HSn FORM is an HMAC whose secret is a form of the public key.
func (m maker) signature(method string, private crypto.Signer, signed string) []byte {
	m.tb.Helper()
	name, argument, _ := strings.Cut(method, " ")
	genuine := Sign(Algorithm(private), private, nil, signed)
	switch name {
	case "":
		return genuine
	case "none":
		return nil
	case "zeros":
		n, err := strconv.Atoi(argument)
		testkit.Must(m.tb, err)
		return make([]byte, n)
	case "cut":
		return genuine[:len(genuine)-1]
	case "longer":
		return append(genuine, 0)
	case "zero-before":
		return slices.Concat([]byte{0}, genuine)
	case "of": // another token
		return Sign(Algorithm(private), private, nil, Encode(argument))
	}
	if strings.HasPrefix(name, "HS") {
		secret, ok := Secrets(private.Public(), "rsa")[argument]
		if !ok {
			m.tb.Fatalf("%q is not a form of a key", argument)
		}
		return Sign(name, private, secret, signed)
	}
	if key, ok := private.(*ecdsa.PrivateKey); ok {
		return m.ecSignature(name, key, genuine)
	}
	return Sign(name, private, nil, signed)
}

// ecSignature changes the form or the numbers of a signature.
func (m maker) ecSignature(name string, key *ecdsa.PrivateKey, genuine []byte) []byte {
	half := len(genuine) / 2
	r, s := new(big.Int).SetBytes(genuine[:half]), new(big.Int).SetBytes(genuine[half:])
	order := key.Params().N
	switch name {
	case "der":
		der, err := asn1.Marshal(struct{ R, S *big.Int }{r, s})
		testkit.Must(m.tb, err)
		return der
	case "swapped":
		return slices.Concat(genuine[half:], genuine[:half])
	case "order":
		return slices.Concat(fixed(key, order), fixed(key, order))
	case "zero-r":
		return slices.Concat(make([]byte, half), genuine[half:])
	case "zero-s":
		return slices.Concat(genuine[:half], make([]byte, half))
	case "one": // r = s = 1
		one := fixed(key, big.NewInt(1))
		return slices.Concat(one, one)
	case "beyond": // r + n is congruent to r
		return slices.Concat(new(big.Int).Add(r, order).FillBytes(make([]byte, half+1)), genuine[half:])
	case "zero-before-s":
		return slices.Concat(genuine[:half], []byte{0}, genuine[half:])
	case "zeros-before":
		return slices.Concat([]byte{0}, genuine[:half], []byte{0}, genuine[half:])
	}
	m.tb.Fatalf("%q is not a way to sign", name)
	return nil
}

func numbers(key *ecdsa.PrivateKey, digest []byte) (r, s *big.Int) {
	r, s, err := ecdsa.Sign(rand.Reader, key, digest)
	if err != nil {
		panic(err)
	}
	return r, s
}

func fixed(key *ecdsa.PrivateKey, n *big.Int) []byte {
	return n.FillBytes(make([]byte, (key.Params().BitSize+7)/8))
}
