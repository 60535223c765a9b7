package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	notAToken   = "the credential is not a token"
	notBase64   = "is not base64url"
	notAccepted = "is not accepted; issuers sign with RS256, ES256, ES384 or ES512"
	wrongSig    = "the token's signature is wrong"
)

func TestForm(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	header, rest, _ := strings.Cut(raw, ".")
	body, signature, _ := strings.Cut(rest, ".")
	for _, test := range []struct{ name, raw, text string }{
		{"empty", "", notAToken},
		{"password", "hunter2", notAToken},
		{"one part", header, notAToken},
		{"two parts", header + "." + body, notAToken},
		{"four parts", raw + "." + signature, notAToken},
		{"five parts, like an encrypted token", raw + "..", notAToken},
		{"dot at the end", raw + ".", notAToken},
		{"JSON serialization", `{"protected":"` + header + `","payload":"` + body + `","signature":"` + signature + `"}`, notAToken},
		{"padding", header + "." + body + "." + signature + "==", notAToken},
		{"line break at the end", raw + "\n", notAToken},
		{"line break in the header", header[:9] + "\n" + header[9:] + "." + rest, notAToken},
		{"carriage return in the signature", raw[:len(raw)-9] + "\r" + raw[len(raw)-9:], notAToken},
		{"space before", " " + raw, notAToken},
		{"NUL after", raw + "\x00", notAToken},
		{"standard alphabet", strings.ReplaceAll(strings.ReplaceAll(raw, "-", "+"), "_", "/") + "+", notAToken},
		{"not ASCII", "é" + raw, notAToken},
		{"scheme before", "Bearer " + raw, notAToken},
		{"one letter cut", raw[:len(raw)-1], "the token's signature " + notBase64},
		{"no header", "." + rest, "the token's header is not a JSON object"},
		{"no payload", header + ".." + signature, "the token's payload is not a JSON object"},
		{"one letter as header", "e." + rest, "the token's header " + notBase64},
		{"one letter as payload", header + ".e." + signature, "the token's payload " + notBase64},
		{"one letter as signature", header + "." + body + ".e", "the token's signature " + notBase64},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuse(t, f.Verifier, test.raw, refusal.TokenMalformed, test.text)
		})
	}
}

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

// Mistake: two encodings of the same bytes are two tokens, so lists of hashes (revocation, replay,
// caches) can be bypassed. By default, Go's decoder ignores the leftover bits at the end of a part.
// The signature covers the odd encoding, so only the decoder can refuse it.
func TestBitsLeftOverInBase64AreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	header := `{"alg":"RS256","kid":"rsa"}`
	for len(header)%3 == 0 {
		header += " "
	}
	body := payload(t, "kubelet")
	for len(body)%3 == 0 {
		body += " "
	}
	accept(t, f.Verifier, keys().rsa.signHeader(t, header, body))
	refuse(t, f.Verifier, keys().rsa.signParts(t, nextLetter(encode(header)), encode(body)), refusal.TokenMalformed, "the token's header "+notBase64)
	refuse(t, f.Verifier, keys().rsa.signParts(t, encode(header), nextLetter(encode(body))), refusal.TokenMalformed, "the token's payload "+notBase64)
	// 256 bytes of signature leave 4 bits over.
	refuse(t, f.Verifier, nextLetter(keys().rsa.signHeader(t, header, body)), refusal.TokenMalformed, "the token's signature "+notBase64)
}

// nextLetter sets the lowest bit of the last letter.
func nextLetter(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return s[:len(s)-1] + string(alphabet[strings.IndexByte(alphabet, s[len(s)-1])|1])
}

// Each header is signed with the published key: go-jose and the signature would
// accept most of them.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	body := payload(t, "kubelet")
	k := keys().rsa
	jwk, err := keys().rsa2.jwk().MarshalJSON()
	testkit.Must(t, err)
	const (
		only   = "; only alg, kid and typ are accepted"
		object = "the token's header is not a JSON object with distinct members"
	)
	for _, test := range []struct {
		name, header string
		reason       refusal.Reason
		text         string
	}{
		{"as API servers send it", `{"alg":"RS256","kid":"rsa"}`, "", ""},
		{"typ JWT", `{"alg":"RS256","kid":"rsa","typ":"JWT"}`, "", ""},
		{"typ jwt", `{"typ":"jwt","alg":"RS256","kid":"rsa"}`, "", ""},
		{"typ of another kind of token", `{"alg":"RS256","kid":"rsa","typ":"at+jwt"}`, refusal.TokenHeader, "typ other than JWT"},
		{"typ empty", `{"alg":"RS256","kid":"rsa","typ":""}`, refusal.TokenHeader, "typ other than JWT"},
		{"typ null", `{"alg":"RS256","kid":"rsa","typ":null}`, refusal.TokenHeader, "typ other than JWT"},
		{"kid missing", `{"alg":"RS256"}`, refusal.TokenHeader, "needs a kid"},
		{"kid empty", `{"alg":"RS256","kid":""}`, refusal.TokenHeader, "needs a kid"},
		{"kid a number", `{"alg":"RS256","kid":1}`, refusal.TokenHeader, "needs a kid"},
		{"kid too long", `{"alg":"RS256","kid":"` + strings.Repeat("k", 257) + `"}`, refusal.TokenHeader, "needs a kid"},
		{"KID", `{"alg":"RS256","KID":"rsa"}`, refusal.TokenHeader, `has "KID"` + only},
		{"kid with NUL", `{"alg":"RS256","kid":"rsa\u0000"}`, refusal.TokenUnknownKey, `"rsa\x00"`},
		{"kid as a path", `{"alg":"RS256","kid":"../rsa"}`, refusal.TokenUnknownKey, ""},
		{"alg missing", `{"kid":"rsa"}`, refusal.TokenAlgorithm, notAccepted},
		{"alg a list", `{"alg":["RS256"],"kid":"rsa"}`, refusal.TokenAlgorithm, notAccepted},
		{"alg in lower case", `{"alg":"rs256","kid":"rsa"}`, refusal.TokenAlgorithm, `"rs256" ` + notAccepted},
		{"ALG", `{"ALG":"RS256","kid":"rsa"}`, refusal.TokenAlgorithm, notAccepted},
		{"alg none", `{"alg":"none","kid":"rsa"}`, refusal.TokenAlgorithm, `"none" ` + notAccepted},
		{"alg nOnE", `{"alg":"nOnE","kid":"rsa"}`, refusal.TokenAlgorithm, notAccepted},
		{"alg HS256", `{"alg":"HS256","kid":"rsa"}`, refusal.TokenAlgorithm, notAccepted},
		{"alg of another key type", `{"alg":"ES256","kid":"rsa"}`, refusal.TokenAlgorithm, "the token's algorithm is ES256, but its key is for RS256"},
		{"alg twice", `{"alg":"none","alg":"RS256","kid":"rsa"}`, refusal.TokenMalformed, object},
		{"kid twice", `{"alg":"RS256","kid":"rsa","kid":"rsa"}`, refusal.TokenMalformed, object},
		{"kid twice, once escaped", `{"alg":"RS256","kid":"rsa","\u006bid":"rsa"}`, refusal.TokenMalformed, object},
		{"crit", `{"alg":"RS256","kid":"rsa","crit":["exp"],"exp":1}`, refusal.TokenHeader, only},
		{"crit empty", `{"alg":"RS256","kid":"rsa","crit":[]}`, refusal.TokenHeader, `has "crit"` + only},
		{"crit null", `{"alg":"RS256","kid":"rsa","crit":null}`, refusal.TokenHeader, `has "crit"` + only},
		{"b64 false", `{"alg":"RS256","kid":"rsa","b64":false}`, refusal.TokenHeader, `has "b64"` + only},
		{"b64 true", `{"alg":"RS256","kid":"rsa","b64":true}`, refusal.TokenHeader, `has "b64"` + only},
		{"jku", `{"alg":"RS256","kid":"rsa","jku":"https://evil.example/keys"}`, refusal.TokenHeader, `has "jku"` + only},
		{"jwk", `{"alg":"RS256","kid":"rsa","jwk":` + string(jwk) + `}`, refusal.TokenHeader, `has "jwk"` + only},
		{"x5u", `{"alg":"RS256","kid":"rsa","x5u":"https://evil.example/cert"}`, refusal.TokenHeader, `has "x5u"` + only},
		{"x5c", `{"alg":"RS256","kid":"rsa","x5c":["MIIB"]}`, refusal.TokenHeader, `has "x5c"` + only},
		{"x5t", `{"alg":"RS256","kid":"rsa","x5t":"AAAA"}`, refusal.TokenHeader, `has "x5t"` + only},
		{"cty", `{"alg":"RS256","kid":"rsa","cty":"JWT"}`, refusal.TokenHeader, `has "cty"` + only},
		{"zip", `{"alg":"RS256","kid":"rsa","zip":"DEF"}`, refusal.TokenHeader, `has "zip"` + only},
		{"claims in the header", `{"alg":"RS256","kid":"rsa","iss":"https://issuer.example"}`, refusal.TokenHeader, `has "iss"` + only},
		{"null", `null`, refusal.TokenAlgorithm, notAccepted},
		{"list", `[]`, refusal.TokenMalformed, object},
		{"trailing text", `{"alg":"RS256","kid":"rsa"}x`, refusal.TokenMalformed, object},
		{"not UTF-8", "{\"alg\":\"RS256\",\"kid\":\"rsa\xff\"}", refusal.TokenMalformed, "not UTF-8"},
		{"too long", `{"alg":"RS256","kid":"rsa"` + strings.Repeat(" ", 1000) + `}`, refusal.TokenMalformed, "header is longer than 1 KiB"},
		{"deep", `{"alg":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`, refusal.TokenAlgorithm, notAccepted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			raw := k.signHeader(t, test.header, body)
			if test.reason == "" {
				accept(t, f.Verifier, raw)
			} else {
				refuse(t, f.Verifier, raw, test.reason, test.text)
			}
		})
	}
}

// Mistake: algorithm confusion. Each token is one that some verifier accepted.
func TestSignatures(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	k := keys()
	body := payload(t, "kubelet")
	signed := func(algorithm, kid string) string {
		return encode(fmt.Sprintf(`{"alg":%q,"kid":%q}`, algorithm, kid)) + "." + encode(body)
	}
	with := func(signed string, signature []byte) string { return signed + "." + encode(string(signature)) }
	genuine := k.rsa.sign(t, body)
	rsaSignature, err := base64.RawURLEncoding.DecodeString(genuine[strings.LastIndexByte(genuine, '.')+1:])
	testkit.Must(t, err)

	der, err := x509.MarshalPKIXPublicKey(k.rsa.private.Public())
	testkit.Must(t, err)
	hmacWith := func(secret []byte) string {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed("HS256", "rsa")))
		return with(signed("HS256", "rsa"), mac.Sum(nil))
	}
	otherAlgorithm := func(algorithm jose.SignatureAlgorithm) string {
		return keyPair{"rsa", algorithm, k.rsa.private}.sign(t, body)
	}
	forged := func(id string, by keyPair) string {
		by.id = id
		return by.sign(t, body)
	}

	ecSigned := signed("ES256", "ec256")
	digest := sha256.Sum256([]byte(ecSigned))
	ecPrivate := k.ec256.private.(*ecdsa.PrivateKey)
	asn1, err := ecdsa.SignASN1(rand.Reader, ecPrivate, digest[:])
	testkit.Must(t, err)
	r, s, err := ecdsa.Sign(rand.Reader, ecPrivate, digest[:])
	testkit.Must(t, err)
	good := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	accept(t, f.Verifier, with(ecSigned, good))
	order := ecPrivate.Params().N.FillBytes(make([]byte, 32))
	larger := new(big.Int).Add(r, ecPrivate.Params().N)

	for _, test := range []struct {
		name, raw string
		reason    refusal.Reason
		text      string
	}{
		{"none without signature", signed("none", "rsa") + ".", refusal.TokenAlgorithm, notAccepted},
		{"none with a signature", with(signed("none", "rsa"), rsaSignature), refusal.TokenAlgorithm, notAccepted},
		{"HS256 with the public key as DER", hmacWith(der), refusal.TokenAlgorithm, notAccepted},
		{"HS256 with the public key as PEM", hmacWith(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), refusal.TokenAlgorithm, notAccepted},
		{"HS256 with an empty key", hmacWith(nil), refusal.TokenAlgorithm, notAccepted},
		{"PS256 with the published key", otherAlgorithm(jose.PS256), refusal.TokenAlgorithm, notAccepted},
		{"RS512 with the published key", otherAlgorithm(jose.RS512), refusal.TokenAlgorithm, notAccepted},
		{"no signature", signed("RS256", "rsa") + ".", refusal.TokenSignature, wrongSig},
		{"signature of another token", with(encode(`{"alg":"RS256","kid":"rsa"}`)+"."+encode(payload(t, "pod-unscheduled")), rsaSignature), refusal.TokenSignature, wrongSig},
		{"another key under the same kid", forged("rsa", k.rsa2), refusal.TokenSignature, wrongSig},
		{"another curve under the same kid", forged("ec256", k.ec384), refusal.TokenAlgorithm, "the token's algorithm is ES384, but its key is for ES256"},
		{"EC key under the kid of an RSA key", forged("rsa", k.ec256), refusal.TokenAlgorithm, "the token's algorithm is ES256, but its key is for RS256"},
		{"RSA key under the kid of an EC key", forged("ec256", k.rsa), refusal.TokenAlgorithm, "the token's algorithm is RS256, but its key is for ES256"},
		{"unknown kid", k.rsa2.sign(t, body), refusal.TokenUnknownKey, `the token's key "rsa2" is not one that issuer "https://issuer.example" publishes`},
		{"RSA signature of zeros", with(signed("RS256", "rsa"), make([]byte, 256)), refusal.TokenSignature, wrongSig},
		{"RSA signature cut", with(signed("RS256", "rsa"), rsaSignature[:255]), refusal.TokenSignature, wrongSig},
		{"RSA signature with a zero before", with(signed("RS256", "rsa"), slices.Concat([]byte{0}, rsaSignature)), refusal.TokenSignature, wrongSig},
		{"ECDSA signature of zeros (CVE-2022-21449)", with(ecSigned, make([]byte, 64)), refusal.TokenSignature, wrongSig},
		{"ECDSA numbers equal to the order", with(ecSigned, slices.Concat(order, order)), refusal.TokenSignature, wrongSig},
		{"ECDSA number beyond the order", with(ecSigned, slices.Concat(larger.FillBytes(make([]byte, 33)), good[32:])), refusal.TokenSignature, wrongSig},
		{"ECDSA signature in DER", with(ecSigned, asn1), refusal.TokenSignature, wrongSig},
		{"ECDSA signature cut", with(ecSigned, good[:63]), refusal.TokenSignature, wrongSig},
		{"ECDSA numbers with zeros before", with(ecSigned, slices.Concat([]byte{0}, good[:32], []byte{0}, good[32:])), refusal.TokenSignature, wrongSig},
		{"ECDSA signature with more behind", with(ecSigned, slices.Concat(good, []byte{0})), refusal.TokenSignature, wrongSig},
		{"ECDSA numbers swapped", with(ecSigned, slices.Concat(good[32:], good[:32])), refusal.TokenSignature, wrongSig},
		{"no ECDSA signature", ecSigned + ".", refusal.TokenSignature, wrongSig},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuse(t, f.Verifier, test.raw, test.reason, test.text)
		})
	}
}

// Each single changed byte of each part is refused, whatever the reason.
func TestTamperedTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	for n := range len(raw) {
		changed := []byte(raw)
		changed[n]++
		if id, err := f.Verify(t.Context(), presented(string(changed))); err == nil {
			t.Errorf("byte %d changed: accepted as %+v", n, id)
		}
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
	pss, err := rsa.SignPSS(rand.Reader, keys().rsa.private.(*rsa.PrivateKey), crypto.SHA256, digest[:], nil)
	testkit.Must(t, err)
	pkcs1, err := keys().rsa.private.Sign(rand.Reader, digest[:], crypto.SHA256)
	testkit.Must(t, err)
	if k.verify(signed, pss) {
		t.Error("a PSS signature is accepted for RS256")
	}
	if !k.verify(signed, pkcs1) || k.verify(signed+"c", pkcs1) {
		t.Error("RS256 does not work")
	}
}
