package oidc

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
	"github.com/pullpass/pullpass/internal/test/tokentest"
)

var (
	makeCorpus sync.Once // many signatures take long
	cases      []tokentest.Case
)

// corpus makes the tokens of testdata/corpus/tokens with the keys that a fixture publishes.
func corpus(tb testing.TB) []tokentest.Case {
	tb.Helper()
	makeCorpus.Do(func() {
		k := keys()
		cases = tokentest.Cases(tb, "testdata", map[string]crypto.Signer{
			"rsa": k.rsa.private, "rsa2": k.rsa2.private, "ec256": k.ec256.private, "ec384": k.ec384.private, "ec521": k.ec521.private,
		})
	})
	return cases
}

// Each token is refused for its own reason, by a verifier that knows the keys, and no text repeats
// a part of the token.
func TestCorpus(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].RequireNode = true })
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	names := map[string]bool{}
	for _, c := range corpus(t) {
		if names[c.Name] {
			t.Errorf("two cases are %s", c.Name)
		}
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			failure := refuse(t, f.Verifier, c.Token, refusal.Reason(c.Refused), c.Message)
			for part := range strings.SplitSeq(c.Token, ".") {
				if len(part) > 40 && strings.Contains(failure.Error(), part[len(part)-40:]) && !strings.Contains(c.Name, "kid") {
					t.Errorf("a part of the token is in %s", failure)
				}
			}
			if n := len(failure.Error()); n > 2000 || strings.ContainsFunc(failure.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("an error of %d bytes: %q", n, failure)
			}
			if _, err := f.VerifyThen(t.Context(), presented(c.Token), issuedAt.Add(30*time.Second)); err == nil && c.Refused != string(refusal.TokenExpired) {
				t.Error("accepted as of an earlier moment")
			}
			if f.Remembers(presented(c.Token)) {
				t.Error("remembered")
			}
		})
	}
	if len(names) < 600 {
		t.Errorf("only %d tokens", len(names))
	}
}

// The corpus has tokens for each section of RFC 8725 (JSON Web Token Best Current Practices) and
// for each known mistake that concerns tokens.
func TestCorpusCovers(t *testing.T) {
	t.Parallel()
	cited, threats := map[string]int{}, map[string]int{}
	for _, c := range corpus(t) {
		for _, source := range c.Cites {
			cited[source]++
		}
		for _, threat := range c.Threats {
			threats[threat]++
		}
	}
	for _, s := range keySetSections(t) {
		for _, source := range s.Cites {
			cited[source] += len(s.Cases)
		}
		for _, threat := range s.Threats {
			threats[threat] += len(s.Cases)
		}
	}
	for section := 1; section <= 12; section++ {
		if source := fmt.Sprintf("RFC 8725 3.%d", section); cited[source] < 3 {
			t.Errorf("%d cases for %s", cited[source], source)
		}
	}
	for _, threat := range []string{
		"an empty claim that passes a check", "algorithm confusion", "a key that the token brings", "a signature of another form", "duplicate members",
		"another form of the same token", "another kind of token", "an audience of another service", "names that almost match", "names that are not validated",
		"a name that is used again", "composite names that collide", "a token that outlives its cause", "key-set denial of service", "parser denial of service",
		"a credential in a field that is written down", "a weak or malformed key",
	} {
		if threats[threat] < 3 {
			t.Errorf("%d cases of %s", threats[threat], threat)
		}
		delete(threats, threat)
	}
	if len(threats) > 0 {
		t.Errorf("unknown threats: %v", slices.Collect(maps.Keys(threats)))
	}
}

// Mistake: a token that is refused anyway makes the proxy ask the issuer. Only tokens whose header and claims are good make
// the verifier look for a key. Without a key, no signature is checked.
func TestCorpusLooksForFewKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	ring := f.issuers[0].keys
	fetch, fetches := ring.fetch, 0
	for _, c := range corpus(t) {
		ring.current.Store(nil)
		ring.startedAt, fetches = time.Time{}, 0 // as if nothing had been fetched
		ring.fetch = func(ctx context.Context) (map[string]*key, error) { fetches++; return fetch(ctx) }
		failure := refuse(t, f.Verifier, c.Token, refusal.Reason(c.Refused), c.Message)
		needsKey := failure.Reason == refusal.TokenUnknownKey || failure.Reason == refusal.TokenSignature || strings.Contains(failure.Message, "but its key is for")
		if needsKey != (fetches == 1) {
			t.Errorf("%s: %d fetches for %s", c.Name, fetches, failure.Reason)
		}
	}
}

// The refusal of a token costs few times the refusal of garbage. Garbage is a good payload of the same length with a wrong signature.
// The ratio is that of JSON's shortest values to their size in memory. Not parallel, because it
// counts what the whole process allocates.
func TestCorpusIsCheap(t *testing.T) {
	const most = 10 // 7.2 of them are needed: a JSON text of three bytes takes 16
	f := newFixture(t, nil)
	garbage := map[int]uint64{} // by length in KiB
	cost := func(raw string) uint64 {
		credential := presented(raw)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 3 {
			if _, err := f.Verify(t.Context(), credential); err == nil {
				t.Fatal("accepted")
			}
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / 3
	}
	worst, name := 0.0, ""
	for _, c := range corpus(t) {
		size := min(len(c.Token), MaxTokenBytes) >> 10
		if garbage[size] == 0 {
			filler := strings.Repeat("x", max(0, size<<10-1024)*3/4)
			garbage[size] = cost(keys().rsa2.signHeader(t, `{"alg":"RS256","kid":"rsa"}`, payload(t, "kubelet", `"iss":`, `"x":"`+filler+`","iss":`)))
		}
		if ratio := float64(cost(c.Token)) / float64(garbage[size]); ratio > worst {
			worst, name = ratio, c.Name
		}
	}
	if worst > most {
		t.Errorf("%s takes %.1f times the memory of garbage", name, worst)
	}
	t.Logf("the dearest is %s: %.1f times the memory of garbage", name, worst)
}

// Tokens of a real API server with any byte changed, removed, doubled or added are refused.
func TestTamperedTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].Bound = BoundAny })
	tried := 0
	try := func(genuine, changed, how string) {
		if tried++; changed == genuine {
			return
		}
		if id, err := f.Verify(t.Context(), presented(changed)); err == nil {
			t.Errorf("%s: accepted as %+v: %s", how, id, changed)
		}
	}
	for _, k := range []keyPair{keys().rsa, keys().ec256} {
		for _, kind := range []string{"kubelet", "pod-unscheduled", "node", "secret", "unbound", "unbound-two-audiences"} {
			raw := k.sign(t, payload(t, kind))
			accept(t, f.Verifier, raw)
			parts := strings.Split(raw, ".")
			if kind != "kubelet" {
				for n := range len(raw) {
					try(raw, raw[:n]+string([]byte{raw[n] ^ 1})+raw[n+1:], "changed")
				}
				continue
			}
			for n := range len(raw) {
				for _, c := range []byte{raw[n] + 1, raw[n] ^ 1, raw[n] ^ 0x20, raw[n] | 0x80, '.', '=', '\n', ' ', '-', 0} {
					try(raw, raw[:n]+string([]byte{c})+raw[n+1:], "changed")
				}
				try(raw, raw[:n], "cut")
				try(raw, raw[n+1:], "begun late")
				try(raw, raw[:n]+raw[n+1:], "removed")
				try(raw, raw[:n]+raw[n:n+1]+raw[n:], "doubled")
				try(raw, raw[:n]+"\n"+raw[n:], "line break")
			}
			for _, order := range [][]int{{0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {0, 0, 2}, {0, 1, 1}, {1, 1, 2}, {0, 1}, {1, 2}, {0, 0, 1, 2}, {0, 1, 1, 2}, {0, 1, 2, 2}} {
				var other []string
				for _, n := range order {
					other = append(other, parts[n])
				}
				try(raw, strings.Join(other, "."), fmt.Sprint("parts ", order))
			}
		}
	}
	if tried < 30_000 {
		t.Errorf("only %d tokens", tried)
	}
	t.Logf("%d tokens", tried)
}

// Parts of genuine tokens do not make another token.
func TestPartsOfGenuineTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].Bound = BoundAny })
	var all [][]string
	for _, k := range []keyPair{keys().rsa, keys().ec256, keys().ec384, keys().ec521} {
		for _, kind := range []string{"kubelet", "pod-unscheduled", "unbound"} {
			raw := k.sign(t, payload(t, kind))
			accept(t, f.Verifier, raw)
			all = append(all, strings.Split(raw, "."))
		}
	}
	for a, header := range all {
		for b, body := range all {
			for c, signature := range all {
				raw := header[0] + "." + body[1] + "." + signature[2]
				isGenuine := header[0] == signature[0] && body[1] == signature[1] // keys and kinds share them
				if _, err := f.Verify(t.Context(), presented(raw)); (err == nil) != isGenuine {
					t.Errorf("header of %d, payload of %d, signature of %d: %v", a, b, c, err)
				}
			}
		}
	}
}

// Each claim of a kubelet's token is needed, and needed in its own type.
func TestEveryClaimInEveryType(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].RequireNode = true })
	var genuine map[string]any
	testkit.Must(t, json.Unmarshal([]byte(payload(t, "kubelet")), &genuine))
	values := []any{nil, true, false, 0, -1, 1.5, 1e300, "", "x", " ", "*", "null", []any{}, []any{nil}, []any{"x"}, []any{[]any{}}, map[string]any{}, map[string]any{"name": "x"}}
	// isText reports whether the value is another good name of a pod or node, or another id.
	isText := func(path, name string, value any) bool {
		return (name == "jti" || name == "uid") && slices.Contains([]any{"x", "*", "null"}, value) ||
			(path == "/kubernetes.io/pod/name" || path == "/kubernetes.io/node/name") && slices.Contains([]any{"x", "null"}, value)
	}
	tried := 0
	var walk func(object map[string]any, path string)
	walk = func(object map[string]any, path string) {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			before, path := object[name], path+"/"+name
			refused := func(how string) {
				text := testkit.Value(json.Marshal(genuine))(t)
				tried++
				if id, err := f.Verify(t.Context(), presented(keys().ec256.sign(t, string(text)))); err == nil && !isText(path, name, object[name]) {
					t.Errorf("%s: accepted as %+v", how, id)
				}
			}
			delete(object, name)
			refused(path + " missing")
			for other := range strings.SplitSeq(strings.ToUpper(name)+" "+name+"\x00 "+name+"s", " ") {
				if other != name {
					object[other] = before
					refused(path + " as " + other)
					delete(object, other)
				}
			}
			for _, value := range values {
				object[name] = value
				refused(fmt.Sprint(path, " ", value))
			}
			object[name] = before
			if inner, ok := before.(map[string]any); ok {
				walk(inner, path)
			}
		}
	}
	walk(genuine, "")
	if tried < 300 {
		t.Errorf("only %d tokens", tried)
	}
	t.Logf("%d tokens", tried)
}

// Of all algorithms with all keys, only a key's own algorithm is accepted, whether the key is
// published under its own name or another's.
func TestEveryAlgorithmWithEveryKey(t *testing.T) {
	t.Parallel()
	k := keys()
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	testkit.Must(t, err)
	all := map[string]crypto.Signer{"rsa": k.rsa.private, "rsa3072": rsaPair("", 3072).private, "ec256": k.ec256.private, "ec384": k.ec384.private, "ec521": k.ec521.private, "ed25519": edwards}
	published := map[string]crypto.Signer{"rsa": all["rsa"], "rsa3072": all["rsa3072"], "ec256": all["ec256"], "ec384": all["ec384"], "ec521": all["ec521"]}
	f := newFixture(t, nil)
	var set jose.JSONWebKeySet
	for id, private := range all {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: private.Public(), KeyID: id, Use: "sig"})
	}
	data, err := json.Marshal(set)
	testkit.Must(t, err)
	testkit.Put(t, f.file, data)
	names := []string{
		"none", "None", "", "HS256", "HS384", "HS512", "RS1", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES256K", "ES384", "ES512",
		"EdDSA", "Ed25519", "Ed448", "ML-DSA-44", "ML-DSA-65", "RSA1_5", "RSA-OAEP", "RSA-OAEP-256", "A128KW", "dir", "ECDH-ES", "A128GCMKW", "PBES2-HS256+A128KW", "A128GCM",
	}
	tried, accepted := 0, 0
	for _, name := range names {
		for kid := range all {
			for by, private := range all {
				signed := encode(fmt.Sprintf(`{"alg":%q,"kid":%q}`, name, kid)) + "." + encode(payload(t, "kubelet"))
				signatures := [][]byte{nil, tokentest.Sign(tokentest.Algorithm(private), private, nil, signed)}
				switch name[:min(2, len(name))] {
				case "RS", "PS", "ES":
					signatures = append(signatures, tokentest.Sign(name, private, nil, signed))
				case "HS":
					for _, secret := range tokentest.Secrets(private.Public(), kid) {
						signatures = append(signatures, tokentest.Sign(name, private, secret, signed))
					}
				}
				isGood := by == kid && published[kid] != nil && tokentest.Algorithm(private) == name
				for n, signature := range signatures {
					tried++
					_, err := f.Verify(t.Context(), presented(signed+"."+encode(string(signature))))
					if (err == nil) != (isGood && n > 0) {
						t.Errorf("%s under the kid %s, signed by %s (%d): %v", name, kid, by, n, err)
					}
					if failure, _ := errors.AsType[*Error](err); err != nil && failure.Reason != refusal.TokenAlgorithm && failure.Reason != refusal.TokenSignature && failure.Reason != refusal.TokenUnknownKey {
						t.Errorf("%s under the kid %s, signed by %s (%d): %s", name, kid, by, n, failure.Reason)
					}
					if err == nil {
						accepted++
					}
				}
			}
		}
	}
	if accepted != 2*len(published) || tried < 3_000 {
		t.Errorf("%d of %d were accepted", accepted, tried)
	}
	t.Logf("%d tokens, of which %d are good", tried, accepted)
}

// The examples of the RFCs are copied well: go-jose verifies each with its key. Here, a key
// verifies only its one algorithm.
func TestExamplesOfRFCs(t *testing.T) {
	t.Parallel()
	accepted, examples := 0, 0
	for _, c := range corpus(t) {
		if c.JWK == "" {
			continue
		}
		examples++
		var jwk jose.JSONWebKey
		testkit.Must(t, jwk.UnmarshalJSON([]byte(c.JWK)))
		parsed, err := jose.ParseSignedCompact(c.Token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(c.Algorithm)})
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if _, err := parsed.Verify(jwk.Key); err != nil {
			t.Errorf("%s is not the example: %v", c.Name, err)
		}
		set, err := parseKeySet([]byte(`{"keys":[` + c.JWK + `]}`))
		if isKey := strings.HasPrefix(c.Algorithm, "RS") || strings.HasPrefix(c.Algorithm, "ES") || strings.HasPrefix(c.Algorithm, "PS"); isKey != (err == nil) {
			t.Errorf("%s: keys %v, %v", c.Name, set, err)
		}
		end := strings.LastIndexByte(c.Token, '.')
		signature, err := base64.RawURLEncoding.DecodeString(c.Token[end+1:])
		testkit.Must(t, err)
		for _, k := range set {
			isOurs := slices.Contains(algorithms[:], jose.SignatureAlgorithm(c.Algorithm))
			if k.verify(c.Token[:end], signature) != isOurs {
				t.Errorf("%s: verified is not %t", c.Name, isOurs)
			}
			signature[len(signature)/2] ^= 1
			if k.verify(c.Token[:end], signature) {
				t.Errorf("%s: verified with another signature", c.Name)
			}
			if isOurs {
				accepted++
			}
		}
	}
	if accepted != 5 || examples < 9 {
		t.Errorf("%d of %d examples were verified", accepted, examples)
	}
}
