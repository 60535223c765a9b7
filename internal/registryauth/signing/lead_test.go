package signing

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const lead = 24 * time.Hour

// whoSigns returns the ids of the key that signs and of all that are published.
func whoSigns(t *testing.T, keys Keys) (signing string, published []string) {
	t.Helper()
	key := testkit.Value(keys.Signing())(t)
	for _, jwk := range keys.Trusted().JWKS.Keys {
		published = append(published, jwk.KeyID)
	}
	if !slices.Contains(published, key.ID) {
		t.Fatalf("%s signs and is not published: %q", key.ID, published)
	}
	for _, info := range keys.Status().Keys {
		if info.ID == key.ID && info.State != StateSigning {
			t.Errorf("the status of the key that signs is %s", info.State)
		}
	}
	return key.ID, published
}

// A client that fetches the key set once a day knows each key before it signs, and old keys until
// their tokens have expired.
func TestManagedKeysWithALeadRotateByThemselves(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	cfg := managedConfig(t, TrustJWKS)
	cfg.Lifetime, cfg.Lead, cfg.Now = time.Minute, lead, func() time.Time { return now }
	keys, other := openManaged(t, cfg), openManaged(t, cfg)
	mustMaintain(t, keys)
	first, _ := whoSigns(t, keys)

	now = now.Add(rotateFollowed - time.Minute)
	mustMaintain(t, keys)
	if _, published := whoSigns(t, keys); len(published) != 1 {
		t.Errorf("published before a month is over: %q", published)
	}
	now = now.Add(time.Minute)
	mustMaintain(t, keys)
	mustMaintain(t, other) // finds the new one, and makes no other
	mustMaintain(t, keys)
	signing, published := whoSigns(t, keys)
	if signing != first || len(published) != 2 {
		t.Errorf("after a month %s signs of %q, want still %s, of 2", signing, published, first)
	}
	now = now.Add(lead)
	mustMaintain(t, keys)
	second, published := whoSigns(t, keys)
	if second == first || len(published) != 2 {
		t.Errorf("after the lead %s signs of %q, want another than %s, of 2", second, published, first)
	}
	now = now.Add(cfg.Lifetime + overlapMargin)
	mustMaintain(t, keys)
	if signing, published := whoSigns(t, keys); signing != second || len(published) != 1 {
		t.Errorf("at the end %s signs of %q, want %s alone", signing, published, second)
	}
}

// Several replicas get a new key one after the other. A client that reads the key set of any of
// them knows each key before any of them signs with it.
func TestFileKeysPublishThePublicKeysBesideTheirOwn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	name := filepath.Join(t.TempDir(), "signing.key")
	put := func(content ...[]byte) {
		t.Helper()
		testkit.Must(t, os.WriteFile(name, slices.Concat(content...), 0o600))
	}
	oldKey, oldPublic := newKeyPEM(t, ES256)
	newKey, newPublic := newKeyPEM(t, ES256)
	put(oldKey)
	keys := testkit.Value(NewFileKeys(FileKeysConfig{Trust: TrustJWKS, KeyFile: name, Overlap: time.Hour, Now: func() time.Time { return now }}))(t)
	reload := func() {
		t.Helper()
		testkit.Must(t, keys.Reload())
	}
	first, _ := whoSigns(t, keys)
	put(newPublic, oldKey)
	reload()
	signing, published := whoSigns(t, keys)
	if signing != first || len(published) != 2 {
		t.Errorf("with the new public key %s signs, of %q; want %s, of 2", signing, published, first)
	}
	put(newKey, oldPublic)
	reload()
	second, both := whoSigns(t, keys)
	if second == first || !slices.Equal(both, published) {
		t.Errorf("with the new key %s signs, of %q; want another than %s, of %q", second, both, first, published)
	}
	now = now.Add(time.Hour)
	if _, both := whoSigns(t, keys); !slices.Equal(both, published) {
		t.Errorf("later %q are published, want %q", both, published)
	}
	if status := keys.Status().Keys; len(status) != 2 || status[0].ID != first || status[0].State != StateTrusted {
		t.Errorf("the status is %+v", status)
	}
	put(newKey)
	reload()
	now = now.Add(time.Hour)
	if signing, published := whoSigns(t, keys); signing != second || len(published) != 1 {
		t.Errorf("at the end %s signs, of %q", signing, published)
	}

	_, other := newKeyPEM(t, EdDSA)
	for want, beside := range map[string][]byte{
		"a public key beside it: the key is Ed25519, but algorithm ES256 is configured": other,
		"the PEM block PUBLIC KEY is damaged":                                           []byte("-----BEGIN PUBLIC KEY-----\naGVsbG8=\n-----END PUBLIC KEY-----\n"),
	} {
		put(newKey, beside)
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func newKeyPEM(t *testing.T, algorithm Algorithm) (private, public []byte) {
	t.Helper()
	signer, err := generateKey(algorithm)
	testkit.Must(t, err)
	if private, err = encodeKeyPEM(signer); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(signer.Public())
	testkit.Must(t, err)
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestALeadNeedsAKeySet(t *testing.T) {
	t.Parallel()
	cfg := ManagedKeysConfig{Dir: t.TempDir(), Service: signingtest.Service, Lifetime: time.Minute, Lead: lead}
	if _, err := NewManagedKeys(cfg); err == nil || !strings.Contains(err.Error(), `lead 24h0m0s with trust "certificate" has no meaning`) {
		t.Errorf("error %v", err)
	}
}
