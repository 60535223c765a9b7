package exchange_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
	"github.com/pullpass/pullpass/internal/test/tokentest"
)

// Each token of the corpus of package oidc gets 401 over GET and POST, and one event with the
// documented reason. A credential that is too long or holds control characters gets 400. Neither the response nor the event repeats the token.
func TestCorpusOverHTTP(t *testing.T) {
	t.Parallel()
	keys := map[string]crypto.Signer{"rsa": signingKeys()[0], "rsa2": signingKeys()[1], "ec256": fastKey()}
	for id, curve := range map[string]elliptic.Curve{"ec384": elliptic.P384(), "ec521": elliptic.P521()} {
		key := testkit.Value(ecdsa.GenerateKey(curve, rand.Reader))(t)
		keys[id] = key
	}
	var set jose.JSONWebKeySet
	for id, key := range keys {
		if id != "rsa2" {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id})
		}
	}
	published := testkit.Value(json.Marshal(set))(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	testkit.Put(t, file, published)
	issuedAt := time.Unix(1795230411, 0)
	verifier := testkit.Value(oidc.New(oidc.Config{Now: func() time.Time { return issuedAt.Add(time.Minute) }, Issuers: []oidc.Issuer{{
		Cluster: "prod-eu", URL: "https://issuer.example", Audiences: []string{"registry.example.com"}, Bound: oidc.BoundPod,
		MaxLifetime: 24 * time.Hour, MaxKeyAge: 24 * time.Hour, Discovery: oidc.Discovery{JWKSFile: file},
	}}}))(t)
	r := newRig(t, func(c *rigConfig) { c.verifier = verifier })
	requests := 0
	for _, c := range tokentest.Cases(t, "../oidc/testdata", keys) {
		for name, request := range map[string]*http.Request{"GET": get(c.Token, "repository:team-a/web:pull"), "POST": post(c.Token, "repository:team-a/web:pull")} {
			a := r.do(t, request)
			requests++
			e := r.lastEvent(t, requests)
			status, result, reason := http.StatusUnauthorized, exchange.ResultRefused, c.Refused
			if isNoCredential := len(c.Token) > oidc.MaxTokenBytes || strings.ContainsFunc(c.Token, unicode.IsControl); isNoCredential {
				status, result, reason = http.StatusBadRequest, exchange.ResultInvalid, "request_malformed"
			} else if !strings.Contains(e.Message, c.Message) && !strings.Contains(e.Message, "[looks like a token") {
				t.Errorf("%s %s: %q, want %q", name, c.Name, e.Message, c.Message)
			}
			if a.status != status || e.Status != status || e.Result != result || e.Reason != reason || strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Basic realm=") != (status == http.StatusUnauthorized) {
				t.Errorf("%s %s: status %d, event %s %s: %s", name, c.Name, a.status, e.Result, e.Reason, e.Message)
			}
			if e.ServiceAccount != nil || e.Namespace != "" || e.Granted != nil || a.body.Token != "" {
				t.Errorf("%s %s: the event says %+v", name, c.Name, e)
			}
			line := testkit.Value(json.Marshal(e))(t)
			said := string(line) + a.body.Errors[0].Message
			for part := range strings.SplitSeq(c.Token, ".") {
				if len(part) > 30 && strings.Contains(said, part[:30]) || strings.Contains(said, tokentest.Encode(`{"alg"`)) { // the kid of a case is a token
					t.Errorf("%s %s: a part of the token is in %s", name, c.Name, line)
				}
			}
		}
	}
}
