package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
	"github.com/pullpass/pullpass/internal/test/tokentest"
)

const (
	issuerURL = "https://issuer.example"
	audience1 = "registry.example.com"
)

// The tokens in testdata were issued at this time and live one hour.
var issuedAt = time.Unix(1795230411, 0)

// keyPair is the signing key of a fake API server.
type keyPair struct {
	id        string
	algorithm jose.SignatureAlgorithm
	private   crypto.Signer
}

type keyPairs struct{ rsa, rsa2, rsaSmall, ec256, ec384, ec521 keyPair }

// keys are made once: RSA keys take long.
var keys = sync.OnceValue(func() keyPairs {
	return keyPairs{
		rsa:      rsaPair("rsa", 2048),
		rsa2:     rsaPair("rsa2", 2048),
		rsaSmall: rsaPair("small", 1024),
		ec256:    ecPair("ec256", jose.ES256, elliptic.P256()),
		ec384:    ecPair("ec384", jose.ES384, elliptic.P384()),
		ec521:    ecPair("ec521", jose.ES512, elliptic.P521()),
	}
})

func rsaPair(id string, bits int) keyPair {
	var private *rsa.PrivateKey
	var err error
	fips140.WithoutEnforcement(func() { private, err = rsa.GenerateKey(rand.Reader, bits) })
	if err != nil {
		panic(err)
	}
	return keyPair{id, jose.RS256, private}
}

func ecPair(id string, algorithm jose.SignatureAlgorithm, curve elliptic.Curve) keyPair {
	private, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		panic(err)
	}
	return keyPair{id, algorithm, private}
}

func (k keyPair) jwk() jose.JSONWebKey {
	return jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Algorithm: string(k.algorithm), Use: "sig"}
}

// sign makes a token as an API server does: the header holds alg and kid.
func (k keyPair) sign(tb testing.TB, payload string) string {
	tb.Helper()
	signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: k.algorithm, Key: jose.JSONWebKey{Key: k.private, KeyID: k.id}}, nil))(tb)
	signed := testkit.Value(signer.Sign([]byte(payload)))(tb)
	raw := testkit.Value(signed.CompactSerialize())(tb)
	testkit.Note(tb, "token", raw)
	return raw
}

// signHeader makes a token with any header and a genuine RS256 signature, so
// that only the check under test can refuse it.
func (k keyPair) signHeader(tb testing.TB, header, payload string) string {
	tb.Helper()
	return k.signParts(tb, encode(header), encode(payload))
}

// signParts signs parts as they are, whatever their encoding.
func (k keyPair) signParts(tb testing.TB, header, payload string) string {
	tb.Helper()
	signed := header + "." + payload
	digest := sha256.Sum256([]byte(signed))
	signature := testkit.Value(k.private.Sign(rand.Reader, digest[:], crypto.SHA256))(tb)
	return signed + "." + encode(string(signature))
}

func encode(s string) string { return tokentest.Encode(s) }

func keySetJSON(tb testing.TB, pairs ...keyPair) []byte {
	tb.Helper()
	var set jose.JSONWebKeySet
	for _, k := range pairs {
		set.Keys = append(set.Keys, k.jwk())
	}
	data := testkit.Value(json.Marshal(set))(tb)
	return data
}

// payload returns the claims of testdata/tokens/KIND.json in compact JSON. Each
// pair of edits replaces a text in it by another.
func payload(tb testing.TB, kind string, edits ...string) string {
	tb.Helper()
	return tokentest.Payload(tb, "testdata", kind, edits...)
}

// presented returns a token as a caller presents it.
func presented(raw string) Credential { return &credential{raw, sha256.Sum256([]byte(raw))} }

type credential struct {
	raw  string
	hash [sha256.Size]byte
}

func (c *credential) Reveal() string { return c.raw }

func (c *credential) Hash() [sha256.Size]byte { return c.hash }

// fixture is a Verifier for one cluster whose keys are in a file.
type fixture struct {
	*Verifier
	clock *testkit.Clock
	file  string
	log   *testkit.Buffer
}

// newFixture makes a Verifier one minute after the tokens in testdata were issued.
func newFixture(tb testing.TB, edit func(*Config)) *fixture {
	tb.Helper()
	f := &fixture{
		clock: testkit.NewClock(issuedAt.Add(time.Minute)),
		file:  filepath.Join(tb.TempDir(), "jwks.json"),
		log:   &testkit.Buffer{},
	}
	k := keys()
	f.publish(tb, k.rsa, k.ec256, k.ec384, k.ec521)
	config := Config{
		Issuers: []Issuer{validIssuer(f.file)},
		Now:     f.clock.Now,
		Logger:  slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if edit != nil {
		edit(&config)
	}
	v := testkit.Value(New(config))(tb)
	f.Verifier = v
	return f
}

func validIssuer(file string) Issuer {
	return Issuer{
		Cluster:     "prod-eu",
		URL:         issuerURL,
		Audiences:   []string{audience1},
		Bound:       BoundPod,
		MaxLifetime: 24 * time.Hour,
		MaxKeyAge:   24 * time.Hour,
		Discovery:   Discovery{JWKSFile: file},
	}
}

func (f *fixture) publish(tb testing.TB, pairs ...keyPair) {
	tb.Helper()
	testkit.Put(tb, f.file, keySetJSON(tb, pairs...))
}

// accept verifies the token and holds it against go-jose: what is accepted here
// must be a good signature there as well.
func accept(tb testing.TB, v *Verifier, raw string) Identity {
	tb.Helper()
	id, err := v.Verify(tb.Context(), presented(raw))
	if err != nil {
		tb.Fatalf("Verify: %v", err)
	}
	parsed, err := jose.ParseSignedCompact(raw, algorithms[:])
	if err != nil {
		tb.Fatalf("go-jose refuses what was accepted: %v", err)
	}
	keyID := parsed.Signatures[0].Header.KeyID
	if _, err := parsed.Verify(v.byURL[id.Issuer].keys.current.Load().find(keyID).public); err != nil {
		tb.Fatalf("go-jose refuses what was accepted: %v", err)
	}
	return id
}

// refuse verifies the token and expects this refusal, with this text in its
// message.
func refuse(tb testing.TB, v *Verifier, raw string, reason refusal.Reason, text string) *Error {
	tb.Helper()
	return refuseContext(tb, tb.Context(), v, raw, reason, text)
}

func refuseContext(tb testing.TB, ctx context.Context, v *Verifier, raw string, reason refusal.Reason, text string) *Error {
	tb.Helper()
	id, err := v.Verify(ctx, presented(raw))
	failure, ok := errors.AsType[*Error](err)
	if !ok {
		tb.Fatalf("Verify: identity %+v, error %v, want %s", id, err, reason)
	}
	if failure.Reason != reason || !strings.Contains(failure.Message, text) {
		tb.Fatalf("Verify: %s: %v; want %s with %q", failure.Reason, err, reason, text)
	}
	if id != (Identity{}) {
		tb.Errorf("a refused token has the identity %+v", id)
	}
	kind := ErrInvalidToken
	if reason == refusal.IssuerUnavailable {
		kind = ErrUnavailable
	}
	if !errors.Is(err, kind) {
		tb.Errorf("%v is not %q", err, kind)
	}
	return failure
}
