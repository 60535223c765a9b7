package oidc

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Mistake: a parser works before a limit does. The token is genuine but for its
// size.
func TestSizeLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	sized := func(n int) string {
		return keys().rsa.sign(t, payload(t, "kubelet", `"iss":`, `"x":"`+strings.Repeat("x", n)+`","iss":`))
	}
	base := len(sized(0))
	longest := sized((MaxTokenBytes - base) / 4 * 3)
	if len(longest) > MaxTokenBytes || len(longest) < MaxTokenBytes-4 {
		t.Fatalf("the longest token has %d bytes", len(longest))
	}
	accept(t, f.Verifier, longest)
	refuse(t, f.Verifier, sized((MaxTokenBytes-base)/4*3+6), refusal.TokenMalformed, "the token is longer than 16 KiB")
	if _, err := f.VerifyThen(t.Context(), presented(sized((MaxTokenBytes-base)/4*3+6)), issuedAt.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "longer than 16 KiB") {
		t.Errorf("VerifyThen: %v", err)
	}
	refuse(t, f.Verifier, strings.Repeat(".", 1<<20), refusal.TokenMalformed, "the token is longer than 16 KiB")
}

func TestHeadersThatAreAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, header := range []string{`{"alg":"RS256","kid":"rsa"}`, `{"alg":"RS256","kid":"rsa","typ":"JWT"}`, `{"typ":"jwt","alg":"RS256","kid":"rsa"}`, ` { "alg" : "RS256", "kid" : "rs\u0061" } `} {
		accept(t, f.Verifier, keys().rsa.signHeader(t, header, payload(t, "kubelet")))
	}
}

// A token of another program than go-jose's signer: the test issuer of go-oidc.
func TestTokenOfGoOIDC(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := oidctest.SignIDToken(keys().rsa.private, "rsa", "RS256", payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
}

// verify must not lean on its caller for the match of key and algorithm.
func TestKeyVerifiesOnlyItsOwnAlgorithm(t *testing.T) {
	t.Parallel()
	k := &key{id: "rsa", algorithm: jose.RS256, public: keys().rsa.private.Public().(*rsa.PublicKey)}
	signed := "a.b"
	digest := sha256.Sum256([]byte(signed))
	pss := testkit.Value(rsa.SignPSS(rand.Reader, keys().rsa.private.(*rsa.PrivateKey), crypto.SHA256, digest[:], nil))(t)
	pkcs1 := testkit.Value(keys().rsa.private.Sign(rand.Reader, digest[:], crypto.SHA256))(t)
	if k.verify(signed, pss) {
		t.Error("a PSS signature is accepted for RS256")
	}
	if !k.verify(signed, pkcs1) || k.verify(signed+"c", pkcs1) {
		t.Error("RS256 does not work")
	}
}
