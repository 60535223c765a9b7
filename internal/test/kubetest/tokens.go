package kubetest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// issuerKey signs the tokens of all tests: RSA keys are dear.
var issuerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func IssuerJWKS(t testing.TB) string {
	t.Helper()
	jwks := testkit.Value(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: issuerKey().Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"}}}))(t)
	return string(jwks)
}

func Token(t testing.TB, issuer string) string {
	return SignToken(t, TokenClaims(issuer))
}

// TokenClaims are those of a pod of team-a/web.
func TokenClaims(issuer string) map[string]any {
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

func SignToken(t testing.TB, claims map[string]any) string {
	t.Helper()
	signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: issuerKey()}, (&jose.SignerOptions{}).WithHeader("kid", "k1")))(t)
	raw := testkit.Value(jwt.Signed(signer).Claims(claims).Serialize())(t)
	testkit.Note(t, "token", raw)
	return raw
}

// TokenWith is the token of the pod with other claims of Kubernetes.
func TokenWith(t testing.TB, change func(kubernetes Object)) string {
	t.Helper()
	claims := TokenClaims("https://issuer.example.com")
	change(claims["kubernetes.io"].(Object))
	return SignToken(t, claims)
}

// PodToken is a token of another pod, of a ServiceAccount of its own.
func PodToken(t testing.TB, name string) string {
	t.Helper()
	claims := TokenClaims("https://issuer.example.com")
	claims["jti"], claims["sub"] = "id-of-"+name, "system:serviceaccount:team-a:"+name
	kubernetes := claims["kubernetes.io"].(Object)
	kubernetes["serviceaccount"] = map[string]string{"name": name, "uid": "uid-of-" + name}
	kubernetes["pod"] = map[string]string{"name": name, "uid": "pod-of-" + name}
	return SignToken(t, claims)
}
