// Package issuer is a cluster's token issuer without the cluster: discovery documents over TLS and ServiceAccount tokens
// with the claims that a real kube-apiserver gives them. It serves tests in which the registry's side is the real part.
package issuer

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const keyID = "e2e"

// Issuer is a running issuer.
type Issuer struct {
	// URL is the iss of its tokens.
	URL string

	certificate atomic.Pointer[tls.Certificate]
	mu          sync.Mutex
	keys        []jose.JSONWebKey // that are published; the last one signs
	rotated     int
}

// Start runs an issuer until the test ends. Its TLS certificate is of ca.
func Start(t testing.TB, ca *certs.CA) *Issuer {
	t.Helper()
	i, _ := serve(t, ca, "/openid/v1/jwks")
	return i
}

// StartAs is Start, under the name of a host.
func StartAs(t testing.TB, ca *certs.CA, host string) *Issuer {
	t.Helper()
	i, _ := serve(t, ca, "/openid/v1/jwks", host)
	i.URL = strings.Replace(i.URL, "127.0.0.1", host, 1)
	return i
}

// Present changes the certificate, for new connections.
func (i *Issuer) Present(t testing.TB, pair certs.Pair) {
	t.Helper()
	certificate := pair.TLS(t)
	i.certificate.Store(&certificate)
}

// Rotate signs with a new key from now on, and publishes the previous one as well. It returns the id of the new one.
func (i *Issuer) Rotate(t testing.TB) string {
	t.Helper()
	key := certs.NewRSAKey(t)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rotated++
	id := fmt.Sprintf("%s-%d", keyID, i.rotated)
	i.keys = append(i.keys[len(i.keys)-1:], jose.JSONWebKey{Key: key.PrivateKey, KeyID: id})
	return id
}

func (i *Issuer) published() (set jose.JSONWebKeySet) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, key := range i.keys {
		public := key.Public()
		public.Algorithm, public.Use = "RS256", "sig"
		set.Keys = append(set.Keys, public)
	}
	return set
}

func (i *Issuer) signing() jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[len(i.keys)-1]
}

// serve runs a server with the documents of an issuer.
func serve(t testing.TB, ca *certs.CA, keys string, hosts ...string) (*Issuer, *http.ServeMux) {
	t.Helper()
	i := &Issuer{keys: []jose.JSONWebKey{{Key: certs.NewRSAKey(t).PrivateKey, KeyID: keyID}}}
	i.Present(t, ca.Server(t, "issuer", hosts...))
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux)
	// Not GetCertificate: for a client that names no host, because it has an address, httptest's own certificate would count.
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*i.certificate.Load()}}, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	i.URL = server.URL
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{
			"issuer":                                i.URL,
			"jwks_uri":                              i.URL + keys,
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET "+keys, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, i.published())
	})
	return i, mux
}

// Token is the token that a kubelet gets for a pod of the ServiceAccount.
func (i *Issuer) Token(t testing.TB, audience, namespace, serviceAccount string) string {
	t.Helper()
	token := testenv.Value(i.TryToken(audience, namespace, serviceAccount))(t)
	return token
}

// TryToken is Token for goroutines, which must not end a test.
func (i *Issuer) TryToken(audience, namespace, serviceAccount string) (string, error) {
	return i.TryTokenFor(time.Hour, audience, namespace, serviceAccount)
}

// TryTokenFor is TryToken with another lifetime.
func (i *Issuer) TryTokenFor(lifetime time.Duration, audience, namespace, serviceAccount string) (string, error) {
	return i.sign(nil, i.claims(lifetime, audience, namespace, serviceAccount))
}

// ChangedToken is Token with other claims.
func (i *Issuer) ChangedToken(t testing.TB, audience, namespace, serviceAccount string, change func(claims map[string]any)) string {
	t.Helper()
	claims := i.claims(time.Hour, audience, namespace, serviceAccount)
	change(claims)
	token := testenv.Value(i.sign(nil, claims))(t)
	return token
}

func (i *Issuer) claims(lifetime time.Duration, audience, namespace, serviceAccount string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": i.URL,
		"sub": "system:serviceaccount:" + namespace + ":" + serviceAccount,
		"aud": []string{audience},
		"exp": now.Add(lifetime).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
		"jti": rand.Text(),
		"kubernetes.io": map[string]any{
			"namespace":      namespace,
			"serviceaccount": object(serviceAccount),
			"pod":            object("app-1"),
			"node":           object("node1"),
		},
	}
}

func object(name string) map[string]string {
	return map[string]string{"name": name, "uid": "uid-of-" + name}
}

func (i *Issuer) sign(header *jose.SignerOptions, claims map[string]any) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: i.signing()}, header)
	if err != nil {
		return "", err
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	token, err := signed.CompactSerialize()
	secrets.Note("token of an issuer", token)
	return token, err
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client sees a broken answer
}
