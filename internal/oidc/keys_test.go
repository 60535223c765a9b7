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
	data, err := json.Marshal(jwk)
	testkit.Must(t, err)
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
		{"the same key twice", []string{good, good}, []string{"rsa"}, ""},
		{"empty set", nil, nil, "no usable key: the set is empty"},
		{"RSA key of 1024 bits", []string{jwkJSON(t, k.rsaSmall.jwk())}, nil, "an RSA key of 1024 bits, at least 2048 are required"},
		{"no kid", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.KeyID = "" })}, nil, "kid must have 1 to 256 bytes"},
		{"kid too long", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.KeyID = strings.Repeat("k", 257) })}, nil, "kid must have 1 to 256 bytes"},
		{"for encryption", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.Use = "enc" })}, nil, `use is "enc", not sig`},
		{"key_ops of encryption", []string{`{"key_ops":["encrypt"],` + good[1:]}, nil, "key_ops is without verify"},
		{"empty key_ops", []string{`{"key_ops":[],` + good[1:]}, nil, "key_ops is without verify"},
		{"key_ops to verify", []string{`{"key_ops":["verify"],` + good[1:]}, []string{"rsa"}, ""},
		{"even modulus", []string{strings.Replace(good, `","e":`, `AA","e":`, 1)}, nil, "modulus or exponent is even"},
		{"even exponent", []string{strings.Replace(good, `"AQAB"`, `"AQAA"`, 1)}, nil, "modulus or exponent is even"},
		{"exponent of 32 bits", []string{strings.Replace(good, `"AQAB"`, `"gAAAAQ"`, 1)}, nil, "more than 31 bits"},
		{"alg of another kind", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.Algorithm = "ES256" })}, nil, `alg is "ES256", but such a key is only used with RS256`},
		{"alg for encryption", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.Algorithm = "RSA-OAEP" })}, nil, `alg is "RSA-OAEP"`},
		{"alg of another curve", []string{edit(k.ec256, func(j *jose.JSONWebKey) { j.Algorithm = "ES384" })}, nil, `only used with ES256`},
		{"symmetric key", []string{`{"kty":"oct","kid":"rsa","k":"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}`}, nil, "not a public RSA or EC key"},
		{"private key", []string{edit(k.rsa, func(j *jose.JSONWebKey) { j.Key = k.rsa.private })}, nil, "not a public RSA or EC key"},
		{"private EC key", []string{edit(k.ec256, func(j *jose.JSONWebKey) { j.Key = k.ec256.private })}, nil, "not a public RSA or EC key"},
		{"Ed25519", []string{`{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`}, nil, "not a public RSA or EC key"},
		{"unknown kty", []string{`{"kty":"future","kid":"x"}`}, nil, "unsupported key type"},
		{"point not on the curve", []string{`{"kty":"EC","crv":"P-256","kid":"x","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"}`}, nil, "invalid EC key"},
		{"not an object", []string{`"rsa"`, `7`, `null`}, nil, "keys[0]"},
		{"duplicate member", []string{`{"kid":"x",` + good[1:]}, nil, "duplicate object member name"},
		{"useless keys do not spoil the others", []string{`{"kty":"future"}`, `1`, jwkJSON(t, k.rsaSmall.jwk()), good}, []string{"rsa"}, ""},
		{"two keys with one kid are both left out", []string{good, otherWithSameID, good, jwkJSON(t, k.ec256.jwk())}, []string{"ec256"}, ""},
		{"only two keys with one kid", []string{good, otherWithSameID}, nil, `several keys have the kid "rsa"`},
		{"65 keys", slices.Repeat([]string{good}, 65), nil, "65 keys, at most 64 are read"},
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
		parsed, err := parseKeySet(keySetJSON(t, pairs...))
		testkit.Must(t, err)
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
