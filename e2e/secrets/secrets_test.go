package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
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
	if piece := Found([]byte(publicPrefix+"SEALED"), publicPrefix+token); piece != "" {
		t.Errorf("the public prefix %q was found", piece)
	}
	if Found([]byte("text"), "") != "" {
		t.Error("no credential was found")
	}
}

// All forms that Found finds are found in one pass, each with the credential whose it is.
func TestIndex(t *testing.T) {
	t.Parallel()
	x := newIndex()
	first, second := rand.Text()+"/a+b&\""+rand.Text(), rand.Text()+rand.Text()
	x.add("first", first)
	x.add("second", second)
	for _, form := range forms(second) {
		data := rand.Text() + form[:pieceLength+pieceStep-1] + rand.Text()
		if got := x.Search("file", []byte(data)); len(got) != 1 || got[0].Credential != 1 || got[0].Offset != 26 {
			t.Errorf("%v in %q", got, data)
		}
	}
	for _, form := range forms(first) {
		if got := x.Search("file", []byte(form)); len(got) != 1 || got[0].Credential != 0 {
			t.Errorf("%v in %q", got, form)
		}
	}
	if got := x.Search("file", []byte(rand.Text()+second[:pieceLength-1])); got != nil {
		t.Errorf("%v", got)
	}
	token := "eyJhbGciOiJFUzI1NiJ9eyJhbGciOiJ.eyJpc3MiOiJpc3MiLCJzdWIiOiJzdWIi." + strings.Repeat("A", 86)
	for data, kind := range map[string]string{
		"the token " + token + ".": "signed token",
		"-----BEGIN PRIVATE KEY-----\n" + token[:20] + strings.Repeat("A", 44): "private key",
	} {
		if got := x.Search("file", []byte(data)); len(got) != 1 || got[0].Kind != kind || got[0].Credential >= 0 {
			t.Errorf("%v in %q", got, data)
		}
	}
}

// The search reads the files that helpers write.
func TestSearchRun(t *testing.T) {
	directory := t.TempDir()
	t.Setenv(Variable, directory)
	if err := os.Mkdir(filepath.Join(directory, seenDir), 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	token := rand.Text()
	Note("token", token, "", token)
	NoteKey(key)
	fmt.Fprint(Seen("log"), "before "+token)
	fmt.Fprint(Seen("log"), "before ", hex.EncodeToString(scalar))
	fmt.Fprint(Seen("dir/log"), "nothing")
	x, err := ReadIndex(directory)
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Credentials(); len(got) != 2 || got["token"] != 1 || got["ECDSA key"] != 1 {
		t.Errorf("%v", got)
	}
	findings, files, size, err := x.SearchRun(directory)
	if err != nil || files != 3 || size != 7+26+7+64+7 {
		t.Errorf("%d files of %d bytes, %v", files, size, err)
	}
	if len(findings) != 2 || findings[0].Kind == findings[1].Kind {
		t.Errorf("%v", findings)
	}
	for _, f := range findings {
		if f.Offset != 7 || strings.Contains(f.String(), token[:pieceLength]) {
			t.Errorf("%v", f)
		}
	}
}
