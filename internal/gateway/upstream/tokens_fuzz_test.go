package upstream

import (
	"net/http"
	"net/url"
	"testing"
	"time"
)

// Whatever a token endpoint answers, its token fits into a header and is used for a bounded time, and
// Retry-After is a bounded wait.
func FuzzToken(f *testing.F) {
	for _, body := range []string{
		`{"token":"a.b.c","expires_in":300}`, `{"access_token":"x"}`, `{"token":"a\r\nb"}`, `{"token":"x","expires_in":-1}`, `{"token":"x","expires_in":1e300}`, `{"token":{}}`, `[]`, ``,
	} {
		f.Add([]byte(body), "120")
	}
	f.Add([]byte("{}"), "Fri, 02 Jan 2026 03:04:05 GMT")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	client, err := New(Config{Name: "ghcr.io", URL: "https://ghcr.io", Now: func() time.Time { return now }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, after string) {
		got, refused := client.readToken(body, &url.URL{Host: "ghcr.io"})
		value := got.value.Reveal()
		if (refused == nil) != isTokenValue(value) || len(value) > maxTokenBytes || (&http.Request{Header: http.Header{"Authorization": {value}}}).Header.Get("Authorization") != value {
			t.Errorf("%q: %q, %v", body, value, refused)
		}
		if refused == nil && (got.useful.Before(now) || got.useful.After(now.Add(maxTokenLifetime))) {
			t.Errorf("%q: useful until %s", body, got.useful)
		}
		if wait := retryAfter(http.Header{"Retry-After": {after}}, now); wait < 0 {
			t.Errorf("%q: %s", after, wait)
		}
	})
}
