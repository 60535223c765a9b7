package gateway

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// No signature is verified with a key that a client chose: one such token took a second.
func TestKeysOfClients(t *testing.T) {
	t.Parallel()
	root, other := pkitest.NewAuthority(t, "root"), pkitest.NewAuthority(t, "other")
	leaf := pkitest.NewCA(t, root.Cert, pkitest.CaNamed("leaf"))
	by := &trust{certificates: []*x509.Certificate{root.Certificate}}
	chain := func(certs ...*x509.Certificate) string {
		ders := [][]byte{}
		for _, c := range certs {
			ders = append(ders, c.Raw)
		}
		return string(testkit.Value(json.Marshal(ders))(t))
	}
	good, forged := chain(leaf.Certificate), chain(other.Certificate)
	for header, want := range map[string]bool{
		`{"alg":"ES256","kid":"1"}`:                                  true,
		`{"x5c":` + good + `}`:                                       true,
		`{"x5c":` + forged + `}`:                                     false,
		`{"x5c":` + chain(leaf.Certificate, other.Certificate) + `}`: false,
		`{"X5C":` + good + `,"x5c":` + forged + `}`:                  false,
		`{"x5c":` + good + `,"x5c":` + forged + `}`:                  false,
		`{"x5c":` + good + `,"jwk":{}}`:                              false,
		`{"jwk":null}`:                                               false,
		`{"x5c":["AAAA"]}`:                                           false,
		`{"x5c":"AAAA"}`:                                             false,
		`{`:                                                          false,
		`{"x5c":` + chain(leaf.Certificate, root.Certificate, root.Certificate, root.Certificate, root.Certificate) + `}`:                   true,
		`{"x5c":` + chain(leaf.Certificate, root.Certificate, root.Certificate, root.Certificate, root.Certificate, root.Certificate) + `}`: false,
	} {
		if got := by.mayLead(base64.RawURLEncoding.EncodeToString([]byte(header)) + ".e30.AA"); got != want {
			t.Errorf("%s: %t", header, got)
		}
	}
	j := &judge{
		issuer: "i", service: "s", now: time.Now, judged: newJudged(), latest: &latestTrust{},
		keys: &changing{bundle: signing.TrustBundle{Certificates: by.certificates}},
	}
	for certs, want := range map[string]bool{good: true, chain(leaf.Certificate, root.Certificate, root.Certificate, root.Certificate, root.Certificate, root.Certificate): false} {
		options := (&jose.SignerOptions{}).WithHeader("x5c", json.RawMessage(certs))
		signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: leaf.Key}, options))(t)
		text := testkit.Value(jwt.Signed(signer).Claims(map[string]any{"iss": "i", "aud": "s", "exp": time.Now().Add(time.Hour).Unix()}).Serialize())(t)
		if _, err := j.verify(registryauth.NewSecret(text)); (err == nil) != want {
			t.Errorf("a good signature: %v", err)
		}
	}
	if by.mayLead("e30g!.e30.AA") {
		t.Error("not base64url")
	}
}

// A chain vouches in any order, as long as trusted keys lead to all of it.
func TestChains(t *testing.T) {
	t.Parallel()
	root, other := pkitest.NewAuthority(t, "root"), pkitest.NewAuthority(t, "other")
	upper := pkitest.NewCA(t, root.Cert, pkitest.CaNamed("upper"))
	lower := pkitest.NewCA(t, upper, pkitest.CaNamed("lower"))
	leaf := pkitest.NewCA(t, lower, pkitest.CaNamed("leaf"))
	j := &trust{certificates: []*x509.Certificate{root.Certificate}}
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  bool
	}{
		"leaf first":          {[]*x509.Certificate{leaf.Certificate, lower.Certificate, upper.Certificate}, true},
		"another order":       {[]*x509.Certificate{leaf.Certificate, upper.Certificate, lower.Certificate}, true},
		"one more":            {[]*x509.Certificate{leaf.Certificate, other.Certificate, lower.Certificate, upper.Certificate}, false},
		"the root alone":      {[]*x509.Certificate{root.Certificate}, true},
		"with a gap":          {[]*x509.Certificate{leaf.Certificate, upper.Certificate}, false},
		"of another root":     {[]*x509.Certificate{other.Certificate}, false},
		"the other one first": {[]*x509.Certificate{other.Certificate, leaf.Certificate, lower.Certificate, upper.Certificate}, false},
		"the same name only":  {[]*x509.Certificate{pkitest.NewAuthority(t, "root").Certificate}, false},
	} {
		if got := j.vouchesFor(test.chain); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
