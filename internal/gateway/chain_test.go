package gateway

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// slowKey is a random modulus, with the exponent that costs most.
func slowKey(t *testing.T, size int) []byte {
	t.Helper()
	n := make([]byte, size)
	_, _ = rand.Read(n)
	n[0], n[size-1] = n[0]|0xc0, n[size-1]|1
	return testkit.Value(asn1.Marshal(struct {
		N *big.Int
		E int
	}{new(big.Int).SetBytes(n), 1<<31 - 1}))(t)
}

// unsigned returns a certificate of a key, with a random signature of the given size.
func unsigned(t *testing.T, issuer, subject string, key []byte, size int) []byte {
	t.Helper()
	name := func(cn string) asn1.RawValue {
		return asn1.RawValue{FullBytes: testkit.Value(asn1.Marshal(pkix.Name{CommonName: cn}.ToRDNSequence()))(t)}
	}
	algorithm := func(last int) pkix.AlgorithmIdentifier {
		return pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, last}, Parameters: asn1.NullRawValue}
	}
	type keyInfo struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	type body struct {
		Serial    *big.Int
		Algorithm pkix.AlgorithmIdentifier
		Issuer    asn1.RawValue
		Validity  struct{ From, To time.Time }
		Subject   asn1.RawValue
		Key       keyInfo
	}
	b := body{Serial: big.NewInt(1), Algorithm: algorithm(11), Issuer: name(issuer), Subject: name(subject), Key: keyInfo{algorithm(1), asn1.BitString{Bytes: key, BitLength: 8 * len(key)}}}
	b.Validity.From, b.Validity.To = time.Now().Add(-time.Hour).UTC(), time.Now().Add(time.Hour).UTC()
	signature := make([]byte, size)
	_, _ = rand.Read(signature[1:])
	return testkit.Value(asn1.Marshal(struct {
		Body      body
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{b, algorithm(11), asn1.BitString{Bytes: signature, BitLength: 8 * size}}))(t)
}

// A key that a client puts into the header is not used: one of these tokens took a second.
func TestKeysOfClientsCostNothing(t *testing.T) {
	t.Parallel()
	j := &judge{
		issuer: "i", service: "s", now: time.Now, judged: newJudged(), latest: &latestTrust{},
		keys: &changing{bundle: signing.TrustBundle{Certificates: []*x509.Certificate{pkitest.NewAuthority(t, "ca").Certificate}}},
	}
	leafKey := pkitest.RSAKey(t)
	chainOf := func(size, others int) (chain [][]byte, costs time.Duration) {
		der := unsigned(t, "middle", "leaf", x509.MarshalPKCS1PublicKey(&leafKey.PublicKey), size)
		leaf := testkit.Value(x509.ParseCertificate(der))(t)
		chain = [][]byte{der}
		for range others {
			der := unsigned(t, "ca", "middle", slowKey(t, size), 256)
			middle := testkit.Value(x509.ParseCertificate(der))(t)
			began := time.Now()
			if leaf.CheckSignatureFrom(middle) == nil {
				t.Fatal("the signature is good")
			}
			costs += time.Since(began)
			chain = append(chain, der)
		}
		return chain, costs
	}
	long, longCosts := chainOf(512, 50)
	huge, hugeCosts := chainOf(8000, 1)
	jwk := map[string]any{"kty": "RSA", "n": base64.RawURLEncoding.EncodeToString(leafKey.N.Bytes()), "e": "AQAB", "x5c": huge}
	for name, test := range map[string]struct {
		header map[string]any
		costs  time.Duration // of the verification
	}{
		"a long chain":            {map[string]any{"alg": "RS256", "x5c": long}, longCosts},
		"a huge key":              {map[string]any{"alg": "RS256", "x5c": huge}, hugeCosts},
		"a huge key in jwk":       {map[string]any{"alg": "RS256", "jwk": jwk}, hugeCosts},
		"a chain in another case": {map[string]any{"alg": "RS256", "X5C": [][]byte{}, "x5c": long}, longCosts},
	} {
		part := func(v any) string { return base64.RawURLEncoding.EncodeToString(testkit.Value(json.Marshal(v))(t)) }
		credential := registryauth.NewSecret(part(test.header) + "." + part(map[string]any{"iss": "i"}) + "." + part("signature"))
		began := time.Now()
		if _, err := j.verify(credential); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if took := time.Since(began); took > test.costs/2 {
			t.Errorf("%s: refused after %s; to verify it takes %s", name, took, test.costs)
		}
	}
}

// A chain vouches in any order, and with certificates that lead elsewhere, as long as trusted keys lead to its first.
func TestChains(t *testing.T) {
	t.Parallel()
	root, other := pkitest.NewAuthority(t, "root"), pkitest.NewAuthority(t, "other")
	upper := pkitest.NewCA(t, root.Cert, pkitest.CaNamed("upper"))
	lower := pkitest.NewCA(t, upper, pkitest.CaNamed("lower"))
	leaf := pkitest.NewCA(t, lower, pkitest.CaNamed("leaf"))
	j := &trust{certificates: []*x509.Certificate{root.Certificate}}
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  bool
	}{
		"leaf first":          {[]*x509.Certificate{leaf.Certificate, lower.Certificate, upper.Certificate}, true},
		"another order":       {[]*x509.Certificate{leaf.Certificate, upper.Certificate, lower.Certificate}, true},
		"one more":            {[]*x509.Certificate{leaf.Certificate, other.Certificate, lower.Certificate, upper.Certificate}, true},
		"the root alone":      {[]*x509.Certificate{root.Certificate}, true},
		"with a gap":          {[]*x509.Certificate{leaf.Certificate, upper.Certificate}, false},
		"of another root":     {[]*x509.Certificate{other.Certificate}, false},
		"the other one first": {[]*x509.Certificate{other.Certificate, leaf.Certificate, lower.Certificate, upper.Certificate}, false},
		"the same name only":  {[]*x509.Certificate{pkitest.NewAuthority(t, "root").Certificate}, false},
	} {
		if got := j.vouchesFor(test.chain); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
