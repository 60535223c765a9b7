package signing

import (
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A key that was replaced is held for a while, and once.
func TestKeysAreHeldForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one, two, three := &SigningKey{ID: "1"}, &SigningKey{ID: "2"}, &SigningKey{ID: "3"}
	ids := func(held []heldKey) string {
		var list []string
		for _, k := range held {
			list = append(list, k.ID)
		}
		return strings.Join(list, " ")
	}
	first := &fileKeySet{key: one, held: []heldKey{{SigningKey: one}}}
	if held := first.heldWith(one, now); ids(held) != "1" || !held[0].since.IsZero() || !held[0].until.IsZero() {
		t.Errorf("the same key: %v", held)
	}
	second := &fileKeySet{key: two, held: first.heldWith(two, now)}
	if held := second.held; ids(held) != "1 2" || !held[0].until.Equal(now.Add(heldFor)) || !held[1].since.Equal(now) || !held[1].until.IsZero() {
		t.Errorf("another key: %v", held)
	}
	for after, want := range map[time.Duration]string{heldFor - 1: "1 2 3", heldFor: "2 3"} {
		if held := second.heldWith(three, now.Add(after)); ids(held) != want {
			t.Errorf("a third key after %s: %s", after, ids(held))
		}
	}
	if held := second.heldWith(one, now); ids(held) != "2 1" || !held[1].until.IsZero() {
		t.Errorf("the first key again: %v", held)
	}
}

// The newest key that every replica has by now is the first.
func TestOrderOfSharedKeys(t *testing.T) {
	t.Parallel()
	now := time.Now()
	held := func(since ...time.Duration) (list []heldKey) {
		for i, s := range since {
			list = append(list, heldKey{SigningKey: &SigningKey{ID: string(rune('1' + i))}, since: now.Add(-s)})
		}
		return list
	}
	ended := held(2*settleTime, settleTime)
	ended[0].until = now
	for name, test := range map[string]struct {
		held []heldKey
		want string
	}{
		"none":           {nil, ""},
		"all are new":    {held(2, 1), "12"},
		"one is settled": {held(settleTime, settleTime-1), "12"},
		"both are":       {held(2*settleTime, settleTime), "21"},
		"one has ended":  {ended, "2"},
	} {
		got := ""
		for _, key := range shared(test.held, now) {
			got += key.ID
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestSameTrust(t *testing.T) {
	t.Parallel()
	key, cert := jose.JSONWebKey{KeyID: "1"}, &x509.Certificate{Raw: []byte("1")}
	bundle := func(keys []jose.JSONWebKey, certificates ...*x509.Certificate) TrustBundle {
		return TrustBundle{JWKS: jose.JSONWebKeySet{Keys: keys}, Certificates: certificates}
	}
	a := bundle([]jose.JSONWebKey{key}, cert)
	for name, test := range map[string]struct {
		b    TrustBundle
		want bool
	}{
		"the same":            {bundle([]jose.JSONWebKey{{KeyID: "1"}}, &x509.Certificate{Raw: []byte("1")}), true},
		"another key":         {bundle([]jose.JSONWebKey{{KeyID: "2"}}, cert), false},
		"another certificate": {bundle([]jose.JSONWebKey{key}, &x509.Certificate{Raw: []byte("2")}), false},
		"no certificate":      {bundle([]jose.JSONWebKey{key}), false},
	} {
		if sameTrust(a, test.b) != test.want {
			t.Errorf("%s: %t", name, !test.want)
		}
	}
}

func TestLeadIsNotNegative(t *testing.T) {
	t.Parallel()
	for lead, want := range map[time.Duration]bool{-1: false, 0: true, time.Hour: true} {
		_, err := NewManagedKeys(ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Trust: TrustJWKS, Service: "s", Lifetime: time.Minute, Lead: lead, Logger: testkit.QuietLogger()})
		if (err == nil) != want {
			t.Errorf("lead %s: %v", lead, err)
		}
	}
}
