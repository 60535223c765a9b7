package signing

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/signing/signingtest"
)

const lead = 24 * time.Hour

// whoSigns returns the ids of the key that signs and of all that are published.
func whoSigns(t *testing.T, keys Keys) (signing string, published []string) {
	t.Helper()
	key, err := keys.Signing()
	if err != nil {
		t.Fatal(err)
	}
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

// Who fetches the key set once a day knows each key before it signs, and old ones
// until all that they signed has ended.
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

// Several replicas are given a new key one after the other.
func TestFileKeysWithALeadArePublishedFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	name := filepath.Join(t.TempDir(), "signing.key")
	replace := func() {
		t.Helper()
		if err := os.WriteFile(name, newKeyPEM(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	keys, err := NewFileKeys(FileKeysConfig{Trust: TrustJWKS, KeyFile: name, Overlap: time.Hour, Lead: lead, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	reload := func() {
		t.Helper()
		if err := keys.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := whoSigns(t, keys)
	replace()
	reload()
	now = now.Add(lead - time.Second)
	reload()
	if signing, published := whoSigns(t, keys); signing != first || len(published) != 2 {
		t.Errorf("before the lead %s signs of %q, want %s, of 2", signing, published, first)
	}
	// A third one, while the second waits: the first goes on.
	replace()
	reload()
	now = now.Add(lead - time.Second)
	reload()
	if signing, published := whoSigns(t, keys); signing != first || len(published) != 3 {
		t.Errorf("before the second lead %s signs of %q, want %s, of 3", signing, published, first)
	}
	now = now.Add(time.Second)
	third, _ := whoSigns(t, keys)
	if states := keys.Status().Keys; third == first || states[len(states)-1].ID != third {
		t.Errorf("after the lead %s signs, want the last: %+v", third, states)
	}
	now = now.Add(lead + time.Hour)
	reload()
	if signing, published := whoSigns(t, keys); signing != third || len(published) != 1 {
		t.Errorf("at the end %s signs of %q, want %s alone", signing, published, third)
	}
}

func newKeyPEM(t *testing.T) []byte {
	t.Helper()
	signer, err := generateKey(ES256)
	if err != nil {
		t.Fatal(err)
	}
	data, err := encodeKeyPEM(signer)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestALeadNeedsAKeySet(t *testing.T) {
	t.Parallel()
	cfg := ManagedKeysConfig{Dir: t.TempDir(), Service: signingtest.Service, Lifetime: time.Minute, Lead: lead}
	if _, err := NewManagedKeys(cfg); err == nil || !strings.Contains(err.Error(), `lead 24h0m0s with trust "certificate" has no meaning`) {
		t.Errorf("error %v", err)
	}
}
