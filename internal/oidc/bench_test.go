package oidc

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkVerify compares the cost of a verification with its necessary parts. "rsa" is the RSA
// verification alone. "floor" adds one decoding of the claims. Read "first" and "remembered" as
// ratios to "floor".
func BenchmarkVerify(b *testing.B) {
	f := newFixture(b, nil)
	raw := keys().rsa.sign(b, payload(b, "kubelet"))
	signed, signaturePart := raw[:strings.LastIndexByte(raw, '.')], raw[strings.LastIndexByte(raw, '.')+1:]
	signature, err := base64.RawURLEncoding.DecodeString(signaturePart)
	testkit.Must(b, err)
	public := keys().rsa.private.Public().(*rsa.PublicKey)
	verify := func(b *testing.B) {
		digest := sha256.Sum256([]byte(signed))
		testkit.Must(b, rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature))
	}
	b.Run("rsa", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			verify(b)
		}
	})
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		_, claimsPart, _ := strings.Cut(signed, ".")
		for b.Loop() {
			verify(b)
			decoded, err := base64.RawURLEncoding.DecodeString(claimsPart)
			testkit.Must(b, err)
			var c plainClaims
			testkit.Must(b, json.Unmarshal(decoded, &c))
		}
	})
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		f := newFixture(b, func(c *Config) { c.CacheBytes = 1 }) // it remembers nothing
		for b.Loop() {
			if _, err := f.Verify(b.Context(), presented(raw)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		accept(b, f.Verifier, raw)
		for b.Loop() {
			if _, err := f.Verify(b.Context(), presented(raw)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("forged", func(b *testing.B) { // unknown kid, the fetch is throttled
		b.ReportAllocs()
		token := encode(`{"alg":"RS256","kid":"forged"}`) + raw[strings.IndexByte(raw, '.'):]
		for b.Loop() {
			if _, err := f.Verify(b.Context(), presented(token)); err == nil {
				b.Fatal("accepted")
			}
		}
	})
}

// plainClaims is what a program would decode that checks nothing.
type plainClaims struct {
	Issuer     string   `json:"iss"`
	Subject    string   `json:"sub"`
	Audience   []string `json:"aud"`
	Expiry     int64    `json:"exp"`
	IssuedAt   int64    `json:"iat"`
	NotBefore  int64    `json:"nbf"`
	TokenID    string   `json:"jti"`
	Kubernetes struct {
		Namespace      string     `json:"namespace"`
		ServiceAccount ObjectRef  `json:"serviceaccount"`
		Pod            *ObjectRef `json:"pod"`
		Node           *ObjectRef `json:"node"`
	} `json:"kubernetes.io"`
}
