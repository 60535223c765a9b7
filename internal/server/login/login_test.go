package login_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/server/login"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var now = time.Unix(1_700_000_000, 0)

// jwt is a token with claims, signed by no key.
func jwt(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"ES256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

// A response is accepted only if it has a token that the registry could take.
func TestResponses(t *testing.T) {
	t.Parallel()
	const service = "registry.example.com"
	const end = 1_700_000_300
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   string // of the error; empty: the time at which the token expires is returned
	}{
		{"a token", 200, `{"token":"` + jwt(fmt.Sprintf(`{"aud":"registry.example.com","exp":%d}`, end)) + `"}`, ""},
		{"one of several audiences", 200, `{"token":"` + jwt(fmt.Sprintf(`{"aud":["a","registry.example.com"],"exp":%d}`, end)) + `"}`, ""},
		{"another audience", 200, `{"token":"` + jwt(fmt.Sprintf(`{"aud":"other","exp":%d}`, end)) + `"}`, `answers 200, but the token is for ["other"]; want "registry.example.com"`},
		{"an audience that is a number", 200, `{"token":"` + jwt(fmt.Sprintf(`{"aud":1,"exp":%d}`, end)) + `"}`, "the claims of the token cannot be read"},
		{"an expired token", 200, `{"token":"` + jwt(`{"aud":"registry.example.com","exp":1700000000}`) + `"}`, "the token expired at 2023-11-14T22:13:20Z; check the clocks"},
		{"no expiry", 200, `{"token":"` + jwt(`{"aud":"registry.example.com"}`) + `"}`, "the token expired at "},
		{"not a JWT", 200, `{"token":"opaque"}`, "the token is not a JWT"},
		{"claims that are not JSON", 200, `{"token":"a.b.c"}`, "the claims of the token cannot be read"},
		{"no token", 200, `{}`, "the response has no token"},
		{"a page", 200, `<html>`, "the response has no token"},
		{"a refusal", 403, `{"errors":[{"code":"DENIED","message":"the ServiceAccount is denied"}]}`, "answers 403 Forbidden: the ServiceAccount is denied"},
		{"a redirect", 307, ``, "answers 307 Temporary Redirect"},
		{"the credential, repeated", 401, `{"message":"bad SECRET-CREDENTIAL"}`, "answers 401 Unauthorized: bad "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, password, _ := r.BasicAuth(); password != "SECRET-CREDENTIAL" || r.URL.Path != "/token" || r.URL.RawQuery != "service="+service {
					t.Errorf("request %s with %q", r.URL, password)
				}
				w.Header().Set("Location", "/other")
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			dir := t.TempDir()
			testkit.Write(t, dir, "token", "SECRET-CREDENTIAL\n")
			testkit.Write(t, dir, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
			r := login.Request{URL: server.URL + "/token", Service: service, TokenFile: filepath.Join(dir, "token"), CertFile: filepath.Join(dir, "tls.crt")}
			expiry, err := login.Send(t.Context(), r, func() time.Time { return now })
			switch {
			case c.want == "":
				if err != nil || !expiry.Equal(time.Unix(end, 0)) {
					t.Errorf("%v, %v", expiry, err)
				}
			case err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "SECRET-CREDENTIAL"):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Arguments are refused before anything is sent.
func TestArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testkit.Write(t, dir, "token", "a")
	testkit.Write(t, dir, "text", "text")
	testkit.Write(t, dir, "other.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("a")})))
	testkit.Write(t, dir, "nameless.crt", string(pkitest.CertPEM(pkitest.NewCA(t, nil))))
	good := login.Request{URL: "https://registry.example.com/token", Service: "a", TokenFile: filepath.Join(dir, "token")}
	for _, c := range []struct {
		name   string
		change func(*login.Request)
		want   string
	}{
		{"plain HTTP", func(r *login.Request) { r.URL = "http://registry.example.com/token" }, `--url "http://registry.example.com/token" is not the address of a token endpoint`},
		{"no scheme", func(r *login.Request) { r.URL = "registry.example.com" }, "write https://HOST:PORT/token"},
		{"a query", func(r *login.Request) { r.URL += "?service=a" }, "is not the address"},
		{"no token", func(r *login.Request) { r.TokenFile = filepath.Join(dir, "none") }, "--token-file: "},
		{"no file with the certificate", func(r *login.Request) { r.CertFile = filepath.Join(dir, "none") }, "--certificate: "},
		{"text", func(r *login.Request) { r.CertFile = filepath.Join(dir, "text") }, "does not begin with a certificate in PEM"},
		{"not a certificate", func(r *login.Request) { r.CertFile = filepath.Join(dir, "other.crt") }, "other.crt: x509: "},
		{"a certificate without names", func(r *login.Request) { r.CertFile = filepath.Join(dir, "nameless.crt") }, "has no subject alternative name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := good
			c.change(&r)
			if _, err := login.Send(t.Context(), r, time.Now); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
