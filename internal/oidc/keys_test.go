package oidc

import (
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func jwkJSON(t *testing.T, jwk jose.JSONWebKey) string {
	t.Helper()
	data := testkit.Value(json.Marshal(jwk))(t)
	return string(data)
}

// JSON has no aliases, and deep nesting is an error like any other: the cost of reading a set is
// proportional to its bytes. The test is not parallel, because it measures.
func TestNestedKeySets(t *testing.T) {
	deep := strings.Repeat("[", maxDocumentBytes/2-100) + strings.Repeat("]", maxDocumentBytes/2-100)
	for _, set := range []string{deep, `{"keys": ` + deep + `}`, `{"keys": [` + deep + `]}`, `{"keys": [{"x5c": ` + deep + `}]}`, `{"other": ` + deep + `}`} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		keys, err := parseKeySet([]byte(set))
		runtime.ReadMemStats(&after)
		if err == nil || keys != nil {
			t.Errorf("%.20s: %v", set, keys)
		}
		if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 200 {
			t.Errorf("%.20s: %d MiB were taken", set, allocated)
		}
	}
}

func TestKeySets(t *testing.T) {
	t.Parallel()
	k := keys()
	good := jwkJSON(t, k.rsa.jwk())
	edit := func(pair keyPair, change func(*jose.JSONWebKey)) string {
		jwk := pair.jwk()
		change(&jwk)
		return jwkJSON(t, jwk)
	}
	otherWithSameID := edit(k.rsa2, func(j *jose.JSONWebKey) { j.KeyID = "rsa" })
	for _, test := range []struct {
		name string
		keys []string
		want []string // ids of usable keys
		err  string
	}{
		{"all kinds", []string{good, jwkJSON(t, k.ec256.jwk()), jwkJSON(t, k.ec384.jwk()), jwkJSON(t, k.ec521.jwk())}, []string{"ec256", "ec384", "ec521", "rsa"}, ""},
		{"without use and alg", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.Use, j.Algorithm = "", "" })}, []string{"rsa"}, ""},
		{"key_ops to verify", []string{`{"key_ops":["sign","verify"],` + good[1:]}, []string{"rsa"}, ""},
		{"exponent 3", []string{strings.Replace(good, `"AQAB"`, `"Aw"`, 1)}, []string{"rsa"}, ""},
		{"the same key twice", []string{good, good}, []string{"rsa"}, ""},
		{"longest exponent", []string{strings.Replace(good, `"AQAB"`, `"f____w"`, 1)}, []string{"rsa"}, ""},
		{"first fault", []string{jwkJSON(t, k.rsaSmall.jwk()), `1`}, nil, "no usable key: keys[0]: an RSA key of"},
		{"empty set", nil, nil, "no usable key: the set is empty"},
		{"useless keys do not spoil the others", []string{`{"kty":"future"}`, `1`, jwkJSON(t, k.rsaSmall.jwk()), good}, []string{"rsa"}, ""},
		{"two keys with one kid are both left out", []string{good, otherWithSameID, good, jwkJSON(t, k.ec256.jwk())}, []string{"ec256"}, ""},
		{"longest kid", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.KeyID = strings.Repeat("k", 256) })}, []string{strings.Repeat("k", 256)}, ""},
		{"64 keys", slices.Repeat([]string{good}, 64), []string{"rsa"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseKeySet([]byte(`{"future":1,"keys":[` + strings.Join(test.keys, ",") + `]}`))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || got != nil {
					t.Fatalf("got %v, error %v, want one with %q", got, err, test.err)
				}
				return
			}
			if ids := slices.Sorted(maps.Keys(got)); err != nil || !slices.Equal(ids, test.want) {
				t.Errorf("got %q, error %v, want %q", ids, err, test.want)
			}
		})
	}
}

func TestWhatIsNoKeySet(t *testing.T) {
	t.Parallel()
	good := string(keySetJSON(t, keys().rsa))
	for _, document := range []string{"", "x", "[]", `{"keys":{}}`, `{"keys":"x"}`, good + good, good[:len(good)-1], `{"keys":[],` + good[1:], "<html></html>"} {
		if _, err := parseKeySet([]byte(document)); err == nil || !strings.Contains(err.Error(), "not a JWK set") {
			t.Errorf("%.20s: error %v", document, err)
		}
	}
	for _, document := range []string{"null", "{}", `{"KEYS":` + good[8:], `{"keys":null}`} {
		if _, err := parseKeySet([]byte(document)); err == nil || !strings.Contains(err.Error(), "no usable key: the set is empty") {
			t.Errorf("%.20s: error %v", document, err)
		}
	}
}

// A remembered token is valid while its key is published. Keys are compared by address. The address
// must stay for the same key, and change for a different key with the same id.
func TestAKeyKeepsItsAddressWhileItIsPublished(t *testing.T) {
	t.Parallel()
	parse := func(pairs ...keyPair) map[string]*key {
		parsed := testkit.Value(parseKeySet(keySetJSON(t, pairs...)))(t)
		return parsed
	}
	now := time.Now()
	first := newKeySet(parse(keys().rsa, keys().ec256), nil, now)
	second := newKeySet(parse(keys().rsa, keys().rsa2), first, now)
	if second.find("rsa") != first.find("rsa") {
		t.Error("the same key has another address")
	}
	if second.find("ec256") != nil {
		t.Error("a withdrawn key is still there")
	}
	replaced := keys().rsa2
	replaced.id = "rsa"
	third := newKeySet(parse(replaced), second, now)
	if third.find("rsa") == second.find("rsa") || third.find("rsa") == nil {
		t.Error("another key with the same kid has the address of the old one")
	}
}
