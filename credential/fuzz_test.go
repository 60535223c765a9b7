package credential

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var kinds = []error{ErrMissing, ErrMalformed, ErrAudience, ErrNotYetValid, ErrExpired}

// Another decoder must find the same credential in each accepted input.
func FuzzInspect(f *testing.F) {
	f.Add(sign(f, kubeletClaims(nil)))
	f.Add(sign(f, kubeletClaims(map[string]any{"aud": audienceInTests})))
	f.Add(sign(f, kubeletClaims(map[string]any{"aud": []string{"https://127.0.0.1:6443"}})))
	f.Add(sign(f, kubeletClaims(map[string]any{"exp": 1})))
	f.Add(sign(f, map[string]any{"iss": legacyIssuer}))
	f.Add(pkitest.Token(f, []byte(`{"iss":"a","iss":"b"}`)))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		expiry, err := inspect(token, audienceInTests, now)
		if err != nil {
			if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
				t.Errorf("error %v is of no kind", err)
			}
			return
		}
		for i := range len(token) {
			if c := token[i]; c != '.' && !strings.Contains("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", string(c)) {
				t.Errorf("accepted a token with %q", c)
			}
		}
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
		testkit.Must(t, err)
		var claims map[string]any
		decoder := json.NewDecoder(bytes.NewReader(payload))
		decoder.UseNumber()
		testkit.Must(t, decoder.Decode(&claims))
		list, isList := claims["aud"].([]any)
		if claims["aud"] != audienceInTests && !(isList && slices.Contains(list, any(audienceInTests))) {
			t.Errorf("accepted audience %v", claims["aud"])
		}
		number, _ := claims["exp"].(json.Number)
		if seconds, err := number.Int64(); err != nil || !expiry.Equal(time.Unix(seconds, 0)) {
			t.Errorf("expiry %s, claim %v", expiry, claims["exp"])
		}
	})
}

func FuzzFromCSI(f *testing.F) {
	token := sign(f, kubeletClaims(nil))
	f.Add(`{"registry.example.com":{"token":"` + token + `","expirationTimestamp":"2026-11-21T05:00:00Z"}}`)
	f.Add(`{"registry.example.com":{"token":"` + token + `","expiry":"2026-11-21T05:00:00Z"},"vault":{}}`)
	f.Add(`{"registry.example.com":{"token":"","expirationTimestamp":null}}`)
	f.Add(`{"":{},"":{}}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, tokens string) {
		c, err := FromCSI(map[string]string{tokensKey: tokens}, audienceInTests, now)
		if err != nil {
			if c.Password() != "" || !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
				t.Errorf("error %v is of no kind, or came with a credential", err)
			}
			return
		}
		var entries map[string]map[string]any // struct fields would match names in any case
		testkit.Must(t, json.Unmarshal([]byte(tokens), &entries))
		if c.Password() != entries[audienceInTests]["token"] {
			t.Errorf("password %q, token %q", c.Password(), entries[audienceInTests]["token"])
		}
		if !now.Before(c.Expiry) {
			t.Errorf("accepted with expiry %s", c.Expiry)
		}
	})
}

// members takes and gives what encoding/json does, but for names that are there
// twice.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{}`, ` {"a" : 1 , "b":{"c":[null]}} `, `{"a":1,"a":2}`, `{"a":1,}`, `{"a"}`, `{"a":1}{}`, `{"a":1 "b":2}`, `[]`, `null`, "{\"\xff\":1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		got, err := members(object)
		var want map[string]json.RawMessage
		wantErr := json.Unmarshal(object, &want)
		switch {
		case err == nil && (wantErr != nil || want == nil):
			t.Errorf("accepted %q: %v", object, wantErr)
		case errors.Is(err, errNoObject) && wantErr == nil && want != nil:
			t.Errorf("refused %q", object)
		case err == nil && !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }):
			t.Errorf("%q is %s, want %s", object, got, want)
		}
	})
}
