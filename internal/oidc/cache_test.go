package oidc

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/json"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestRememberedTokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	f.clock.Advance(59*time.Minute - time.Nanosecond)
	accept(t, f.Verifier, raw)
	f.clock.Advance(time.Nanosecond)
	refuse(t, f.Verifier, raw, refusal.TokenExpired, "")
	if n := f.cache.entries.Len(); n != 0 {
		t.Errorf("%d tokens are remembered", n)
	}
}

func TestRememberedTokenIsNotYetValidWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	f.clock.Advance(-3 * time.Minute)
	refuse(t, f.Verifier, raw, refusal.TokenNotYetValid, "")
}

func TestRememberedTokenOfKeysThatAreTooOld(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].MaxKeyAge = time.Minute })
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	testkit.Put(t, f.file, "")
	f.clock.Advance(2 * time.Minute)
	refuse(t, f.Verifier, raw, refusal.IssuerUnavailable, "")
}

// Mistake: a remembered result is given to a different caller. The cache compares whole tokens: a
// token with another signature, or one byte more, is a different token.
func TestOnlyTheSameTokenIsRemembered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	accept(t, f.Verifier, raw)
	refuse(t, f.Verifier, raw+"AA", refusal.TokenSignature, "")
	refuse(t, f.Verifier, raw[:len(raw)-2], refusal.TokenSignature, "")
	other := keys().rsa2
	other.id = "rsa"
	refuse(t, f.Verifier, other.sign(t, payload(t, "kubelet")), refusal.TokenSignature, "")
	if _, ok := f.cache.entries.Peek(sha256.Sum256([]byte(raw))); !ok {
		t.Error("the token is not remembered by its SHA-256")
	}
	if !f.Remembers(presented(raw)) || f.Remembers(presented(raw+"AA")) || f.Remembers(presented(raw[:len(raw)-2])) || f.Remembers(presented("")) {
		t.Error("another token is said to be remembered, or this one is not")
	}
	f.clock.Advance(time.Hour)
	if f.Remembers(presented(raw)) {
		t.Error("a token that has ended is said to be remembered")
	}
}

// Mistake: clients fill a cache.
func TestRefusalsAreNotRemembered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, raw := range forged(t, payload(t, "kubelet"), 50) {
		refuse(t, f.Verifier, raw, refusal.TokenUnknownKey, "")
	}
	refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "legacy")), refusal.TokenLegacy, "")
	refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "unbound")), refusal.TokenNotBound, "")
	if n := f.cache.entries.Len(); n != 0 {
		t.Errorf("%d refusals are remembered", n)
	}
}

// Mistake: a bound on the number of entries. The longest names that Kubernetes allows take three
// times the memory of usual ones. Forgotten tokens are verified again.
func TestCacheIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	f := newFixture(t, func(c *Config) { c.CacheBytes = most })
	long := longestNames(t)
	held := map[bool]int{}
	for _, longest := range []bool{false, true} {
		var first string
		for n := range 200 {
			body := payload(t, "kubelet", `"jti":"63ef`, fmt.Sprintf(`"jti":"%04d`, n))
			if longest {
				body = fmt.Sprintf(long, fmt.Sprintf("%0*d", names.MaxTokenIDBytes, n))
			}
			raw := keys().ec256.sign(t, body)
			if first == "" {
				first = raw
			}
			accept(t, f.Verifier, raw)
			if bytes := f.cache.entries.Bytes(); bytes > most {
				t.Fatalf("%d tokens are remembered in %d bytes", f.cache.entries.Len(), bytes)
			}
		}
		if f.Remembers(presented(first)) {
			t.Error("the first of many is remembered")
		}
		accept(t, f.Verifier, first)
		held[longest] = f.cache.entries.Len()
	}
	if held[false] < 80 || held[true] < 25 || held[true] > held[false]/2 {
		t.Errorf("tokens remembered: %v", held)
	}
}

// longestNames returns a payload that is as long as can be accepted, with a verb
// for jti.
func longestNames(t *testing.T) string {
	t.Helper()
	name, uid := strings.Repeat("n", 253), strings.Repeat("u", names.MaxUIDBytes)
	object := fmt.Sprintf(`{"name":%q,"uid":%q}`, name, uid)
	namespace := strings.Repeat("s", 63)
	return fmt.Sprintf(`{"iss":%q,"sub":"system:serviceaccount:%s:%s","aud":[%q],"iat":%d,"nbf":%d,"exp":%d,"jti":"%%s",`+
		`"kubernetes.io":{"namespace":%q,"serviceaccount":%s,"pod":%s,"node":%s}}`,
		issuerURL, namespace, name, audience1, issuedAt.Unix(), issuedAt.Unix(), issuedAt.Add(time.Hour).Unix(), namespace, object, object, object)
}

// Whatever a token says, it says the same when it is remembered.
func TestRememberedTokenSaysTheSame(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].Bound = BoundAny })
	for name, body := range map[string]string{
		"usual":      payload(t, "kubelet"),
		"longest":    fmt.Sprintf(longestNames(t), strings.Repeat("j", names.MaxTokenIDBytes)),
		"not bound":  payload(t, "unbound"),
		"node alone": payload(t, "kubelet", `"pod":`, `"other":`),
	} {
		raw := keys().ec256.sign(t, body)
		first := accept(t, f.Verifier, raw)
		if !f.Remembers(presented(raw)) {
			t.Errorf("%s: not remembered", name)
		}
		if again := accept(t, f.Verifier, raw); again != first {
			t.Errorf("%s: first %+v, then %+v", name, first, again)
		}
	}
}

// Not parallel: it measures the memory of the whole process.
func TestRememberedTokenHoldsNoMoreThanItsNames(t *testing.T) {
	const most = 4 << 20
	f := newFixture(t, func(c *Config) { c.CacheBytes = most })
	var claims claims
	testkit.Must(t, json.Unmarshal([]byte(payload(t, "kubelet")), &claims))
	before := testkit.Heap()
	for n := range 20_000 {
		v := verified{identity: claims.identity(), issuer: f.issuers[0]}
		// As if each name were a part of a whole token.
		v.identity.TokenID = fmt.Sprintf("%036d%s", n, strings.Repeat("x", 1<<10))[:36]
		f.cache.add(sha256.Sum256([]byte(v.identity.TokenID)), &v)
	}
	if used := int(testkit.Heap() - before); used > most+most/20 || f.cache.entries.Bytes() < most*9/10 {
		t.Errorf("%d bytes are used, %d counted", used, f.cache.entries.Bytes())
	}
	runtime.KeepAlive(f)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.CacheBytes = 3 << 10 })
	tokens := make([]string, 10)
	for n := range tokens {
		tokens[n] = keys().ec256.sign(t, payload(t, "kubelet", `"jti":"63ef`, fmt.Sprintf(`"jti":"%d`, n)))
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for n := range 100 {
				if _, err := f.Verify(t.Context(), presented(tokens[n%len(tokens)])); err != nil {
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
	ctx, credential := t.Context(), presented(raw)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := f.Verify(ctx, credential); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
