package e2e

import (
	"crypto"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestRegistriesVerify shows that a real registry takes the token of Pullpass for what it says and nothing else, in each way
// of trusting it. The variants differ from the token in one point each.
func TestRegistriesVerify(t *testing.T) {
	for _, r := range registries {
		t.Run(r.name, func(t *testing.T) {
			signingCA, otherCA := certs.NewCA(t, "token-ca"), certs.NewCA(t, "other-token-ca")
			signing, other := signingCA.Signer(t, "token-signer"), otherCA.Signer(t, "token-signer")
			config := pullpass.Signing{Trust: r.trust, KeyFile: signing.KeyFile}
			if r.trust == "certificate" {
				config.CertFile, config.CAFile = signing.CertFile, signingCA.File
			}
			w := startWorld(t, r.program(t), config)
			answer := w.proxy.Get(t, service, w.token(t, namespace), "repository:team-a/app:pull")
			token := answer.Body.Token
			if token == "" {
				t.Fatalf("status %d, audit %+v", answer.Status, answer.Audit)
			}

			ours := signer{signing, keyID(t, token), r.trust == "certificate"}
			theirs := signer{other, keyID(t, token), r.trust == "certificate"}
			now := time.Now()
			edited := func(claim string, value any) string {
				c := claims(t, token)
				c[claim] = value
				return ours.sign(t, c)
			}
			parts := strings.Split(token, ".")
			const read, write = http.MethodGet, http.MethodPost
			variants := []struct {
				name, token, method, path string
				accepted                  bool
			}{
				{"as issued", token, read, "/v2/team-a/app/tags/list", true},
				{"signed again", ours.sign(t, claims(t, token)), read, "/v2/team-a/app/tags/list", true}, // the other variants are made in this way
				{"another repository", token, read, "/v2/team-b/app/tags/list", false},
				{"a repository whose name begins so", token, read, "/v2/team-a/app2/tags/list", false},
				{"push with pull", token, write, "/v2/team-a/app/blobs/uploads/", false},
				{"the catalog", token, read, "/v2/_catalog", false},
				{"other issuer", edited("iss", "other.example.com"), read, "/v2/team-a/app/tags/list", false},
				{"other audience", edited("aud", "other.example.com"), read, "/v2/team-a/app/tags/list", false},
				{"expired", edited("exp", now.Add(-2*time.Minute).Unix()), read, "/v2/team-a/app/tags/list", false},
				{"not yet valid", edited("nbf", now.Add(2*time.Minute).Unix()), read, "/v2/team-a/app/tags/list", false},
				{"no access", edited("access", []any{}), read, "/v2/team-a/app/tags/list", false},
				{"other CA or key", theirs.sign(t, claims(t, token)), read, "/v2/team-a/app/tags/list", false},
				{"changed after signing", parts[0] + "." + encode(t, withClaim(claims(t, token), "jti", "other")) + "." + parts[2], read, "/v2/team-a/app/tags/list", false},
				{"without a signature", encode(t, map[string]any{"alg": "none", "typ": "JWT"}) + "." + parts[1] + ".", read, "/v2/team-a/app/tags/list", false},
				{"the ServiceAccount's token", w.token(t, namespace), read, "/v2/team-a/app/tags/list", false},
			}
			client := &http.Client{Transport: w.session(t, "").roundTripper(t), Timeout: 30 * time.Second}
			for _, v := range variants {
				t.Run(v.name, func(t *testing.T) {
					req := testenv.Value(http.NewRequestWithContext(t.Context(), v.method, "https://"+w.registry.Host+v.path, nil))(t)
					req.Header.Set("Authorization", "Bearer "+v.token)
					resp := testenv.Value(client.Do(req))(t)
					defer resp.Body.Close()
					want := http.StatusUnauthorized
					if v.accepted {
						want = http.StatusNotFound // nothing was pushed
					}
					if resp.StatusCode != want {
						t.Errorf("%s %s: %s, want %d", v.method, v.path, resp.Status, want)
					}
				})
			}
		})
	}
}

// signer signs claims as Pullpass does.
type signer struct {
	pair  certs.Pair
	keyID string
	chain bool // send the certificate as x5c
}

func (s signer) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	pair := s.pair.TLS(t)
	options := (&jose.SignerOptions{}).WithType("JWT")
	if s.chain {
		options = options.WithHeader("x5c", []string{base64.StdEncoding.EncodeToString(pair.Certificate[0])})
	}
	key := pair.PrivateKey.(crypto.Signer)
	return sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: s.keyID}}, options, claims)
}

func withClaim(claims map[string]any, claim string, value any) map[string]any {
	claims[claim] = value
	return claims
}

func encode(t *testing.T, v any) string {
	t.Helper()
	content := testenv.Value(json.Marshal(v))(t)
	return base64.RawURLEncoding.EncodeToString(content)
}
