package signing

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A private key in a published key set is the end of all trust in it.
func TestMarshalJWKSShowsNoPrivateKey(t *testing.T) {
	t.Parallel()
	published := map[string]bool{"kty": true, "kid": true, "use": true, "alg": true, "crv": true, "x": true, "y": true, "n": true, "e": true}
	for _, algorithm := range issuingAlgorithms {
		signer := newTestSigner(t, algorithm)
		key := testkit.Value(newSigningKey(algorithm, signer, nil, nil))(t)
		data := testkit.Value(MarshalJWKS(fixedKeys{trusted: keyTrust(key)}))(t)
		var set struct{ Keys []map[string]any }
		if err := json.Unmarshal(data, &set); err != nil || len(set.Keys) != 1 {
			t.Fatalf("%s, error %v", data, err)
		}
		for name := range set.Keys[0] {
			if !published[name] {
				t.Errorf("%s: the key set has the member %q", algorithm, name)
			}
		}
		private, public := jose.JSONWebKey{Key: signer, KeyID: "k"}, key.publicJWK()
		for name, bad := range map[string]jose.JSONWebKey{
			"private":   private,
			"symmetric": {Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "k"},
			"nothing":   {KeyID: "k"},
			"a pointer": {Key: &private, KeyID: "k"},
		} {
			keys := fixedKeys{trusted: TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public, bad}}}}
			data, err := MarshalJWKS(keys)
			if err == nil || !strings.Contains(err.Error(), "not a public key") || data != nil {
				t.Errorf("%s: %s key: got %q, error %v, want nothing and a refusal", algorithm, name, data, err)
			}
		}
	}
}

// An invalid key set is not published.
func TestMarshalJWKSOfAKeyThatCannotBeEncoded(t *testing.T) {
	t.Parallel()
	key := testkit.Value(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))(t)
	keys := fixedKeys{trusted: TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}}}}
	if data, err := MarshalJWKS(keys); err == nil || !strings.Contains(err.Error(), "key set: ") || data != nil {
		t.Errorf("%s, error %v", data, err)
	}
}

func TestMarshalJWKSWritesOnlyTheKey(t *testing.T) {
	t.Parallel()
	key := newFixedKeys(t, ES256, TrustCertificate).key
	jwk := key.publicJWK()
	// A registry would take a chain or a URL for another way to trust.
	jwk.CertificateThumbprintSHA256 = make([]byte, 32)
	data, err := MarshalJWKS(fixedKeys{trusted: TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{jwk}}}})
	if err != nil || bytes.Contains(data, []byte(`"x5`)) {
		t.Errorf("%s, error %v", data, err)
	}
}

func TestMarshalIsAUnionInAFixedOrder(t *testing.T) {
	t.Parallel()
	var keys []Keys
	for range 5 {
		keys = append(keys, newFixedKeys(t, ES256, TrustJWKS), newFixedKeys(t, ES256, TrustCertificate))
	}
	wantJWKS, err := MarshalJWKS(keys...)
	testkit.Must(t, err)
	wantPEM := MarshalCertificates(keys...)
	if n := bytes.Count(wantJWKS, []byte(`"kid"`)); n != 5 {
		t.Errorf("%d keys, want 5", n)
	}
	if n := bytes.Count(wantPEM, []byte("BEGIN CERTIFICATE")); n != 5 {
		t.Errorf("%d certificates, want 5", n)
	}
	again := slices.Concat(keys, keys)
	slices.Reverse(again)
	gotJWKS, err := MarshalJWKS(again...)
	if err != nil || !bytes.Equal(gotJWKS, wantJWKS) {
		t.Errorf("another order gives\n%s\nwant\n%s", gotJWKS, wantJWKS)
	}
	if got := MarshalCertificates(again...); !bytes.Equal(got, wantPEM) {
		t.Errorf("another order gives\n%s\nwant\n%s", got, wantPEM)
	}
}

func TestMarshalNothing(t *testing.T) {
	t.Parallel()
	data, err := MarshalJWKS()
	if err != nil || strings.Join(strings.Fields(string(data)), "") != `{"keys":[]}` {
		t.Errorf("%s, error %v, want an empty list, not null", data, err)
	}
	if data := MarshalCertificates(); len(data) != 0 {
		t.Errorf("%q, want nothing", data)
	}
}

// The kid is RFC 7638's, also for the keys of which distribution drops leading
// zero bytes. With a key set file, the kid in the file counts.
func TestKeyIDWithLeadingZeros(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		signer := testkit.Value(generateKey(ES256))(t)
		jwk := jose.JSONWebKey{Key: signer.Public()}
		sum := testkit.Value(jwk.Thumbprint(crypto.SHA256))(t)
		want := base64.RawURLEncoding.EncodeToString(sum)
		if token.GetJWKThumbprint(signer.Public()) == want {
			continue
		}
		key := testkit.Value(newSigningKey(ES256, signer, nil, nil))(t)
		if key.ID != want {
			t.Errorf("kid %s, want %s", key.ID, want)
		}
		keys := fixedKeys{key: key, trusted: keyTrust(key)}
		verifyAll(t, []string{testToken(t, keys)}, newRegistry(t, keys))
		return
	}
	t.Fatal("no key with a leading zero byte was made")
}

// RFC 8037 appendix A.3 gives this thumbprint.
func TestThumbprintVector(t *testing.T) {
	t.Parallel()
	x := testkit.Value(base64.RawURLEncoding.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"))(t)
	if got, err := thumbprint(ed25519.PublicKey(x)); err != nil || got != "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" {
		t.Errorf("thumbprint %s, error %v", got, err)
	}
}
