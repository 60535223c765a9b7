package registryauth

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// responseNow has a fraction and another zone: neither may reach the wire.
var responseNow = time.Date(2026, 3, 1, 13, 0, 0, 999_999_999, time.FixedZone("", 3600))

func responseToken() Token {
	return Token{
		Value:    NewSecret("header.payload.signature"),
		ID:       "id",
		IssuedAt: responseNow.Add(-2 * time.Minute),
		Expiry:   responseNow.Truncate(time.Second).Add(180 * time.Second),
		Access: []Scope{
			{Type: "repository", Name: "b", Actions: []string{"pull", "push"}},
			{Type: "repository", Class: "plugin", Name: "host:5000/a", Actions: []string{"pull"}},
		},
	}
}

func TestWriteToken(t *testing.T) {
	t.Parallel()
	get := map[string]any{
		"token":        "header.payload.signature",
		"access_token": "header.payload.signature", // containerd's POST reads this one alone
		"expires_in":   180.0,                      // from now, not from IssuedAt
		"issued_at":    "2026-03-01T12:00:00Z",     // now, not IssuedAt: the sum must be the end
	}
	post := maps.Clone(get)
	post["scope"] = "repository:b:pull,push repository(plugin):host:5000/a:pull"
	exchange := maps.Clone(post)
	exchange["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
	exchange["token_type"] = "Bearer"
	for grantType, want := range map[GrantType]map[string]any{
		GrantAnonymous: get, GrantBasic: get, GrantBearer: get,
		GrantPassword: post, GrantRefreshToken: post, GrantTokenExchange: exchange,
	} {
		t.Run(string(grantType), func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			WriteToken(w, grantType, responseToken(), responseNow)
			if w.Code != http.StatusOK {
				t.Errorf("status %d", w.Code)
			}
			// The whole object is compared, so it also holds no refresh_token: docker
			// would throw the password away and keep that, and nothing may outlive the pod.
			if got := responseObject(t, w); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			responseHeader(t, w, nil)
		})
	}
}

// A push credential is not an access token (RFC 8693, section 2.2.1).
func TestWritePushCredential(t *testing.T) {
	t.Parallel()
	credential := responseToken()
	credential.Push = true
	w := httptest.NewRecorder()
	WriteToken(w, GrantTokenExchange, credential, responseNow)
	if got := responseObject(t, w); got["issued_token_type"] != "urn:pullpass:token-type:push-credential" || got["token_type"] != "N_A" {
		t.Errorf("got %v", got)
	}
}

func TestWriteTokenExpiresIn(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]float64{
		5 * time.Minute:    300, // the whole lifetime, though a part of the first second is over
		60 * time.Second:   60,  // the token specification allows no less
		time.Second:        1,
		0:                  1, // 0 would be read as "not said", which means 60
		-time.Hour:         1,
		24*time.Hour + 1e6: 86400,
	} {
		token := responseToken()
		token.Expiry = responseNow.Truncate(time.Second).Add(left)
		w := httptest.NewRecorder()
		WriteToken(w, GrantBasic, token, responseNow)
		if got := responseObject(t, w)["expires_in"]; got != want {
			t.Errorf("%v left: expires_in = %v, want %v", left, got, want)
		}
	}
}

// Fewer rights than requested, or none, are not an error. But the response to a POST must list them
// (RFC 6749 section 5.1).
func TestWriteTokenWithoutAccess(t *testing.T) {
	t.Parallel()
	token := responseToken()
	token.Access = nil
	w := httptest.NewRecorder()
	WriteToken(w, GrantPassword, token, responseNow)
	if scope, ok := responseObject(t, w)["scope"]; w.Code != http.StatusOK || !ok || scope != "" {
		t.Errorf("status %d, scope = %v, present: %v", w.Code, scope, ok)
	}
}

// Nothing that needs an escape can come so far. If it does, it must not become
// another field of the answer.
func TestWriteTokenEscapes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`a","expires_in":"`, "a\\", "a\nb", "\x00", "\x7f", "é\u2028", "<&>", "no\xffutf8", "", "😀"} {
		token := responseToken()
		token.Value = NewSecret(s)
		token.Access = []Scope{{Type: "repository", Name: s, Actions: []string{"pull"}}}
		w := httptest.NewRecorder()
		WriteToken(w, GrantPassword, token, responseNow)
		got := responseObject(t, w)
		want := strings.ToValidUTF8(s, "\ufffd")
		if got["token"] != want || got["access_token"] != want || got["scope"] != "repository:"+want+":pull" || got["expires_in"] != 180.0 {
			t.Errorf("%q: got %q", s, got)
		}
	}
}

func TestWriteFailure(t *testing.T) {
	t.Parallel()
	failure := Failure{
		Status: http.StatusUnauthorized, Code: "UNAUTHORIZED", OAuthError: "invalid_grant",
		Message: "the token has expired", Detail: map[string]any{"since": "1m"}, BasicRealm: "registry.example.com",
	}
	get := map[string]any{"errors": []any{map[string]any{
		"code": "UNAUTHORIZED", "message": "the token has expired", "detail": map[string]any{"since": "1m"},
	}}}
	post := maps.Clone(get)
	post["error"] = "invalid_grant"
	post["error_description"] = "the token has expired"
	for grantType, want := range map[GrantType]map[string]any{
		"": get, GrantAnonymous: get, GrantBasic: get, GrantBearer: get,
		GrantPassword: post, GrantRefreshToken: post, GrantTokenExchange: post,
	} {
		t.Run("grant type "+string(grantType), func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			WriteFailure(w, grantType, failure)
			if w.Code != http.StatusUnauthorized {
				t.Errorf("status %d", w.Code)
			}
			if got := responseObject(t, w); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			responseHeader(t, w, map[string]string{"Www-Authenticate": `Basic realm="registry.example.com"`})
		})
	}
}

func TestWriteFailureHeaders(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failure Failure
		want    map[string]string
	}{
		"none":             {Failure{}, nil},
		"negative":         {Failure{RetryAfter: -time.Second}, nil},
		"whole seconds":    {Failure{RetryAfter: 10 * time.Second}, map[string]string{"Retry-After": "10"}},
		"rounded up":       {Failure{RetryAfter: 10*time.Second + 1}, map[string]string{"Retry-After": "11"}},
		"less than second": {Failure{RetryAfter: 1}, map[string]string{"Retry-After": "1"}},
		// The realm may come from the request: it must not end the string or the line.
		"quotes":      {Failure{BasicRealm: `a", charset="x\`}, map[string]string{"Www-Authenticate": `Basic realm="a\", charset=\"x\\"`}},
		"line breaks": {Failure{BasicRealm: "a\r\nX: y\x7fé"}, map[string]string{"Www-Authenticate": `Basic realm="a??X: y???"`}},
	} {
		w := httptest.NewRecorder()
		tc.failure.Status = http.StatusServiceUnavailable
		WriteFailure(w, "", tc.failure)
		t.Run(name, func(t *testing.T) { responseHeader(t, w, tc.want) })
	}
}

func TestWriteFailureMessage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ message, wantMessage, wantDescription string }{
		"plain":  {"scope: bad", "scope: bad", "scope: bad"},
		"quotes": {`service: "x" \ is unknown`, `service: "x" \ is unknown`, "service: 'x' ? is unknown"}, // RFC 6749 section 5.2 has neither
		"other":  {"é\n\x1b[2J\x7f", "é\n\x1b[2J\x7f", "???[2J?"},
		"markup": {"<b>&</b>", "<b>&</b>", "<b>&</b>"},
		"long":   {strings.Repeat("é", 5000), strings.Repeat("é", 512), strings.Repeat("?", 512)},
		"odd":    {"a" + strings.Repeat("é", 5000), "a" + strings.Repeat("é", 511), "a" + strings.Repeat("?", 511)},
	} {
		w := httptest.NewRecorder()
		WriteFailure(w, GrantPassword, Failure{Status: 400, Code: "UNSUPPORTED", OAuthError: "invalid_request", Message: tc.message})
		got := responseObject(t, w)
		first := got["errors"].([]any)[0].(map[string]any)
		if first["message"] != tc.wantMessage || got["error_description"] != tc.wantDescription {
			t.Errorf("%s: got %q and %q", name, first["message"], got["error_description"])
		}
		if _, ok := first["detail"]; ok {
			t.Errorf("%s: the response has a detail that the error lacks", name)
		}
	}
}

// A detail that cannot be encoded costs the detail, not the answer; one with a
// secret in it shows none.
func TestWriteFailureDetail(t *testing.T) {
	t.Parallel()
	for name, detail := range map[string]any{"channel": make(chan int), "secret": map[string]any{"token": NewSecret(secretValue)}} {
		w := httptest.NewRecorder()
		WriteFailure(w, GrantPassword, Failure{Status: 500, Code: "UNKNOWN", OAuthError: "server_error", Message: "m", Detail: detail})
		secretAbsent(t, name, w.Body.String())
		if first := responseObject(t, w)["errors"].([]any)[0].(map[string]any); first["message"] != "m" || first["code"] != "UNKNOWN" {
			t.Errorf("%s: got %v", name, first)
		}
	}
}

func TestWriteOverHTTP(t *testing.T) {
	t.Parallel()
	token := responseToken()
	token.Value = NewSecret(strings.Repeat("a", 3000))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		WriteToken(w, GrantPassword, token, responseNow)
	}))
	defer server.Close()
	response := testkit.Value(server.Client().Get(server.URL))(t)
	defer response.Body.Close()
	if response.ContentLength < 6000 || len(response.TransferEncoding) > 0 {
		t.Errorf("Content-Length %d, Transfer-Encoding %v: the answer was sent in chunks", response.ContentLength, response.TransferEncoding)
	}
}

func BenchmarkWriteToken(b *testing.B) {
	token := responseToken()
	token.Value = NewSecret(strings.Repeat("a", 1200))
	w := &responseDiscard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		WriteToken(w, GrantPassword, token, responseNow)
	}
}

// BenchmarkWriteTokenEncoder is what WriteToken would cost with encoding/json.
func BenchmarkWriteTokenEncoder(b *testing.B) {
	token := responseToken()
	token.Value = NewSecret(strings.Repeat("a", 1200))
	w := &responseDiscard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		var scopes []string
		for _, s := range token.Access {
			scopes = append(scopes, s.String())
		}
		body, err := json.Marshal(struct {
			Token       string    `json:"token"`
			AccessToken string    `json:"access_token"`
			ExpiresIn   int       `json:"expires_in"`
			IssuedAt    time.Time `json:"issued_at"`
			Scope       string    `json:"scope"`
		}{token.Value.Reveal(), token.Value.Reveal(), 180, responseNow.UTC(), strings.Join(scopes, " ")})
		testkit.Must(b, err)
		write(w, http.StatusOK, body)
	}
}

type responseDiscard struct{ header http.Header }

func (d *responseDiscard) Header() http.Header         { return d.header }
func (d *responseDiscard) Write(b []byte) (int, error) { return len(b), nil }
func (d *responseDiscard) WriteHeader(int)             {}

func responseObject(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &object); err != nil || !utf8.Valid(w.Body.Bytes()) {
		t.Fatalf("%q: %v", w.Body, err)
	}
	return object
}

// responseHeader checks the whole header: the fields of every response, and want. Without no-store,
// a cache in front could give one caller's token to another caller.
func responseHeader(t *testing.T, w *httptest.ResponseRecorder, want map[string]string) {
	t.Helper()
	all := map[string]string{
		"Content-Type":           "application/json",
		"Cache-Control":          "no-store",
		"Pragma":                 "no-cache",
		"X-Content-Type-Options": "nosniff",
	}
	maps.Copy(all, want)
	got := maps.Clone(w.Header())
	if length := got.Get("Content-Length"); length == "" {
		t.Error("no Content-Length")
	}
	got.Del("Content-Length")
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(all))) {
		t.Errorf("headers %v, want %v", got, all)
	}
	for name, value := range all {
		if got.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, got.Get(name), value)
		}
	}
}
