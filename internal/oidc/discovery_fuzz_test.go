package oidc

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

type answering []byte

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// A discovery document leads to keys by https only if it names this issuer, exactly and once. Its
// text is not in errors unbounded or unescaped.
func FuzzDiscovery(f *testing.F) {
	const issuer = "https://issuer.example.com"
	for _, document := range []string{
		`{"issuer":"https://issuer.example.com","jwks_uri":"https://issuer.example.com/keys"}`, `{"ISSUER":"https://issuer.example.com","jwks_uri":"https://issuer.example.com/keys"}`,
		`{"issuer":"https://issuer.example.com","issuer":"https://other.example","jwks_uri":"https://x/"}`, `{"issuer":"https://issuer.example.com","jwks_uri":"http://x/"}`, `{"issuer":"https://issuer.example.com/","jwks_uri":"https://x/"}`, `{"issuer":"\u001b[31m"}`, `[]`,
	} {
		f.Add([]byte(document))
	}
	source := testkit.Value(newNetworkSource(Issuer{URL: issuer}, nil))(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := source.discover(t.Context(), &http.Client{Transport: answering(data)}, "")
		if err != nil {
			if text := err.Error(); len(text) > 4<<10 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("the error for %q is %q", data, text)
			}
			return
		}
		var members map[string]json.RawMessage
		var named string
		if json.Unmarshal(data, &members) != nil || json.Unmarshal(members["issuer"], &named) != nil || named != issuer || bytes.Count(data, []byte(`"issuer"`)) > 1 && strings.Count(string(data), issuer) < 1 || keys.Scheme != "https" || keys.Host == "" {
			t.Errorf("%q leads to %s", data, keys)
		}
	})
}
