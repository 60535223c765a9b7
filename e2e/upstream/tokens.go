package upstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	tokenService = "upstream.example.com"
	tokenIssuer  = "auth.upstream.example.com"
	tokenKeyID   = "upstream"
)

// Tokens is the token endpoint of a registry, with a key that only the two know. It gives its only user what is asked for, to the letter.
type Tokens struct {
	// URL is the realm.
	URL string

	key *ecdsa.PrivateKey

	mu      sync.Mutex
	issued  []string
	asked   []string // the scopes of each request, separated by blanks
	refused int
}

func startTokens(t testing.TB, ca *certs.CA) *Tokens {
	t.Helper()
	key := testenv.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	secrets.NoteKey(key)
	s := &Tokens{key: key}
	server := httptest.NewUnstartedServer(s)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t, "tokens").TLS(t)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.URL = "https://localhost" + server.URL[strings.LastIndex(server.URL, ":"):] + "/auth"
	return s
}

// Issued are all tokens so far.
func (s *Tokens) Issued() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.issued)
}

// Asked are the scopes of each request so far, separated by blanks.
func (s *Tokens) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// Refused is how many requests had another user or password, or were for another service.
func (s *Tokens) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

func (s *Tokens) jwks(t testing.TB) []byte {
	t.Helper()
	set := testenv.Value(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key.Public(), KeyID: tokenKeyID, Algorithm: "ES256", Use: "sig"}}}))(t)
	return set
}

func (s *Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	username, password, _ := r.BasicAuth()
	query := r.URL.Query()
	if r.Method != http.MethodGet || r.URL.Path != "/auth" || username != Username || password != Password || query.Get("service") != tokenService {
		s.refused++
		http.Error(w, `{"details":"incorrect username or password"}`, http.StatusUnauthorized)
		return
	}
	token, err := s.issue(query["scope"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.asked = append(s.asked, strings.Join(query["scope"], " "))
	s.issued = append(s.issued, token)
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300}) // the gateway sees a broken answer
}

// issue returns a token for what the scopes say (the registry's token specification).
func (s *Tokens) issue(scopes []string) (string, error) {
	access := []map[string]any{}
	for scope := range strings.FieldsSeq(strings.Join(scopes, " ")) {
		kind, rest, _ := strings.Cut(scope, ":")
		name, actions, _ := strings.Cut(rest, ":")
		access = append(access, map[string]any{"type": kind, "name": name, "actions": strings.Split(actions, ",")})
	}
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": tokenIssuer, "aud": tokenService, "sub": Username, "jti": rand.Text(), "access": access,
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	})
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: tokenKeyID}}, nil)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", err
	}
	token, err := signed.CompactSerialize()
	secrets.Note("token of an upstream", token)
	return token, err
}
