package oidc

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
)

// Unusual claims with the same meaning are accepted: newer API servers may add claims, and JSON has
// more than one form.
func TestClaimsThatAreTolerated(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	longName := strings.Repeat("a", 253)
	for _, edits := range [][]string{
		{`"iss":`, `"x":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `,"iss":`},
		{`"iss":`, `"future":{"a":[1,2.5,null]},"ISS":"https://evil.example","iss":`},
		{`"namespace":`, `"future":[],"warnafter":1795233804,"namespace":`},
		{`"iss"`, `"\u0069ss"`},
		{`"name":"app-1"`, `"name":"app\u002d1"`},
		{`"iat":1795230411`, ` "iat" : 1795230411 `},
		{`"nbf":1795230411`, `"nbf":1795230400`},
		{`"name":"app-1"`, `"name":"` + longName + `"`},
		{`"name":"puller"`, `"name":"pull.er"`, `account:team-a:puller`, `account:team-a:pull.er`},
		{`"name":"node1"`, `"name":"ip-10-0-0-1.eu.compute.internal"`},
	} {
		accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", edits...)))
	}
}

// A claim of another type does not hide from the log what comes after it.
func TestClaimsBesideOneOfAnotherType(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", `"aud":["registry.example.com"]`, `"aud":5`)), refusal.TokenClaims, "another type")
	if c := failure.Claimed; c.Subject == "" || c.Pod.Name == "" || c.TokenID == "" {
		t.Errorf("claimed %+v", c)
	}
	failure = refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "legacy", `"sub":"system:serviceaccount:team-a:puller"`, `"sub":"system:serviceaccount:team-a:puller","aud":5`)), refusal.TokenClaims, "another type")
	if c := failure.Claimed; c.Secret != "puller-legacy" {
		t.Errorf("claimed by a legacy token %+v", c)
	}
}
