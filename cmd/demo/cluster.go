package main

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// cluster plays the one part that a demo cannot bring along: the API server
// that signs ServiceAccount tokens and publishes its keys. The claims are
// those of a real one (see make e2e for the real one).
type cluster struct {
	issuer string
	key    *rsa.PrivateKey
	signer jose.Signer
}

func newCluster(issuer string, key *rsa.PrivateKey) (*cluster, error) {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.RS256, Key: key},
		(&jose.SignerOptions{}).WithHeader("kid", "demo-key"))
	if err != nil {
		return nil, err
	}
	return &cluster{issuer: issuer, key: key, signer: signer}, nil
}

// ServeHTTP publishes the discovery document and the keys.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer":                                c.issuer,
			"jwks_uri":                              c.issuer + "/openid/v1/jwks",
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	case "/openid/v1/jwks":
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
			{Key: c.key.Public(), KeyID: "demo-key", Algorithm: "RS256", Use: "sig"},
		}})
	default:
		http.NotFound(w, r)
	}
}

// pod is a workload of the demo. The UIDs of its ServiceAccount are those of
// examples/serviceaccounts.yaml.
type pod struct {
	namespace, serviceAccount, serviceAccountUID string
}

// claims are those of the token that a kubelet requests for the pod.
func (c *cluster) claims(p pod) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": c.issuer,
		"sub": "system:serviceaccount:" + p.namespace + ":" + p.serviceAccount,
		"aud": []string{audience},
		"iat": now.Unix(),
		"nbf": now.Unix(),
		"exp": now.Add(time.Hour).Unix(),
		"jti": rand.Text(),
		"kubernetes.io": map[string]any{
			"namespace":      p.namespace,
			"serviceaccount": map[string]string{"name": p.serviceAccount, "uid": p.serviceAccountUID},
			"pod":            map[string]string{"name": p.serviceAccount + "-0", "uid": "0d9f6f3c-5a37-4a3e-9a55-9c6b6d1a7e10"},
			"node":           map[string]string{"name": "worker-1", "uid": "5b1f4f8e-16c9-4d0a-8f0e-3f9f6a2b7c44"},
		},
	}
}

// token signs the claims of p after change, which may be nil.
func (c *cluster) token(p pod, change func(claims map[string]any)) (string, error) {
	claims := c.claims(p)
	if change != nil {
		change(claims)
	}
	return jwt.Signed(c.signer).Claims(claims).Serialize()
}

// legacyToken is what Kubernetes before 1.24 kept in a Secret for each
// ServiceAccount: no audience, no end, the same key.
func (c *cluster) legacyToken(p pod) (string, error) {
	return jwt.Signed(c.signer).Claims(map[string]any{
		"iss":                                    "kubernetes/serviceaccount",
		"sub":                                    "system:serviceaccount:" + p.namespace + ":" + p.serviceAccount,
		"kubernetes.io/serviceaccount/namespace": p.namespace,
		"kubernetes.io/serviceaccount/secret.name":          p.serviceAccount + "-token-x7k2p",
		"kubernetes.io/serviceaccount/service-account.name": p.serviceAccount,
		"kubernetes.io/serviceaccount/service-account.uid":  p.serviceAccountUID,
	}).Serialize()
}
