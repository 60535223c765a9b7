// Package tokentest makes the hostile tokens of internal/oidc/testdata/corpus.
//
// A file of the corpus is a list of sections. A section says why its tokens are refused and cites
// the source. Each case changes something about a genuine token of a real API server. Texts may
// hold ${TEXT*N}, which repeats a text, ${hex:FF}, which is bytes, and ${genuine}, ${header},
// ${payload} and ${signature}, which are the genuine token and its encoded parts.
package tokentest

import (
	"bytes"
	"cmp"
	"crypto"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Case is a token that must be refused.
type Case struct {
	Name    string   // unique; begins with the name of the file
	Cites   []string // such as "RFC 8725 3.1"
	Threats []string
	Token   string
	Refused string // the reason
	Message string // a part of the message

	JWK, Algorithm string // of an example of an RFC: the key that verifies it
}

type section struct {
	Why     string
	Cites   []string
	Threats []string
	Refused string // default of the cases, as the message
	Message string
	Cases   []recipe
}

// recipe is a case as written in a file. Each field changes the genuine token.
type recipe struct {
	Name      string
	Key       string   // the signing key; default: rsa
	KID       string   // default: the name of the key
	Header    string   // default: alg and kid of the key
	Kind      string   // a file of testdata/tokens; default: kubelet
	Edit      []string // texts to find in the payload, each followed by its replacement
	Payload   string   // all of it, instead of Kind and Edit
	Loose     string   // header, payload or signature: the unused bits at the end of the part are set
	Signature string   // see signature
	Token     string   // all of it, instead of the fields above
	Refused   string
	Message   string
	JWK       string
	Algorithm string
}

// Cases reads the files of a corpus and makes their tokens. The keys must be called rsa, rsa2,
// ec256, ec384 and ec521. The issuer must publish all but rsa2.
func Cases(tb testing.TB, testdata string, keys map[string]crypto.Signer) []Case {
	tb.Helper()
	files := testkit.Value(filepath.Glob(filepath.Join(testdata, "corpus", "tokens", "*.yaml")))(tb)
	m := maker{tb, testdata, keys}
	var all []Case
	for _, file := range files {
		var sections []section
		Read(tb, file, &sections)
		for _, s := range sections {
			if s.Why == "" || len(s.Cites) == 0 {
				tb.Fatalf("%s: a section needs why and cites: %+v", file, s)
			}
			for _, r := range s.Cases {
				c := Case{strings.TrimSuffix(filepath.Base(file), ".yaml") + ": " + r.Name, s.Cites, s.Threats, m.token(r), r.Refused, r.Message, r.JWK, r.Algorithm}
				c.Refused = cmp.Or(c.Refused, s.Refused)
				c.Message = cmp.Or(c.Message, s.Message)
				all = append(all, c)
			}
		}
	}
	return all
}

// Read reads a YAML file. Unknown fields are errors.
func Read(tb testing.TB, file string, into any) {
	tb.Helper()
	data := testkit.Value(os.ReadFile(file))(tb)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		tb.Fatalf("%s: a second document: %v", file, err)
	}
}

// Payload returns the claims of tokens/KIND.json in compact JSON. Each pair of edits replaces a
// text in it, which must occur once.
func Payload(tb testing.TB, testdata, kind string, edits ...string) string {
	tb.Helper()
	var claims map[string]json.RawMessage
	testkit.Must(tb, json.Unmarshal([]byte(testkit.Read(tb, filepath.Join(testdata, "tokens", kind+".json"))), &claims))
	compact := testkit.Value(json.Marshal(claims))(tb)
	text := string(compact)
	for n := 0; n < len(edits); n += 2 {
		if strings.Count(text, edits[n]) != 1 {
			tb.Fatalf("%q occurs %d times in %s", edits[n], strings.Count(text, edits[n]), text)
		}
		text = strings.Replace(text, edits[n], edits[n+1], 1)
	}
	return text
}

type maker struct {
	tb       testing.TB
	testdata string
	keys     map[string]crypto.Signer
}

func (m maker) token(r recipe) string {
	m.tb.Helper()
	if r.Token != "" {
		return m.expand(r.Token)
	}
	r.Key = cmp.Or(r.Key, "rsa")
	r.KID = cmp.Or(r.KID, r.Key)
	r.Kind = cmp.Or(r.Kind, "kubelet")
	private := m.keys[r.Key]
	header, payload := m.expand(r.Header), m.expand(r.Payload)
	if r.Header == "" {
		header = fmt.Sprintf(`{"alg":%q,"kid":%q}`, Algorithm(private), r.KID)
	}
	if r.Payload == "" {
		for n := range r.Edit {
			r.Edit[n] = m.expand(r.Edit[n])
		}
		payload = Payload(m.tb, m.testdata, r.Kind, r.Edit...)
	}
	signed := encode(header, r.Loose == "header") + "." + encode(payload, r.Loose == "payload")
	return signed + "." + encode(string(m.signature(r.Signature, private, signed)), r.Loose == "signature")
}

// Encode returns a part of a token.
func Encode(part string) string { return encode(part, false) }

func encode(part string, isLoose bool) string {
	if isLoose && strings.HasSuffix(part, "}") {
		part += strings.Repeat(" ", 2-len(part)%3) // JSON may end with blanks
	}
	encoded := base64.RawURLEncoding.EncodeToString([]byte(part))
	if !isLoose {
		return encoded
	}
	if len(part)%3 == 0 {
		panic("no bits are unused")
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, encoded[len(encoded)-1])
	return encoded[:len(encoded)-1] + string(alphabet[last|1])
}

var placeholder = regexp.MustCompile(`\$\{([^}]+?|hex:[^}]+?)(?:\*([0-9]+))?\}`)

func (m maker) expand(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		parts := placeholder.FindStringSubmatch(found)
		value := parts[1]
		if digits, isHex := strings.CutPrefix(value, "hex:"); isHex {
			decoded, err := hex.DecodeString(digits)
			testkit.Must(m.tb, err)
			value = string(decoded)
		}
		if parts[2] != "" {
			n, err := strconv.Atoi(parts[2])
			testkit.Must(m.tb, err)
			return strings.Repeat(value, n)
		}
		genuine := func(part int) string { return strings.Split(m.token(recipe{}), ".")[part] }
		switch parts[1] {
		case "genuine":
			return m.token(recipe{})
		case "header":
			return genuine(0)
		case "payload":
			return genuine(1)
		case "signature":
			return genuine(2)
		}
		if !strings.HasPrefix(parts[1], "hex:") {
			m.tb.Fatalf("%s is not known", found)
		}
		return value
	})
}
