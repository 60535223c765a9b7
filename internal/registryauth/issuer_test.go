package registryauth

import (
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestDistributionAcceptsEveryToken(t *testing.T) {
	t.Parallel()
	shapes := map[string][]Scope{
		"login":      nil,
		"pull":       {{Type: "repository", Name: "team-a/web", Actions: []string{"pull"}}},
		"push":       {{Type: "repository", Name: "team-a/web", Actions: []string{"push", "pull"}}},
		"class":      {{Type: "repository", Class: "plugin", Name: "team-a/web", Actions: []string{"pull"}}},
		"host":       {{Type: "repository", Name: "localhost:5443/team-a/web", Actions: []string{"pull"}}},
		"catalog":    {{Type: "registry", Name: "catalog", Actions: []string{"*"}}},
		"mount":      {{Type: "repository", Name: "b", Actions: []string{"pull", "push"}}, {Type: "repository", Name: "a", Actions: []string{"pull"}}},
		"json signs": {{Type: "repository", Name: `<a>&"b"\` + "\u2028", Actions: []string{"pull"}}},
	}
	for _, algorithm := range issuingAlgorithms {
		for _, trust := range []signing.Trust{signing.TrustCertificate, signing.TrustJWKS} {
			keys := newTestKeys(t, algorithm, trust)
			issuer := newTestIssuer(t, keys, nil)
			registry := newRegistry(t, keys)
			for name, access := range shapes {
				t.Run(fmt.Sprintf("%s/%s/%s", algorithm, trust, name), func(t *testing.T) {
					t.Parallel()
					issued, err := issuer.Issue(Grant{Subject: testSubject, Access: access})
					testkit.Must(t, err)
					got, err := registry.Verify(issued.Value.Reveal())
					if err != nil {
						t.Fatalf("distribution refuses the token: %v", err)
					}
					if got.Subject != testSubject || got.JWTID != issued.ID || got.Expiration != issued.Expiry.Unix() ||
						got.IssuedAt != issued.IssuedAt.Unix() || got.NotBefore != issued.IssuedAt.Unix() {
						t.Errorf("distribution reads %+v from %+v", got, issued)
					}
					if len(got.Access) != len(access) || len(issued.Access) != len(access) {
						t.Fatalf("access has %d entries, granted were %d", len(got.Access), len(access))
					}
					for n, entry := range got.Access {
						want := issued.Access[n]
						if entry.Type != want.Type || entry.Class != want.Class || entry.Name != want.Name || !slices.Equal(entry.Actions, want.Actions) {
							t.Errorf("access %d is %+v, want %+v", n, entry, want)
						}
					}
				})
			}
		}
	}
}

func TestDistributionRefusesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	edit := func(raw string, part int, change func(map[string]any)) string {
		parts := strings.Split(raw, ".")
		fields := testkit.TokenPart(t, raw, part)
		change(fields)
		data := testkit.Value(json.Marshal(fields))(t)
		parts[part] = base64.RawURLEncoding.EncodeToString(data)
		return strings.Join(parts, ".")
	}
	for _, algorithm := range issuingAlgorithms {
		for _, trust := range []signing.Trust{signing.TrustCertificate, signing.TrustJWKS} {
			keys := newTestKeys(t, algorithm, trust)
			other := newTestKeys(t, signing.ES256, trust)
			otherID := issueTestToken(t, newTestIssuer(t, other, nil)).KeyID
			raw := issueTestToken(t, newTestIssuer(t, keys, nil)).Value.Reveal()
			trusted := newRegistry(t, keys)
			signature := strings.LastIndexByte(raw, '.') + 1
			cases := map[string]struct {
				raw      string
				registry signingtest.Registry
			}{
				"other issuer":      {issueTestToken(t, newTestIssuer(t, keys, func(c *IssuerConfig) { c.Issuer = "other" })).Value.Reveal(), trusted},
				"other audience":    {issueTestToken(t, newTestIssuer(t, keys, func(c *IssuerConfig) { c.Service = "other" })).Value.Reveal(), trusted},
				"other trust":       {raw, newRegistry(t, other)},
				"tampered payload":  {edit(raw, 1, func(c map[string]any) { c["sub"] = "system:serviceaccount:team-b:web" }), trusted},
				"tampered header":   {edit(raw, 0, func(h map[string]any) { h["typ"] = "other" }), trusted},
				"key of another":    {edit(raw, 0, func(h map[string]any) { h["kid"] = otherID; delete(h, "x5c") }), newRegistry(t, keys, other)},
				"signature changed": {raw[:signature] + flipped(raw[signature:]), trusted},
				"no signature":      {raw[:signature], trusted},
			}
			if trust == signing.TrustCertificate {
				// A registry that has only a key set refuses x5c, even if it knows the key.
				cases["certificate token, key set registry"] = struct {
					raw      string
					registry signingtest.Registry
				}{raw, newRegistry(t, testKeysOf(t, keys.signer, algorithm, signing.TrustJWKS))}
			}
			for name, c := range cases {
				if _, err := c.registry.Verify(c.raw); err == nil {
					t.Errorf("%s, %s: %s is accepted", algorithm, trust, name)
				}
			}
			if _, err := trusted.Verify(raw); err != nil {
				t.Errorf("%s, %s: the untouched token is refused: %v", algorithm, trust, err)
			}
		}
	}
}

// flipped changes the first character: the last may hold unused bits.
func flipped(s string) string {
	if s[0] == 'A' {
		return "B" + s[1:]
	}
	return "A" + s[1:]
}

func TestDistributionHonoursTheTimes(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newTestKeys(t, signing.ES256, signing.TrustCertificate)
		registry := newRegistry(t, keys)
		issued := issueTestToken(t, newTestIssuer(t, keys, nil)).Value.Reveal()
		early := issueTestToken(t, newTestIssuer(t, keys, func(c *IssuerConfig) {
			c.Now = func() time.Time { return time.Now().Add(token.Leeway + time.Second) }
		})).Value.Reveal()

		if _, err := registry.Verify(early); !errors.Is(err, token.ErrInvalidToken) {
			t.Errorf("a token of the future: %v, want it refused", err)
		}
		time.Sleep(5*time.Minute + token.Leeway)
		if _, err := registry.Verify(issued); err != nil {
			t.Errorf("a token at its end, with leeway: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, err := registry.Verify(issued); !errors.Is(err, token.ErrInvalidToken) {
			t.Errorf("an expired token: %v, want it refused", err)
		}
	})
}

// Tokens that outlive their cause: the end of the incoming token bounds ours.
func TestTokenEndsWithTheGrant(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second).Add(400 * time.Millisecond)
	issuedAt := now.Truncate(time.Second)
	keys := newTestKeys(t, signing.ES256, signing.TrustJWKS)
	issuer := newTestIssuer(t, keys, func(c *IssuerConfig) { c.Now = func() time.Time { return now } })
	for name, c := range map[string]struct{ notAfter, want time.Time }{
		"no end of its own":       {time.Time{}, issuedAt.Add(5 * time.Minute)},
		"incoming lives longer":   {issuedAt.Add(time.Hour), issuedAt.Add(5 * time.Minute)},
		"incoming ends first":     {issuedAt.Add(90 * time.Second), issuedAt.Add(90 * time.Second)},
		"parts of a second":       {issuedAt.Add(90*time.Second + 900*time.Millisecond), issuedAt.Add(90 * time.Second)},
		"exactly the minimum":     {issuedAt.Add(60 * time.Second), issuedAt.Add(60 * time.Second)},
		"less than the minimum":   {issuedAt.Add(10 * time.Second), issuedAt.Add(60 * time.Second)},
		"about to end":            {now.Add(time.Nanosecond), issuedAt.Add(60 * time.Second)},
		"another zone, same time": {issuedAt.Add(90 * time.Second).In(time.FixedZone("", 3600)), issuedAt.Add(90 * time.Second)},
	} {
		issued, err := issuer.Issue(Grant{NotAfter: c.notAfter})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !issued.Expiry.Equal(c.want) || !issued.IssuedAt.Equal(issuedAt) {
			t.Errorf("%s: from %s to %s, want to %s", name, issued.IssuedAt, issued.Expiry, c.want)
		}
		if exp := testkit.TokenPart(t, issued.Value.Reveal(), 1)["exp"].(float64); int64(exp) != issued.Expiry.Unix() {
			t.Errorf("%s: exp is %.0f, want %d", name, exp, issued.Expiry.Unix())
		}
	}
	for name, notAfter := range map[string]time.Time{"now": now, "past": now.Add(-time.Hour)} {
		if _, err := issuer.Issue(Grant{NotAfter: notAfter}); !errors.Is(err, ErrGrantEnded) {
			t.Errorf("an incoming token that ended %s: %v, want ErrGrantEnded", name, err)
		}
	}
}

// A registry checks the certificate at the time of the pull, so a token that
// outlives it would be refused before its end.
func TestTokenEndsWithTheCertificate(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	end := now.Add(2 * time.Minute)
	keys := newTestKeys(t, signing.ES256, signing.TrustCertificate, func(c *x509.Certificate) { c.NotAfter = end })
	issued := issueTestToken(t, newTestIssuer(t, keys, func(c *IssuerConfig) { c.Now = func() time.Time { return now } }))
	if !issued.Expiry.Equal(end) {
		t.Errorf("the token ends at %s, its certificate at %s", issued.Expiry, end)
	}
}

func TestTokenHeader(t *testing.T) {
	t.Parallel()
	for _, algorithm := range issuingAlgorithms {
		for _, trust := range []signing.Trust{signing.TrustCertificate, signing.TrustJWKS} {
			keys := newTestKeys(t, algorithm, trust)
			issued := issueTestToken(t, newTestIssuer(t, keys, nil))
			jwk := jose.JSONWebKey{Key: keys.signer.Public()}
			sum := testkit.Value(jwk.Thumbprint(crypto.SHA256))(t)
			kid := base64.RawURLEncoding.EncodeToString(sum)
			want := map[string]any{"alg": string(algorithm), "typ": "JWT", "kid": kid}
			if trust == signing.TrustCertificate {
				// RFC 7515: standard base64, with padding.
				want["x5c"] = []any{base64.StdEncoding.EncodeToString(keys.cert.Raw)}
			}
			if got := testkit.TokenPart(t, issued.Value.Reveal(), 0); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %s: header %v, want %v", algorithm, trust, got, want)
			}
			if issued.KeyID != kid {
				t.Errorf("KeyID %q, want the RFC 7638 thumbprint %q", issued.KeyID, kid)
			}
		}
	}
}

// Distribution 2 reads aud as a string only, and access must never be null.
func TestTokenClaims(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	issuer := newTestIssuer(t, newTestKeys(t, signing.EdDSA, signing.TrustJWKS), func(c *IssuerConfig) { c.Now = func() time.Time { return now } })
	payload := func(grant Grant) string {
		issued := testkit.Value(issuer.Issue(grant))(t)
		data := testkit.Value(base64.RawURLEncoding.DecodeString(strings.Split(issued.Value.Reveal(), ".")[1]))(t)
		return strings.Replace(string(data), issued.ID, "ID", 1)
	}
	const head = `{"iss":"pullpass.example.com","sub":"SUB","exp":1800000300,"nbf":1800000000,"iat":1800000000,"jti":"ID",` +
		`"aud":"registry.example.com","access":`
	if got, want := payload(Grant{}), strings.Replace(head, "SUB", "", 1)+`[]}`; got != want {
		t.Errorf("anonymous login:\n%s\nwant\n%s", got, want)
	}
	access := []Scope{
		{Type: "repository", Name: "b", Actions: []string{"push", "pull"}},
		{Type: "repository", Class: "plugin", Name: "a", Actions: []string{"pull"}},
		{Type: "repository", Name: "a", Actions: []string{"pull"}},
		{Type: "registry", Name: "catalog", Actions: []string{"*"}},
	}
	want := strings.Replace(head, "SUB", "s", 1) + `[{"type":"registry","name":"catalog","actions":["*"]},` +
		`{"type":"repository","name":"a","actions":["pull"]},{"type":"repository","name":"b","actions":["pull","push"]},` +
		`{"type":"repository","class":"plugin","name":"a","actions":["pull"]}]}`
	if got := payload(Grant{Subject: "s", Access: access}); got != want {
		t.Errorf("access is not sorted:\n%s\nwant\n%s", got, want)
	}
	if access[0].Name != "b" || access[0].Actions[0] != "push" {
		t.Errorf("Issue changed the grant of its caller: %+v", access)
	}
	slices.Reverse(access)
	if got := payload(Grant{Subject: "s", Access: access}); got != want {
		t.Errorf("another order gives another token:\n%s", got)
	}
}

// An incomplete scope could be read as more than was meant.
func TestIssueRefusesIncompleteAccess(t *testing.T) {
	t.Parallel()
	issuer := newTestIssuer(t, newTestKeys(t, signing.EdDSA, signing.TrustJWKS), nil)
	for _, scope := range []Scope{
		{},
		{Name: "a", Actions: []string{"pull"}},
		{Type: "repository", Actions: []string{"pull"}},
		{Type: "repository", Name: "a"},
		{Type: "repository", Name: "a", Actions: []string{"pull", ""}},
	} {
		if issued, err := issuer.Issue(Grant{Access: []Scope{scope}}); err == nil || !strings.Contains(err.Error(), "are missing") || !issued.Value.IsZero() {
			t.Errorf("%+v: token %v, error %v, want a refusal", scope, issued, err)
		}
	}
}

func TestIssueWithoutAKey(t *testing.T) {
	t.Parallel()
	issuer := newTestIssuer(t, noKeys{err: fmt.Errorf("%w: none here", signing.ErrNoSigningKey)}, nil)
	if _, err := issuer.Issue(Grant{}); !errors.Is(err, signing.ErrNoSigningKey) {
		t.Errorf("error %v, want signing.ErrNoSigningKey", err)
	}
	if id, err := issuer.KeyID(); !errors.Is(err, signing.ErrNoSigningKey) || id != "" {
		t.Errorf("the id of a missing key: %q, %v", id, err)
	}
}

// A registry other than the gateway learns no more of the holder than sub.
func TestTokensNameTheirHolderIfAsked(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		issuer := newTestIssuer(t, newTestKeys(t, signing.EdDSA, signing.TrustJWKS), func(c *IssuerConfig) { c.NamesHolder = named })
		issued := testkit.Value(issuer.Issue(Grant{Holder: &Holder{Cluster: "prod", Namespace: "team-a"}}))(t)
		claims := fmt.Sprint(testkit.TokenPart(t, issued.Value.Reveal(), 1))
		if issuer.NamesHolder() != named || strings.Contains(claims, "team-a") != named {
			t.Errorf("names its holder: %t, want %t: %s", issuer.NamesHolder(), named, claims)
		}
	}
}

// Checks that an empty setting switches off: an empty iss or aud would match a
// registry that was left unconfigured too.
func TestNewIssuerRefusesEmptySettings(t *testing.T) {
	t.Parallel()
	good := IssuerConfig{Issuer: "i", Service: "s", Lifetime: signing.MinLifetime, Keys: noKeys{}}
	if _, err := NewIssuer(good); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*IssuerConfig){
		"issuer is empty":  func(c *IssuerConfig) { c.Issuer = "" },
		"service is empty": func(c *IssuerConfig) { c.Service = "" },
		"is too short":     func(c *IssuerConfig) { c.Lifetime = signing.MinLifetime - 1 },
		"no keys":          func(c *IssuerConfig) { c.Keys = nil },
	} {
		cfg := good
		edit(&cfg)
		if _, err := NewIssuer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := NewIssuer(IssuerConfig{}); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("not all four faults are reported at once: %v", err)
	}
}

// Token ids made by a predictable generator can be guessed, and so revoked or
// replayed by others.
func TestTokenIDsAreUniqueAndRandom(t *testing.T) {
	t.Parallel()
	issuer := newTestIssuer(t, newTestKeys(t, signing.EdDSA, signing.TrustJWKS), nil)
	const count = 10_000
	seen := make(map[string]bool, count)
	var letters []map[byte]int
	for range count {
		issued := testkit.Value(issuer.Issue(Grant{}))(t)
		if seen[issued.ID] {
			t.Fatalf("%s was issued twice", issued.ID)
		}
		seen[issued.ID] = true
		for n := range len(issued.ID) {
			if n == len(letters) {
				letters = append(letters, map[byte]int{})
			}
			letters[n][issued.ID[n]]++
		}
	}
	if len(letters)*5 < 128 {
		t.Errorf("%d letters of 5 bits are less than 128 bits", len(letters))
	}
	for n, used := range letters {
		if len(used) != 32 {
			t.Errorf("letter %d takes %d values, want 32", n, len(used))
		}
		for letter, times := range used {
			if times < count/64 || times > count/16 {
				t.Errorf("letter %d is %c %d times in %d", n, letter, times, count)
			}
		}
	}
}
