package gateway

import (
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The remembered result for a token ends with the token, and is that of one issuer and service.
func TestJudgedTokensEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "i", Service: "s", Lifetime: time.Minute, Keys: keys, NamesHolder: true})
	testkit.Must(t, err)
	issued := testkit.Value(issuer.Issue(registryauth.Grant{}))(t)
	now := time.Now()
	j := &judge{issuer: "i", service: "s", keys: keys, now: func() time.Time { return now }, judged: newJudged(), latest: &latestTrust{}}
	if _, err := j.verify(issued.Value); err != nil {
		t.Fatal(err)
	}
	for _, other := range []judge{{issuer: "other", service: "s"}, {issuer: "i", service: "other"}} { // as after a reload
		other.keys, other.now, other.judged, other.latest = j.keys, j.now, j.judged, j.latest
		_, known := other.known(issued.Value)
		if _, err := other.verify(issued.Value); known || err == nil {
			t.Errorf("issuer %s, service %s: known %t, %v", other.issuer, other.service, known, err)
		}
	}
	for after, want := range map[time.Duration]bool{0: true, 119 * time.Second: true, 121 * time.Second: false, -59 * time.Second: true, -62 * time.Second: false} {
		now = time.Now().Add(after)
		if _, known := j.known(issued.Value); known != want {
			t.Errorf("after %s: %t", after, known)
		}
	}
}

// changing are keys whose trust the test changes.
type changing struct {
	signing.Keys
	bundle signing.TrustBundle
}

func (c *changing) Trusted() signing.TrustBundle { return c.bundle }

func (c *changing) Signing() (*signing.SigningKey, error) { return nil, signing.ErrNoSigningKey }

// A remembered token is judged again within a second of a change of what is trusted.
func TestJudgedTokensEndWithTheirTrust(t *testing.T) {
	t.Parallel()
	jwk := func() jose.JSONWebKey {
		key := pkitest.ECKey(t)
		jwk := jose.JSONWebKey{Key: key.Public(), Algorithm: string(jose.ES256)}
		print := testkit.Value(jwk.Thumbprint(crypto.SHA256))(t)
		jwk.KeyID = base64.RawURLEncoding.EncodeToString(print)
		return jwk
	}
	bundle := func(ca *pkitest.Cert, keys ...jose.JSONWebKey) signing.TrustBundle {
		return signing.TrustBundle{JWKS: jose.JSONWebKeySet{Keys: keys}, Certificates: []*x509.Certificate{ca.Certificate}}
	}
	first, second := jwk(), jwk()
	ca, other := pkitest.NewAuthority(t, "ca").Cert, pkitest.NewAuthority(t, "ca").Cert
	for name, test := range map[string]struct {
		after signing.TrustBundle
		known bool
	}{
		"no change":   {bundle(ca, first), true},
		"a key more":  {bundle(ca, first, second), false},
		"no key":      {bundle(ca), false},
		"another key": {bundle(ca, second), false},
		"another CA":  {bundle(other, first), false},
		"no CA":       {signing.TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{first}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			keys := &changing{bundle: bundle(ca, first)}
			j := &judge{keys: keys, now: func() time.Time { return now }, judged: newJudged(), latest: &latestTrust{}}
			credential := registryauth.NewSecret("token")
			j.judged.Add(credential.Hash(), &judgedToken{bearer: bearer{until: now.Add(time.Hour)}, by: j.trusted()})
			keys.bundle = test.after
			now = now.Add(trustAge)
			if _, known := j.known(credential); known != test.known {
				t.Errorf("known: %t", known)
			}
		})
	}
}

// A trusted key verifies only the algorithms that Pullpass signs with, and never serves as an HMAC secret.
func TestOtherAlgorithms(t *testing.T) {
	t.Parallel()
	key := pkitest.RSAKey(t)
	public := testkit.Value(x509.MarshalPKIXPublicKey(key.Public()))(t)
	trusted := jose.JSONWebKey{Key: key.Public(), KeyID: "kid"}
	j := &judge{
		issuer: "i", service: "s", now: time.Now, judged: newJudged(), latest: &latestTrust{},
		keys: &changing{bundle: signing.TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{trusted}}}},
	}
	for algorithm, by := range map[jose.SignatureAlgorithm]any{
		jose.RS256: key, jose.RS384: key, jose.RS512: key, jose.PS256: key,
		jose.HS256: public, jose.HS512: public,
	} {
		signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: by}, (&jose.SignerOptions{}).WithHeader("kid", "kid")))(t)
		now := time.Now().Unix()
		raw, err := jwt.Signed(signer).Claims(map[string]any{"iss": "i", "aud": "s", "iat": now, "nbf": now, "exp": now + 60, "jti": "x", "access": []any{}}).Serialize()
		testkit.Must(t, err)
		if _, err := j.verify(registryauth.NewSecret(raw)); (err == nil) != (algorithm == jose.RS256) {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}

// A token has a subject and a holder, or neither. A claim in another form is refused, not left out.
func TestClaimsOfTokens(t *testing.T) {
	t.Parallel()
	key := pkitest.RSAKey(t)
	j := &judge{
		issuer: "i", service: "s", now: time.Now, judged: newJudged(), latest: &latestTrust{},
		keys: &changing{bundle: signing.TrustBundle{JWKS: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "kid"}}}}},
	}
	signer := testkit.Value(jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "kid")))(t)
	scope := map[string]any{"type": "repository", "name": "a", "actions": []string{"pull"}}
	for name, test := range map[string]struct {
		subject string
		own     any
		access  []any
		want    int // scopes; -1: refused
	}{
		"neither":                    {"", nil, []any{scope}, 1},
		"both":                       {"sub", map[string]any{"cluster": "c"}, []any{scope}, 1},
		"no holder":                  {"sub", nil, []any{scope}, -1},
		"no subject":                 {"", map[string]any{"cluster": "c"}, []any{scope}, -1},
		"a holder in another form":   {"sub", "c", []any{scope}, -1},
		"a holder with another form": {"sub", map[string]any{"cluster": 1, "namespace": "n"}, []any{scope}, -1},
		"a scope that is not there":  {"sub", map[string]any{"cluster": "c"}, []any{nil, scope}, 1},
	} {
		now := time.Now().Unix()
		claims := map[string]any{"iss": "i", "aud": "s", "iat": now, "nbf": now, "exp": now + 60, "jti": "x", "access": test.access, "sub": test.subject}
		if test.own != nil {
			claims["pullpass"] = test.own
		}
		raw := testkit.Value(jwt.Signed(signer).Claims(claims).Serialize())(t)
		found, err := j.verify(registryauth.NewSecret(raw))
		if (err != nil) != (test.want < 0) || err == nil && len(found.access) != test.want {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}

// counting are keys that count how often they are asked.
type counting struct {
	signing.Keys
	asked int
	by    *signing.SigningKey
}

func (c *counting) Signing() (*signing.SigningKey, error) { return c.by, nil }

func (c *counting) Trusted() signing.TrustBundle {
	c.asked++
	return signing.TrustBundle{}
}

// Keys are asked once a second, also by the next judge, and at once if the keys or the one that signs have changed.
func TestTrustIsAskedForOnceASecond(t *testing.T) {
	t.Parallel()
	now := time.Now()
	latest := &latestTrust{}
	judgeOf := func(keys signing.Keys) *judge {
		return &judge{keys: keys, now: func() time.Time { return now }, latest: latest}
	}
	first, second := &counting{}, &counting{}
	judgeOf(first).trusted()
	now = now.Add(trustAge - 1)
	judgeOf(first).trusted()
	if first.asked != 1 {
		t.Errorf("within a second: asked %d times", first.asked)
	}
	now = now.Add(1)
	judgeOf(first).trusted()
	judgeOf(second).trusted()
	if first.asked != 2 || second.asked != 1 {
		t.Errorf("after it: asked %d times, and the next keys %d times", first.asked, second.asked)
	}
	second.by = &signing.SigningKey{}
	judgeOf(second).trusted()
	judgeOf(second).trusted()
	if second.asked != 2 {
		t.Errorf("of a key that now signs: asked %d times", second.asked)
	}
}

// An error that no part of the gateway makes is one of its own.
func TestUnknownErrors(t *testing.T) {
	t.Parallel()
	q := &request{body: &clientBody{}, http: httptest.NewRequest(http.MethodGet, "/v2/", nil), event: &exchange.Event{ID: "id-1", Gateway: &exchange.GatewayRequest{}}}
	if r := (&Handler{Config: Config{Logger: testkit.QuietLogger()}}).classify(q, errors.New("other")); r.reason != refusal.InternalError || !strings.Contains(r.message, "id-1") {
		t.Errorf("%+v", r)
	}
}
