package registryauth

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func BenchmarkIssue(b *testing.B) {
	grant := Grant{Subject: testSubject, Access: []Scope{{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}}}
	for _, algorithm := range issuingAlgorithms {
		keys := newTestKeys(b, algorithm, signing.TrustCertificate)
		b.Run(string(algorithm)+"/floor", func(b *testing.B) {
			benchmarkFloor(b, keys.signer)
		})
		b.Run(string(algorithm)+"/certificate", func(b *testing.B) {
			benchmarkIssue(b, newTestIssuer(b, keys, nil), grant)
		})
		b.Run(string(algorithm)+"/jwks", func(b *testing.B) {
			benchmarkIssue(b, newTestIssuer(b, newTestKeys(b, algorithm, signing.TrustJWKS), nil), grant)
		})
		b.Run(string(algorithm)+"/go-jose", func(b *testing.B) {
			benchmarkGoJose(b, keys, algorithm)
		})
	}
}

func benchmarkIssue(b *testing.B, issuer *Issuer, grant Grant) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := issuer.Issue(grant); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkClaims() claims {
	now := time.Now().Unix()
	return claims{
		ClaimSet: token.ClaimSet{Issuer: signingtest.Issuer, Subject: testSubject, Expiration: now + 300, NotBefore: now, IssuedAt: now, JWTID: rand.Text()},
		Audience: signingtest.Service,
		Access:   []token.ResourceActions{{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}},
	}
}

// benchmarkFloor is the least that any issuer does: JSON and a signature.
func benchmarkFloor(b *testing.B, signer crypto.Signer) {
	b.ReportAllocs()
	for b.Loop() {
		payload, err := json.Marshal(benchmarkClaims())
		testkit.Must(b, err)
		digest := sha256.Sum256(payload)
		message, hash := digest[:], crypto.SHA256
		if _, ok := signer.(ed25519.PrivateKey); ok {
			message, hash = payload, 0
		}
		if _, err := signer.Sign(rand.Reader, message, hash); err != nil {
			b.Fatal(err)
		}
	}
}

// benchmarkGoJose signs the same token with go-jose's signer, made once.
func benchmarkGoJose(b *testing.B, keys testKeys, algorithm signing.Algorithm) {
	key, err := keys.Signing()
	testkit.Must(b, err)
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", key.ID).
		WithHeader("x5c", []string{base64.StdEncoding.EncodeToString(keys.cert.Raw)})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: keys.signer}, options)
	testkit.Must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		payload, err := json.Marshal(benchmarkClaims())
		testkit.Must(b, err)
		signed, err := signer.Sign(payload)
		testkit.Must(b, err)
		if _, err := signed.CompactSerialize(); err != nil {
			b.Fatal(err)
		}
	}
}
