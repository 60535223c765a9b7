package assertion

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const caller = "prod-eu/payments/api"

// served is an issuer whose handlers upstreams reach.
func served(t *testing.T, cfg Config) (*Issuer, *http.Client) {
	t.Helper()
	var issuer *Issuer
	mux := http.NewServeMux()
	mux.HandleFunc(DiscoveryPath, func(w http.ResponseWriter, r *http.Request) { issuer.ServeDiscovery(w, r) })
	mux.HandleFunc(KeysPath, func(w http.ResponseWriter, r *http.Request) { issuer.ServeKeys(w, r) })
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	cfg.Issuer = server.URL
	issuer = testkit.Value(New(cfg))(t)
	testkit.Must(t, issuer.Maintain())
	return issuer, server.Client()
}

// verified verifies an assertion with only the issuer's URL.
func verified(t *testing.T, issuer *Issuer, client *http.Client, audience, assertion string) (*oidc.IDToken, error) {
	t.Helper()
	ctx := oidc.ClientContext(t.Context(), client)
	provider := testkit.Value(oidc.NewProvider(ctx, issuer.issuer))(t)
	return provider.Verifier(&oidc.Config{ClientID: audience, Now: issuer.now}).Verify(ctx, assertion)
}

func TestAnAssertionIsVerifiedByWhatIsPublished(t *testing.T) {
	t.Parallel()
	issuer, client := served(t, Config{ManagedDir: filepath.Join(t.TempDir(), "assertions")})
	seen := map[string]bool{}
	for range 3 {
		assertion := testkit.Value(issuer.Sign(caller, "sts.amazonaws.com"))(t)
		if text := fmt.Sprintf("%v %+v %#v %s", assertion, assertion, assertion, []any{assertion}); strings.Contains(text, "eyJ") {
			t.Errorf("an assertion prints itself: %s", text)
		}
		token := testkit.Value(verified(t, issuer, client, "sts.amazonaws.com", assertion.Reveal()))(t)
		if token.Subject != caller || token.Issuer != issuer.issuer || !slices.Equal(token.Audience, []string{"sts.amazonaws.com"}) {
			t.Errorf("the assertion says %+v", token)
		}
		if lives := token.Expiry.Sub(token.IssuedAt); lives != time.Minute || time.Until(token.Expiry) < 50*time.Second {
			t.Errorf("it lives for %s, until %s", lives, token.Expiry)
		}
		var all map[string]any
		testkit.Must(t, token.Claims(&all))
		for _, name := range []string{"iss", "sub", "aud", "iat", "nbf", "exp", "jti"} {
			if _, ok := all[name]; !ok {
				t.Errorf("the assertion has no %s", name)
			}
		}
		id, _ := all["jti"].(string)
		if len(all) != 7 || len(id) < 20 || seen[id] {
			t.Errorf("the claims are %v, after the ids %v", all, seen)
		}
		seen[id] = true
	}
	if _, err := verified(t, issuer, client, "https://other.example.com", sign(t, issuer, "sts.amazonaws.com")); err == nil {
		t.Error("an assertion is good for another audience")
	}
}

func sign(t *testing.T, issuer *Issuer, audience string) string {
	t.Helper()
	assertion := testkit.Value(issuer.Sign(caller, audience))(t)
	return assertion.Reveal()
}

func TestDiscoveryIsMinimal(t *testing.T) {
	t.Parallel()
	issuer, client := served(t, Config{ManagedDir: filepath.Join(t.TempDir(), "assertions")})
	for path, want := range map[string]string{
		DiscoveryPath: fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q,"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["RS256"]}`,
			issuer.issuer, issuer.issuer+KeysPath),
		KeysPath: `"alg":"RS256"`,
	} {
		response := testkit.Value(client.Get(issuer.issuer + path))(t)
		var body json.RawMessage
		testkit.Must(t, json.NewDecoder(response.Body).Decode(&body))
		response.Body.Close()
		if compact := strings.NewReplacer("\n", "", "  ", "", ": ", ":").Replace(string(body)); !strings.Contains(compact, want) || strings.Contains(compact, `"d":`) {
			t.Errorf("%s is %s", path, compact)
		}
		if response.Header.Get("Cache-Control") != "max-age=300" || !strings.HasSuffix(response.Header.Get("Content-Type"), "json") {
			t.Errorf("%s has headers %v", path, response.Header)
		}
	}
}

func TestOnlyAServiceAccountIsAsserted(t *testing.T) {
	t.Parallel()
	issuer, _ := served(t, Config{ManagedDir: filepath.Join(t.TempDir(), "assertions")})
	if _, err := issuer.Sign("", "a"); !errors.Is(err, ErrAnonymous) {
		t.Errorf("without a caller: %v", err)
	}
	for _, caller := range []string{"a/b", "a//c", "/b/c", "a/b/", "a/b/c/d"} {
		if _, err := issuer.Sign(caller, "a"); err == nil {
			t.Errorf("%q is asserted", caller)
		}
	}
	if _, err := issuer.Sign(caller, ""); err == nil {
		t.Error("an assertion needs no audience")
	}
}

func TestThereIsNoAssertionWithoutKeys(t *testing.T) {
	t.Parallel()
	issuer := testkit.Value(New(Config{Issuer: "https://pullpass.example.com", ManagedDir: filepath.Join(t.TempDir(), "assertions")}))(t)
	if _, err := issuer.Sign(caller, "a"); !errors.Is(err, signing.ErrNoSigningKey) {
		t.Errorf("error %v, want ErrNoSigningKey", err)
	}
}

// A cloud that fetched the key set just before a change accepts what is signed for a
// day after; one that fetched it after, what was signed before.
func TestKeysArePublishedLongBeforeTheySignAndAfter(t *testing.T) {
	t.Parallel()
	now := time.Now()
	issuer, client := served(t, Config{ManagedDir: filepath.Join(t.TempDir(), "assertions"), Now: func() time.Time { return now }})
	changes, last := 0, ""
	for range 40 * 24 {
		now = now.Add(time.Hour)
		before := sign(t, issuer, "a")
		published := keySet(t, issuer)
		testkit.Must(t, issuer.Maintain())
		if _, err := verified(t, issuer, client, "a", before); err != nil {
			t.Fatalf("what was signed before a change: %v", err)
		}
		key := testkit.Value(issuer.Keys().Signing())(t)
		if last != "" && key.ID != last {
			changes++
			if !strings.Contains(published, key.ID) {
				t.Errorf("%s signs, and an hour before the key set had %s", key.ID, published)
			}
		}
		last = key.ID
	}
	if changes != 1 {
		t.Errorf("%d changes in 40 days, want 1", changes)
	}
}

func keySet(t *testing.T, issuer *Issuer) string {
	t.Helper()
	var ids []string
	for _, jwk := range issuer.Keys().Trusted().JWKS.Keys {
		ids = append(ids, jwk.KeyID)
	}
	return strings.Join(ids, ",")
}

func TestAKeyFileIsRead(t *testing.T) {
	t.Parallel()
	now := time.Now()
	name := filepath.Join(t.TempDir(), "assertions.key")
	writeKey(t, name)
	issuer, client := served(t, Config{KeyFile: name, Now: func() time.Time { return now }})
	first := sign(t, issuer, "a")
	if _, err := verified(t, issuer, client, "a", first); err != nil {
		t.Error(err)
	}
	writeKey(t, name)
	testkit.Must(t, issuer.Reload())
	for _, assertion := range []string{first, sign(t, issuer, "a")} {
		if _, err := verified(t, issuer, client, "a", assertion); err != nil {
			t.Errorf("after a change: %v", err)
		}
	}
	if both := keySet(t, issuer); strings.Count(both, ",") != 1 {
		t.Errorf("after a change %s are published, want two", both)
	}
	testkit.Must(t, os.WriteFile(name, []byte("rubbish"), 0o600))
	if err := issuer.Reload(); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want one that names the file", err)
	}
	if _, err := verified(t, issuer, client, "a", sign(t, issuer, "a")); err != nil {
		t.Errorf("after a bad file: %v", err)
	}
}

func writeKey(t *testing.T, name string) {
	t.Helper()
	key := testkit.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	der := testkit.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	testkit.Must(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

func TestWhatIsNoIssuer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	testkit.Must(t, os.Mkdir(open, 0o755))
	for want, cfg := range map[string]Config{
		"has mode 0755":       {Issuer: "https://pullpass.example.com", ManagedDir: open},
		"is not an https URL": {Issuer: "http://pullpass.example.com", ManagedDir: dir},
		"a slash at its end":  {Issuer: "https://pullpass.example.com/", ManagedDir: dir},
		"name one of":         {Issuer: "https://pullpass.example.com"},
		"one of keyFile":      {Issuer: "https://pullpass.example.com", ManagedDir: dir, KeyFile: "a"},
		"signing key":         {Issuer: "https://pullpass.example.com", KeyFile: filepath.Join(dir, "missing")},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A key set that cannot be encoded is neither cached nor taken for an empty one. A log is not needed.
func TestAFaultIsNotPublished(t *testing.T) {
	t.Parallel()
	for _, logged := range []bool{true, false} {
		var log bytes.Buffer
		cfg := Config{Issuer: "https://pullpass.example.com", ManagedDir: filepath.Join(t.TempDir(), "assertions")}
		if logged {
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}
		issuer := testkit.Value(New(cfg))(t)
		w := httptest.NewRecorder()
		issuer.publish(w, "application/json", []byte("{}"), errors.New("not encoded"))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Cache-Control") != "" || strings.Contains(w.Body.String(), "{}") {
			t.Errorf("status %d, headers %v, body %s", w.Code, w.Header(), w.Body)
		}
		if strings.Contains(log.String(), "not encoded") != logged {
			t.Errorf("the log says %q", log.String())
		}
	}
}
