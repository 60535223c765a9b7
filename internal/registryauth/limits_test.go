package registryauth

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A value that is as long as its limit is allowed.
func TestLimitsThemselvesAreAllowed(t *testing.T) {
	t.Parallel()
	form := strings.Repeat("a", MaxBodyBytes)
	for name, length := range map[string]int64{"with its length": MaxBodyBytes, "in chunks": -1} {
		r := httptest.NewRequest(http.MethodPost, "/token", strings.NewReader(form))
		r.ContentLength = length
		if body, err := readBody(r); err != nil || body != form {
			t.Errorf("the longest body, %s: %d bytes, %v", name, len(body), err)
		}
	}
	if body, err := readBody(&http.Request{}); err != nil || body != "" {
		t.Errorf("no body: %q, %v", body, err)
	}
	if _, err := parseQuery(&http.Request{URL: &url.URL{RawQuery: strings.Repeat("&", MaxBodyBytes)}}); err != nil && strings.Contains(err.Error(), "longer than") {
		t.Errorf("the longest query: %v", err)
	}
	var actions []string
	for i := range maxActions {
		actions = append(actions, strings.Repeat("a", i+1))
	}
	if s, err := ParseScope("repository:a:" + strings.Join(actions, ",")); err != nil || len(s.Actions) != maxActions {
		t.Errorf("the most actions: %v", err)
	}
	first, last := strings.Join(actions[:8], ","), strings.Join(actions[8:], ",")
	if scopes, malformed, _ := ReadScopes([]string{"repository:a:" + first, "repository:a:" + last}); len(malformed) > 0 || len(scopes) != 1 || len(scopes[0].Actions) != maxActions {
		t.Errorf("the most actions in two scopes: %v, %v", scopes, malformed)
	}
	scope := strings.Repeat("a", maxQuotedBytes)
	if err := invalidScope(scope, "b"); strings.Contains(err.Error(), "...") {
		t.Errorf("the longest quoted scope: %v", err)
	}
	if text := strings.Repeat("a", maxMalformedBytes); shortText(text) != text {
		t.Errorf("the longest malformed scope: %s", shortText(text))
	}
}

func TestCharactersAtTheEdgesOfTheirRanges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		accepts func(string) bool
		yes, no []string
	}{
		"host":        {isHost, []string{"a-b.c", "AZ.az09", "a:09", strings.Repeat("a", maxHostBytes-2) + ".b"}, []string{"a@b.c", "a[b.c", "a/b.c", "a{b.c", "a:/", "a::"}},
		"action":      {isAction, []string{"az"}, []string{"a{", "a`"}},
		"token":       {isToken68, []string{"AZaz09-._~+/="}, []string{"[", "@", "`", "{", ":"}},
		"text":        {func(s string) bool { return shortText(s) == s }, []string{"!~"}, []string{"a b", "a\x7f", "ä"}},
		"description": {func(s string) bool { return description(s) == s }, []string{" ~"}, []string{"\x7f", "\x1f", "\\"}},
		"quoted":      {func(s string) bool { return quotedString(s) == `"`+s+`"` }, []string{" ~"}, []string{"\x7f", "\x1f", "\\"}},
		"unescaped":   {func(s string) bool { u, err := unescape(s); return err == nil && u == s }, []string{"a-b"}, []string{"+a", "%20"}},
		"name":        {func(s string) bool { return !strings.Contains(nameFault(s), "lower case") }, []string{"az"}, []string{"aZ", "aA"}},
	} {
		for _, s := range test.yes {
			if !test.accepts(s) {
				t.Errorf("%s: %q", name, s)
			}
		}
		for _, s := range test.no {
			if test.accepts(s) {
				t.Errorf("%s: not %q", name, s)
			}
		}
	}
}

func TestSchemesOfFiveLetters(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("a:b"))
	if _, _, _, err := parseAuthorization([]string{"bASIC " + basic}); err != nil {
		t.Error(err)
	}
	for _, scheme := range []string{"Token", "Basix", "Bearex"} {
		if _, _, _, err := parseAuthorization([]string{scheme + " " + basic}); err == nil || !strings.Contains(err.Error(), "want the scheme") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}
