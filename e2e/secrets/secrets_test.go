package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
)

func TestFound(t *testing.T) {
	t.Parallel()
	token := rand.Text() + rand.Text()
	for name, data := range map[string]string{
		"whole":                      token,
		"in the middle":              "before " + token + " after",
		"its beginning":              token[:pieceLength],
		"a part":                     token[7 : 7+pieceLength+pieceStep-1],
		"its end":                    token[len(token)-pieceLength-pieceStep:],
		"hex":                        hex.EncodeToString([]byte(token)),
		"base64":                     base64.StdEncoding.EncodeToString([]byte(token)),
		"base64 for URLs":            base64.RawURLEncoding.EncodeToString([]byte(token)),
		"Basic, with one byte more":  base64.StdEncoding.EncodeToString([]byte("a" + token)),
		"Basic, with two bytes more": base64.StdEncoding.EncodeToString([]byte("a:" + token)),
	} {
		if Found([]byte(data), "another-credential-of-somebody", token) == "" {
			t.Errorf("%s: %q was not found in %q", name, token, data)
		}
	}
	for name, data := range map[string]string{
		"nothing":       "",
		"another token": rand.Text() + rand.Text(),
		"the id of it":  strings.ToLower(token[:8]),
		"a few letters": token[:pieceLength-1],
	} {
		if piece := Found([]byte(data), token); piece != "" {
			t.Errorf("%s: %q was found in %q", name, piece, data)
		}
	}
	if Found([]byte("text"), "") != "" {
		t.Error("no credential was found")
	}
}
