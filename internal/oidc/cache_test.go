package oidc

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestRememberedTokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	f.clock.advance(59*time.Minute - time.Nanosecond)
	accept(t, f.Verifier, raw)
	f.clock.advance(time.Nanosecond)
	refuse(t, f.Verifier, raw, ReasonExpired, "")
	if n := f.cache.entries.Len(); n != 0 {
		t.Errorf("%d tokens are remembered", n)
	}
}

func TestRememberedTokenIsNotYetValidWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	f.clock.advance(-3 * time.Minute)
	refuse(t, f.Verifier, raw, ReasonNotYetValid, "")
}

func TestRememberedTokenOfKeysThatAreTooOld(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].MaxKeyAge = time.Minute })
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	writeFile(t, f.file, nil)
	f.clock.advance(2 * time.Minute)
	refuse(t, f.Verifier, raw, ReasonUnavailable, "")
}

// Mistake: a remembered answer is given to somebody else. The cache knows a
// token only as a whole: another signature, or one byte more, is another token.
func TestOnlyTheSameTokenIsRemembered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	refuse(t, f.Verifier, raw+"AA", ReasonSignature, "")
	refuse(t, f.Verifier, raw[:len(raw)-2], ReasonSignature, "")
	other := keys().rsa2
	other.id = "rsa"
	refuse(t, f.Verifier, other.sign(t, payload(t, "kubelet")), ReasonSignature, "")
	if !f.cache.entries.Contains(sha256.Sum256([]byte(raw))) {
		t.Error("the token is not remembered by its SHA-256")
	}
	if !f.Remembers(raw) || f.Remembers(raw+"AA") || f.Remembers(raw[:len(raw)-2]) || f.Remembers("") {
		t.Error("another token is said to be remembered, or this one is not")
	}
	f.clock.advance(time.Hour)
	if f.Remembers(raw) {
		t.Error("a token that has ended is said to be remembered")
	}
}

// Mistake: strangers fill a cache.
func TestRefusalsAreNotRemembered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, raw := range forged(t, payload(t, "kubelet"), 50) {
		refuse(t, f.Verifier, raw, ReasonUnknownKey, "")
	}
	refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "legacy")), ReasonLegacy, "")
	refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "unbound")), ReasonNotBound, "")
	if n := f.cache.entries.Len(); n != 0 {
		t.Errorf("%d refusals are remembered", n)
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.CacheSize = 3 })
	var first string
	for n := range 10 {
		raw := keys().ec256.sign(t, payload(t, "kubelet", `"jti":"63ef`, fmt.Sprintf(`"jti":"%d`, n)))
		if first == "" {
			first = raw
		}
		accept(t, f.Verifier, raw)
	}
	if n := f.cache.entries.Len(); n != 3 {
		t.Errorf("%d tokens are remembered", n)
	}
	accept(t, f.Verifier, first)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.CacheSize = 5 })
	tokens := make([]string, 10)
	for n := range tokens {
		tokens[n] = keys().ec256.sign(t, payload(t, "kubelet", `"jti":"63ef`, fmt.Sprintf(`"jti":"%d`, n)))
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for n := range 100 {
				if _, err := f.Verify(t.Context(), tokens[n%len(tokens)]); err != nil {
					t.Error(err)
				}
				f.Status()
			}
		})
		callers.Go(func() {
			for range 10 {
				if err := f.issuers[0].keys.refresh(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

// Not parallel: it counts what the whole process allocates.
func TestRememberedTokenCostsNoAllocation(t *testing.T) {
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := f.Verify(ctx, raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
