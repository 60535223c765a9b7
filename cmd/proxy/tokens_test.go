package main

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuerKey signs the tokens of all tests: RSA keys are dear.
var issuerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func issuerJWKS(t *testing.T) string {
	t.Helper()
	jwks, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: issuerKey().Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"}}})
	must(t, err)
	return string(jwks)
}

func serviceAccountToken(t *testing.T, issuer string) string {
	return signToken(t, tokenClaims(issuer))
}

// tokenClaims are those of a pod of team-a/web.
func tokenClaims(issuer string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": issuer, "aud": []string{"registry.example.com"}, "sub": "system:serviceaccount:team-a:web", "jti": "id-1",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      "team-a",
			"serviceaccount": map[string]string{"name": "web", "uid": "uid-1"},
			"pod":            map[string]string{"name": "web-0", "uid": "uid-2"},
			"node":           map[string]string{"name": "node1", "uid": "uid-3"},
		},
	}
}

func signToken(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: issuerKey()}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	must(t, err)
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	must(t, err)
	return raw
}

// tokenWith is the token of the pod with other claims of Kubernetes.
func tokenWith(t *testing.T, change func(kubernetes object)) string {
	t.Helper()
	claims := tokenClaims("https://issuer.example.com")
	change(claims["kubernetes.io"].(object))
	return signToken(t, claims)
}

// podToken is a token of another pod, of a ServiceAccount of its own.
func podToken(t *testing.T, name string) string {
	t.Helper()
	claims := tokenClaims("https://issuer.example.com")
	claims["jti"], claims["sub"] = "id-of-"+name, "system:serviceaccount:team-a:"+name
	kubernetes := claims["kubernetes.io"].(object)
	kubernetes["serviceaccount"] = map[string]string{"name": name, "uid": "uid-of-" + name}
	kubernetes["pod"] = map[string]string{"name": name, "uid": "pod-of-" + name}
	return signToken(t, claims)
}
