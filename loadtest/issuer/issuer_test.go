package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const testURL = "https://oidc.prod-eu.example.com"

func open(t *testing.T, dir string) *mint {
	t.Helper()
	k, err := openKeys(dir)
	must(t, err)
	return newMint(k, testURL, "registry.example.com", time.Hour)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// claimsOf verifies a token with the published keys.
func claimsOf(t *testing.T, m *mint, compact string) map[string]any {
	t.Helper()
	signed, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.RS256})
	must(t, err)
	if header := signed.Signatures[0].Protected; len(header.ExtraHeaders) > 0 {
		t.Errorf("the header has more than alg and kid: %v", header.ExtraHeaders)
	}
	payload, err := signed.Verify(m.keys.published())
	must(t, err)
	var claims map[string]any
	must(t, json.Unmarshal(payload, &claims))
	return claims
}

func get(t *testing.T, handler http.Handler, method, target string, into any) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
	}
	if into != nil {
		must(t, json.Unmarshal(w.Body.Bytes(), into))
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	m := open(t, t.TempDir())
	var tokens []token
	get(t, newHandler(testURL, m), http.MethodGet, "/tokens?from=34&count=2", &tokens)
	if len(tokens) != 2 || tokens[0].ServiceAccount != "daemon-4" || tokens[1].Namespace != "team-2" {
		t.Fatalf("got %+v", tokens)
	}
	claims := claimsOf(t, m, tokens[1].Token)
	if claims["iss"] != testURL || claims["sub"] != "system:serviceaccount:team-2:app-25" || claims["exp"].(float64)-claims["iat"].(float64) != 3600 {
		t.Errorf("claims are %v", claims)
	}
	bound := claims["kubernetes.io"].(map[string]any)
	node := bound["node"].(map[string]any)
	if bound["namespace"] != "team-2" || bound["pod"].(map[string]any)["name"] != "app-25-0000035" || node["name"] != "node-00001" {
		t.Errorf("kubernetes.io is %v", bound)
	}
	other := claimsOf(t, m, tokens[0].Token)["kubernetes.io"].(map[string]any)["node"].(map[string]any)
	if node["uid"] != other["uid"] || len(node["uid"].(string)) != 36 {
		t.Errorf("one node has the UIDs %v and %v", node["uid"], other["uid"])
	}
	// As large as the real ones: their size is part of the cost of an exchange.
	if n := len(tokens[1].Token); n < 870 || n > 1100 {
		t.Errorf("the token has %d bytes", n)
	}

	var again, old []token
	get(t, newHandler(testURL, m), http.MethodGet, "/tokens?from=35&count=1", &again)
	if again[0] != tokens[1] {
		t.Error("a kubelet keeps the token of a pod, but this is a new token")
	}
	get(t, newHandler(testURL, m), http.MethodGet, "/tokens?from=35&count=1&age=2h", &old)
	if exp := int64(claimsOf(t, m, old[0].Token)["exp"].(float64)); time.Until(time.Unix(exp, 0)) > -59*time.Minute {
		t.Errorf("a token that was signed two hours ago ends at %s", time.Unix(exp, 0))
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m := open(t, dir)
		handler := newHandler(testURL, m)
		before, err := m.token(7, 0)
		must(t, err)
		get(t, handler, http.MethodPost, "/rotate?after=15s", nil)
		if n := len(m.keys.published().Keys); n != 2 {
			t.Errorf("%d keys are published, want the new one too", n)
		}
		time.Sleep(14 * time.Second)
		if early, err := m.token(7, 0); err != nil || early != before {
			t.Errorf("the new key signs too early: %v", err)
		}
		time.Sleep(time.Second)
		after, err := m.token(7, 0)
		must(t, err)
		if after == before {
			t.Error("the new key does not sign")
		}
		claimsOf(t, m, before.Token) // the old key is still published
		claimsOf(t, m, after.Token)

		reopened := open(t, dir)
		claimsOf(t, reopened, before.Token)
		latest, err := reopened.token(7, 0)
		must(t, err)
		claimsOf(t, m, latest.Token)
		if strings.Split(latest.Token, ".")[0] != strings.Split(after.Token, ".")[0] {
			t.Error("another key signs after a restart")
		}
	})
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := open(t, t.TempDir())
		first, err := m.token(7, 0)
		must(t, err)
		time.Sleep(48*time.Minute - time.Second)
		if kept, err := m.token(7, 0); err != nil || kept != first {
			t.Errorf("renewed too early: %v", err)
		}
		time.Sleep(time.Second)
		if renewed, err := m.token(7, 0); err != nil || renewed == first {
			t.Errorf("not renewed after 80 %% of its life: %v", err)
		}
	})
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	var document struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	handler := newHandler(testURL, open(t, t.TempDir()))
	get(t, handler, http.MethodGet, "/.well-known/openid-configuration", &document)
	if document.Issuer != testURL || document.JWKSURI != testURL+"/openid/v1/jwks" {
		t.Errorf("got %+v", document)
	}
	var set jose.JSONWebKeySet
	get(t, handler, http.MethodGet, "/openid/v1/jwks", &set)
	if len(set.Keys) != 1 || !set.Keys[0].IsPublic() {
		t.Errorf("published: %+v", set)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	handler := newHandler(testURL, open(t, t.TempDir()))
	for _, target := range []string{"GET /tokens", "GET /tokens?from=-1&count=1", "GET /tokens?from=0&count=1&age=long", "POST /rotate?after=soon"} {
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d, want 400", target, w.Code)
		}
	}
}
