package oidc

import (
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
	"github.com/pullpass/pullpass/internal/test/tokentest"
)

// keySetSection is a section of testdata/corpus/keysets.yaml.
type keySetSection struct {
	Why     string
	Cites   []string
	Threats []string
	Signer  string // of the token; default of the cases
	Refused string // the reason; default: the key does not count
	Cases   []struct {
		Name   string
		Key    string // JSON
		Times  int    // how often it is in the set; default: once
		Signer string
		Forged string // cube-root: the signature is a forgery
		Cause  string // a part of the message, or of the cause of the outage
		Spoils bool   // a good key beside it does not count either
	}
}

func keySetSections(tb testing.TB) (all []keySetSection) {
	tb.Helper()
	tokentest.Read(tb, "testdata/corpus/keysets.yaml", &all)
	return all
}

// A key that is weak, malformed or for another purpose verifies no token. It does not spoil the
// good keys beside it.
func TestCorpusOfKeySets(t *testing.T) {
	t.Parallel()
	body := payload(t, "kubelet")
	tried := 0
	for _, s := range keySetSections(t) {
		for _, c := range s.Cases {
			tried++
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, nil)
				pair := pairNamed(cmp.Or(c.Signer, s.Signer))
				pair.id = "K"
				raw := pair.sign(t, body)
				if c.Forged != "" {
					raw = cubeRoot(pair, `{"alg":"RS256","kid":"K"}`, body)
				}
				set := expandKey(t, strings.TrimSuffix(strings.Repeat(c.Key+",", max(1, c.Times)), ","))
				good := keys().ec521
				for name, document := range map[string]string{
					"alone":  `{"keys":[` + set + `]}`,
					"beside": `{"keys":[` + jwkJSON(t, good.jwk()) + `,` + set + `]}`,
				} {
					testkit.Put(t, f.file, document)
					ring := &keyring{fetch: f.issuers[0].keys.fetch, interval: fileInterval, maxAge: networkInterval, now: f.clock.Now, log: f.Verifier.log}
					f.issuers[0].keys = ring
					isDown := s.Refused == "" && (name == "alone" || c.Spoils)
					switch {
					case s.Refused != "":
						refuse(t, f.Verifier, raw, refusal.Reason(s.Refused), c.Cause)
					case isDown:
						failure := refuse(t, f.Verifier, raw, refusal.IssuerUnavailable, "cannot be read at the moment")
						if !strings.Contains(failure.Err.Error(), c.Cause) {
							t.Errorf("cause %v, want %q", failure.Err, c.Cause)
						}
					default:
						refuse(t, f.Verifier, raw, refusal.TokenUnknownKey, "")
					}
					if name == "beside" && !isDown {
						accept(t, f.Verifier, good.sign(t, body))
					}
					if n := f.Status()[0].Fetches; n != 1 {
						t.Errorf("%s: %d fetches", name, n)
					}
				}
			})
		}
	}
	if tried < 80 {
		t.Errorf("only %d key sets", tried)
	}
	t.Logf("%d key sets", tried)
}

var keyMembers = []string{"rsa", "rsa2", "small", "ec256", "ec384"}

func pairNamed(name string) keyPair {
	k := keys()
	return map[string]keyPair{"rsa": k.rsa, "rsa2": k.rsa2, "small": k.rsaSmall, "ec256": k.ec256, "ec384": k.ec384}[name]
}

var keyMember = regexp.MustCompile(`\$\{(\w+)\.(\w+)\}|\$\{(.)\*(\d+)\}`)

// expandKey replaces ${KEY.MEMBER} and ${LETTER*N}.
func expandKey(t *testing.T, text string) string {
	t.Helper()
	members := map[string]map[string]any{}
	for _, name := range keyMembers {
		var one map[string]any
		testkit.Must(t, json.Unmarshal([]byte(jwkJSON(t, jose.JSONWebKey{Key: pairNamed(name).private})), &one))
		members[name] = one
	}
	return keyMember.ReplaceAllStringFunc(text, func(found string) string {
		parts := keyMember.FindStringSubmatch(found)
		if n, err := strconv.Atoi(parts[4]); err == nil {
			return strings.Repeat(parts[3], n)
		}
		value, ok := members[parts[1]][parts[2]].(string)
		if !ok {
			t.Fatalf("%s is not known", found)
		}
		return value
	})
}

// cubeRoot forges a signature for the exponent 3 without the private key: the cube of the number
// begins with the right padding and digest, and ends with anything (CVE-2006-4339).
func cubeRoot(pair keyPair, header, body string) string {
	signed := encode(header) + "." + encode(body)
	digest := sha256.Sum256([]byte(signed))
	// A genuine signature shows the padding.
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		panic(err)
	}
	genuine, err := rsa.SignPKCS1v15(nil, small, crypto.SHA256, digest[:])
	if err != nil {
		panic(err)
	}
	padded := new(big.Int).Exp(new(big.Int).SetBytes(genuine), big.NewInt(int64(small.E)), small.N).FillBytes(make([]byte, small.Size()))
	suffix := padded[slices.Index(padded[1:], 0)+1:] // 00, the name of the hash, the digest
	size := pair.private.Public().(*rsa.PublicKey).Size()
	wanted := slices.Concat([]byte{0, 1, 255, 255, 255, 255, 255, 255, 255, 255}, suffix)
	most := new(big.Int).SetBytes(append(wanted, slices.Repeat([]byte{255}, size-len(wanted))...))
	root := new(big.Int).Sqrt(most) // above the root
	for low := new(big.Int); ; {
		middle := new(big.Int).Add(low, root)
		middle.Rsh(middle, 1)
		if middle.Cmp(low) == 0 {
			break
		}
		if new(big.Int).Exp(middle, big.NewInt(3), nil).Cmp(most) > 0 {
			root = middle
		} else {
			low = middle
		}
	}
	root.Sub(root, big.NewInt(1))
	cube := new(big.Int).Exp(root, big.NewInt(3), nil).FillBytes(make([]byte, size))
	if !slices.Equal(cube[:len(wanted)], wanted) {
		panic("not a forgery")
	}
	return signed + "." + encode(string(root.FillBytes(make([]byte, size))))
}
