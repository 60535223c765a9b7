package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/json"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// FuzzVerify: only the genuine token is accepted, in only one form, and nothing panics. The genuine
// token is the same in every process of a fuzzing run, because the key is fixed and the signature
// deterministic (RFC 6979).
func FuzzVerify(f *testing.F) {
	private := testkit.Value(ecdsa.ParseRawPrivateKey(elliptic.P256(), []byte("a fixed number of thirty-two b..")))(f)
	k := keyPair{"fixed", jose.ES256, private}
	file := filepath.Join(f.TempDir(), "jwks.json")
	testkit.Put(f, file, keySetJSON(f, k))
	verifier := testkit.Value(New(Config{Issuers: []Issuer{validIssuer(file)}, Now: testkit.NewClock(issuedAt).Now}))(f)
	text := payload(f, "kubelet")
	header, body := encode(`{"alg":"ES256","kid":"fixed"}`), encode(text)
	digest := sha256.Sum256([]byte(header + "." + body))
	der := testkit.Value(private.Sign(nil, digest[:], crypto.SHA256))(f)
	var numbers struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &numbers); err != nil {
		f.Fatal(err)
	}
	signature := encode(string(numbers.R.FillBytes(make([]byte, 32))) + string(numbers.S.FillBytes(make([]byte, 32))))
	genuine := header + "." + body + "." + signature
	accept(f, verifier, genuine)

	for _, seed := range []string{
		genuine,
		genuine + "=", genuine + "\n", genuine + ".", strings.ToLower(genuine),
		encode(`{"alg":"none","kid":"fixed"}`) + "." + body + ".",
		encode(`{"alg":"ES256","kid":"fixed"}`) + "." + body + "." + strings.Repeat("A", 86),
		encode(`{"alg":"RS256","kid":"x","crit":["b64"],"b64":false}`) + "." + body + "." + signature,
		header + "." + encode(payload(f, "legacy")) + "." + signature,
		header + "." + encode(payload(f, "unbound")) + "." + signature,
		header + "." + encode(`{"iss":"https://issuer.example","aud":[[[[]]]],"exp":1e300}`) + "." + signature,
		header + "." + encode(strings.Repeat("[", 3000)) + "." + signature,
		"..", "", "a.b.c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		id, err := verifier.Verify(t.Context(), presented(raw))
		if err == nil {
			if raw != genuine {
				t.Fatalf("accepted as %+v: %s", id, raw)
			}
			return
		}
		failure, ok := errors.AsType[*Error](err)
		if !ok || failure.Reason == "" || failure.Message == "" || failure.Verified {
			t.Fatalf("error %#v", err)
		}
		if id != (Identity{}) {
			t.Fatalf("a refused token has the identity %+v", id)
		}
		if len(failure.Error()) > 4096 || strings.ContainsAny(failure.Error(), "\n\r\x00") {
			t.Fatalf("error %q", err)
		}
	})
}

// FuzzClaims: claims that pass say the same to encoding/json, and hold only
// names that can be used in policies, keys and log lines as they are.
func FuzzClaims(f *testing.F) {
	for _, kind := range []string{"kubelet", "pod-unscheduled", "node", "secret", "unbound", "unbound-two-audiences", "pod-api-audience", "legacy"} {
		f.Add(payload(f, kind))
	}
	f.Add(payload(f, "kubelet", `"iss"`, `"\u0069ss"`))
	f.Add(payload(f, "kubelet", `"sub":`, `"SUB":"x","sub":`))
	f.Add(payload(f, "kubelet", `["registry.example.com"]`, `"registry.example.com"`))
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return // refused before
		}
		c, err := parseClaims([]byte(text))
		c.claimed()
		if err != nil || c.fault() != "" {
			return
		}
		var other map[string]any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&other); err != nil {
			t.Fatalf("encoding/json refuses what was accepted: %v", err)
		}
		kubernetes := other["kubernetes.io"].(map[string]any)
		account := kubernetes["serviceaccount"].(map[string]any)
		id := c.identity()
		for name, pair := range map[string][2]any{
			"iss":                {c.Issuer, other["iss"]},
			"sub":                {id.Subject, other["sub"]},
			"jti":                {id.TokenID, other["jti"]},
			"namespace":          {id.Kubernetes.Namespace, kubernetes["namespace"]},
			"serviceaccount":     {id.Kubernetes.ServiceAccount.Name, account["name"]},
			"serviceaccount UID": {id.Kubernetes.ServiceAccount.UID, account["uid"]},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s is %q here and %q elsewhere", name, pair[0], pair[1])
			}
		}
		if exp, err := other["exp"].(json.Number).Int64(); err != nil || exp != id.Expiry.Unix() || !id.IssuedAt.Before(id.Expiry) {
			t.Errorf("exp is %s here and %s elsewhere", id.Expiry, other["exp"])
		}
		if id.Subject != "system:serviceaccount:"+id.Kubernetes.Namespace+":"+id.Kubernetes.ServiceAccount.Name || strings.Count(id.Subject, ":") != 3 {
			t.Errorf("subject %q", id.Subject)
		}
		for _, s := range []string{id.Subject, id.TokenID, id.Kubernetes.ServiceAccount.UID, id.Kubernetes.Pod.Name + id.Kubernetes.Pod.UID, id.Kubernetes.Node.Name + id.Kubernetes.Node.UID} {
			if !names.IsVisible(s) {
				t.Errorf("%q is accepted", s)
			}
		}
		// A node may be named without a UID (TestNodeClaimWithoutUID); no other object may.
		if (id.Kubernetes.Pod.Name == "") != (id.Kubernetes.Pod.UID == "") || id.Kubernetes.Node.Name == "" && id.Kubernetes.Node.UID != "" {
			t.Errorf("half an object in %+v", id)
		}
	})
}

// FuzzKeySet: parsing a key set never panics, and the parsed keys are usable.
func FuzzKeySet(f *testing.F) {
	k := keys()
	f.Add(string(keySetJSON(f, k.rsa, k.ec256, k.ec384, k.ec521)))
	f.Add(string(keySetJSON(f, k.ec256, k.rsaSmall)))
	f.Add(`{"keys":[{"kty":"oct","kid":"a","k":"AAAA"},{"kty":"OKP"},null,1]}`)
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseKeySet([]byte(text))
		if (err == nil) != (len(set) > 0) || len(set) > maxKeys {
			t.Fatalf("%d keys, error %v", len(set), err)
		}
		for id, k := range set {
			if k.id != id || id == "" || k.public == nil || k.algorithm == "" {
				t.Fatalf("key %+v", k)
			}
			k.verify("a.b", make([]byte, 64))
			k.verify("a.b", make([]byte, 256))
		}
	})
}
