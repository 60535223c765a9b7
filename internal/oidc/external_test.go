package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// providerCase is a file of testdata/identities: an entry of identities[] and the claims of a good
// token. Changes to them (RFC 7396) are equally good, or cause a refusal of the token or of the
// policy. policy.yaml and scope are for tests of the policy.
type providerCase struct {
	name     string
	issuer   Issuer
	token    map[string]any
	accepted map[string]map[string]any
	hostile  []hostileCase
}

type hostileCase struct {
	name   string
	patch  map[string]any
	step   string // token or policy
	reason string
	text   string // in the message of a refused token
}

func providerCases(tb testing.TB) []providerCase {
	tb.Helper()
	files, err := filepath.Glob("testdata/identities/*.txtar")
	if err != nil || len(files) < 10 {
		tb.Fatalf("%d files, %v", len(files), err)
	}
	var all []providerCase
	for _, file := range files {
		all = append(all, readProviderCase(tb, file))
	}
	return all
}

func readProviderCase(tb testing.TB, file string) providerCase {
	tb.Helper()
	archive := testkit.Value(txtar.ParseFile(file))(tb)
	c := providerCase{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), accepted: map[string]map[string]any{}}
	sections := map[string][]byte{}
	for _, f := range archive.Files {
		sections[f.Name] = f.Data
	}
	object := func(name string) (value map[string]any) {
		decoder := json.NewDecoder(strings.NewReader(string(sections[name])))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			tb.Fatalf("%s: %s: %v", file, name, err)
		}
		return value
	}
	c.issuer = readIdentity(tb, sections["identity.yaml"])
	c.token = object("token.json")
	for _, f := range archive.Files {
		if name, ok := strings.CutPrefix(f.Name, "accepted/"); ok {
			c.accepted[name] = object(f.Name)
		}
		name, ok := strings.CutSuffix(f.Name, ".json")
		if name, isHostile := strings.CutPrefix(name, "hostile/"); ok && isHostile {
			h := hostileCase{name: name, patch: object(f.Name)}
			first, text, _ := strings.Cut(strings.TrimSpace(string(sections["hostile/"+name+".want"])), "\n")
			h.step, h.reason, _ = strings.Cut(first, " ")
			h.text = text
			c.hostile = append(c.hostile, h)
		}
	}
	return c
}

// readIdentity reads an entry of identities[] without its defaults, but for the
// lifetime. A test of package config holds the entries to the format.
func readIdentity(tb testing.TB, text []byte) Issuer {
	tb.Helper()
	var entry struct {
		Name, Issuer     string
		Profile          identity.Profile
		Audiences        []string
		Require          map[string][]string
		MaxTokenLifetime string
	}
	testkit.Must(tb, yaml.UnmarshalStrict(text, &entry))
	lifetime := time.Hour
	if entry.MaxTokenLifetime != "" {
		var err error
		if lifetime, err = time.ParseDuration(entry.MaxTokenLifetime); err != nil {
			tb.Fatal(err)
		}
	}
	return Issuer{
		Provider: &Provider{Name: entry.Name, Profile: entry.Profile, Require: entry.Require},
		URL:      entry.Issuer, Audiences: entry.Audiences, MaxLifetime: lifetime, MaxKeyAge: time.Hour,
	}
}

// patched returns the payload of the good token with a change to it. Of what is
// changed at all, nothing is more than one deep.
func (c providerCase) patched(tb testing.TB, patch map[string]any) string {
	tb.Helper()
	claims := maps.Clone(c.token)
	for name, value := range patch {
		if value == nil {
			delete(claims, name)
		} else {
			claims[name] = value
		}
	}
	text := testkit.Value(json.Marshal(claims))(tb)
	return string(text)
}

// providerFixture is a Verifier for the case's identity alone, one minute after its
// token was issued, whose keys are those of a fixture.
func providerFixture(tb testing.TB, c providerCase) *fixture {
	tb.Helper()
	return newFixture(tb, func(config *Config) {
		c.issuer.Discovery.JWKSFile = config.Issuers[0].Discovery.JWKSFile
		config.Issuers = []Issuer{c.issuer}
	})
}

func TestProvidersTokens(t *testing.T) {
	t.Parallel()
	for _, c := range providerCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := providerFixture(t, c)
			check := func(t *testing.T, patch map[string]any) {
				t.Helper()
				payload := c.patched(t, patch)
				raw := keys().rsa.sign(t, payload)
				id := accept(t, f.Verifier, raw)
				var claims struct{ Sub, Jti string }
				testkit.Must(t, json.Unmarshal([]byte(payload), &claims))
				if id.External == nil || id.External.Provider != c.issuer.Provider.Name || id.External.Profile != c.issuer.Provider.Profile || id.External.Project == "" {
					t.Errorf("external %+v", id.External)
				}
				if id.Cluster != "" || id.Kubernetes != (KubernetesIdentity{}) {
					t.Errorf("it is of a cluster, too: %+v", id)
				}
				if want := c.issuer.Provider.Name + "/" + claims.Sub; id.Subject != want {
					t.Errorf("subject %q, want %q", id.Subject, want)
				}
				if claims.Jti == "" {
					claims.Jti = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(raw[:strings.LastIndexByte(raw, '.')])))
				}
				if id.TokenID != claims.Jti {
					t.Errorf("token id %q, want %q", id.TokenID, claims.Jti)
				}
				if again := accept(t, f.Verifier, raw); again != id || !f.Remembers(presented(raw)) {
					t.Errorf("first %+v, then %+v", id, again)
				}
			}
			check(t, nil)
			for name, patch := range c.accepted {
				t.Run(name, func(t *testing.T) { check(t, patch) })
			}
			if len(c.hostile) < 5 {
				t.Errorf("%d hostile tokens", len(c.hostile))
			}
			for _, h := range c.hostile {
				t.Run(h.name, func(t *testing.T) {
					raw := keys().rsa.sign(t, c.patched(t, h.patch))
					switch h.step {
					case "policy":
						accept(t, f.Verifier, raw)
					case "token":
						failure := refuse(t, f.Verifier, raw, refusal.Reason(h.reason), h.text)
						if failure.Cluster != "" || failure.Provider != c.issuer.Provider.Name && failure.Provider != "" {
							t.Errorf("refused in the name of cluster %q, identity %q", failure.Cluster, failure.Provider)
						}
						for _, word := range []string{"ServiceAccountTokenAudience", "API server sign", "kubelet"} {
							if strings.Contains(failure.Message, word) {
								t.Errorf("a job is told of %s: %s", word, failure.Message)
							}
						}
					default:
						t.Fatalf("%q is not a step", h.step)
					}
				})
			}
		})
	}
}

// Mistake: algorithm confusion, and keys in the token itself. Header members that name a
// certificate are ignored. Members that contain a key, or change the meaning of the signature, are
// refused.
func TestHeadersOfProvidersTokens(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/azure.txtar")
	f := providerFixture(t, c)
	body := c.patched(t, nil)
	for _, more := range []string{`"x5t":"aGk"`, `"x5t":"aGk","x5t#S256":"aGk","typ":"JWT"`, `"x5t":{"jku":"https://evil.example"}`} {
		accept(t, f.Verifier, keys().rsa.signHeader(t, `{"alg":"RS256","kid":"rsa",`+more+`}`, body))
	}
	for _, more := range []string{
		`"jku":"https://evil.example/keys"`, `"jwk":{}`, `"x5u":"https://evil.example"`, `"x5c":[]`, `"crit":["x5t"],"x5t":"aGk"`, `"b64":false`,
		`"nonce":"x"`, `"cty":"JWT"`, `"typ":"at+jwt"`, `"typ":"JOSE"`, `"X5T":"aGk"`,
	} {
		refuse(t, f.Verifier, keys().rsa.signHeader(t, `{"alg":"RS256","kid":"rsa",`+more+`}`, body), refusal.TokenHeader, "")
	}
	for _, algorithm := range []string{"none", "HS256", "PS256", "EdDSA", "RS512"} {
		refuse(t, f.Verifier, keys().rsa.signHeader(t, `{"alg":"`+algorithm+`","kid":"rsa"}`, body), refusal.TokenAlgorithm, "issuers sign with RS256")
	}
	refuse(t, f.Verifier, keys().rsa2.signHeader(t, `{"alg":"RS256","kid":"rsa"}`, body), refusal.TokenSignature, "")
	refuse(t, f.Verifier, keys().rsa2.sign(t, body), refusal.TokenUnknownKey, "if the issuer has just changed its key")

	pods := newFixture(t, nil)
	refuse(t, pods.Verifier, keys().rsa.signHeader(t, `{"alg":"RS256","kid":"rsa","x5t":"aGk"}`, payload(t, "kubelet")), refusal.TokenHeader, "only alg, kid and typ")
}

// Of an ECDSA signature (r, s), (r, -s) is as good. The token is the same, and so is
// its id: a second use must not look like a first one.
func TestASecondSignatureIsNoOtherToken(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/buildkite.txtar")
	f := providerFixture(t, c)
	raw := keys().ec256.sign(t, c.patched(t, nil))
	signed, part := raw[:strings.LastIndexByte(raw, '.')], raw[strings.LastIndexByte(raw, '.')+1:]
	signature := decode(t, part)
	s := new(big.Int).SetBytes(signature[32:])
	s.Sub(elliptic.P256().Params().N, s).FillBytes(signature[32:])
	if !ecdsa.Verify(keys().ec256.private.Public().(*ecdsa.PublicKey), hash(signed), new(big.Int).SetBytes(signature[:32]), s) {
		t.Fatal("the second signature is wrong")
	}
	first, second := accept(t, f.Verifier, raw), accept(t, f.Verifier, signed+"."+encode(string(signature)))
	if first.TokenID != second.TokenID {
		t.Errorf("%s is %s with another signature", first.TokenID, second.TokenID)
	}
	if other := accept(t, f.Verifier, keys().ec256.sign(t, c.patched(t, map[string]any{"step_key": "other"}))); other.TokenID == first.TokenID {
		t.Errorf("two tokens are both %s", first.TokenID)
	}
}

// Each issuer's tokens are judged as its own: an identity's keys make no pod, and a
// cluster's make no External.
func TestPodsAndProvidersAreApart(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/generic.txtar")
	c.issuer.Provider.Require = nil
	f := newFixture(t, func(config *Config) {
		c.issuer.Discovery = config.Issuers[0].Discovery
		config.Issuers = append(config.Issuers, c.issuer)
	})
	pod := accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	if pod.External != nil || pod.Cluster != "prod-eu" {
		t.Errorf("a pod is %+v", pod)
	}
	job := accept(t, f.Verifier, keys().rsa.sign(t, c.patched(t, map[string]any{"sub": pod.Subject})))
	if job.External == nil || job.Cluster != "" || job.Kubernetes != (KubernetesIdentity{}) || job.Subject != "jenkins/"+pod.Subject {
		t.Errorf("a job with the sub of a pod is %+v", job)
	}
	ofJenkins := payload(t, "kubelet", `"iss":"https://issuer.example"`, `"iss":"https://jenkins.example.com/oidc"`)
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, ofJenkins), refusal.TokenClaims, "the issuer of a cluster belongs into clusters[]")
	if failure.Provider != "jenkins" || failure.Cluster != "" || failure.Claimed.Subject != pod.Subject {
		t.Errorf("%+v", failure)
	}
	refuse(t, f.Verifier, keys().rsa.sign(t, c.patched(t, map[string]any{"iss": issuerURL})), refusal.TokenClaims, "is missing")
	alone := providerFixture(t, c)
	accept(t, alone.Verifier, keys().rsa.sign(t, c.patched(t, nil))) // its keys are known now
	legacy := refuse(t, alone.Verifier, keys().rsa.sign(t, payload(t, "legacy")), refusal.TokenLegacy, "")
	if legacy.Verified || legacy.Provider != "" {
		t.Errorf("a legacy token is genuine by the key of an identity: %+v", legacy)
	}
}

// A null claim counts as missing, and does not hide a forbidden claim.
func TestNullInProvidersTokens(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/generic.txtar")
	f := providerFixture(t, c)
	with := func(claim string) string {
		body := c.patched(t, nil)
		return keys().rsa.sign(t, body[:len(body)-1]+","+claim+"}")
	}
	if id := accept(t, f.Verifier, with(`"environment":null,"nested":{"a":null}`)); len(id.External.Claims) != len(c.token)+1 || len(id.External.Claims["nested"].(map[string]any)) != 0 {
		t.Errorf("claims %v", id.External.Claims)
	}
	refuse(t, f.Verifier, with(`"kubernetes.io":null`), refusal.TokenClaims, "claims of a ServiceAccount")
	refuse(t, f.Verifier, with(`"groups":["a",null]`), refusal.TokenClaims, "is a list with null")
	refuse(t, f.Verifier, with(`"sub":"https://jenkins.example.com/job/octo/"`), refusal.TokenMalformed, "distinct members")
	refuse(t, f.Verifier, with(`"nested":{"a":1,"a":2}`), refusal.TokenMalformed, "distinct members")
}

// Mistake: a bound in numbers, while claims take up what an issuer writes into them.
func TestClaimsCountInTheCache(t *testing.T) {
	const most = 4 << 20
	c := readProviderCase(t, "testdata/identities/gitlab.txtar")
	f := providerFixture(t, c)
	for name, more := range map[string]string{
		"usual": "",
		"lists": `,"x":[` + strings.Repeat("1,", 900) + `1]`,
		"texts": `,"x":[` + strings.Repeat(`"a",`, 900) + `"a"]`,
		"maps":  `,"x":[` + strings.Repeat(`{},`, 900) + `{}]`,
		"names": `,"x":{` + numbered(200, `"name%d":1.5`) + `}`,
		"long":  `,"x":"` + strings.Repeat("x", 8<<10) + `"`,
	} {
		cache := newCache(most)
		body := c.patched(t, nil)
		body = body[:len(body)-1] + more + "}"
		before := testkit.Heap()
		for n := range 10_000 {
			all, err := identity.Parse([]byte(body))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			external, err := identity.GitLab.External("gitlab", all)
			testkit.Must(t, err)
			id := Identity{Subject: c.issuer.Provider.Name + "/" + c.token["sub"].(string), TokenID: fmt.Sprintf("%036d", n), External: external}
			cache.add(sha256.Sum256([]byte(id.TokenID)), &verified{identity: id, issuer: f.issuers[0]})
			if n > 100 && cache.entries.Bytes() > most*9/10 {
				break
			}
		}
		if used := int(testkit.Heap() - before); used > most+most/10 {
			t.Errorf("%s: %d bytes are used, %d counted, by %d tokens", name, used, cache.entries.Bytes(), cache.entries.Len())
		}
		if cache.entries.Len() == 0 || cache.entries.Bytes() < most/2 {
			t.Errorf("%s: %d tokens are remembered in %d bytes", name, cache.entries.Len(), cache.entries.Bytes())
		}
	}
}

func numbered(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ",")
}

// An issuer that is down is the trouble of its own tokens, and says so in the log and
// in Status by the identity's name.
func TestAProviderThatIsDown(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/github.txtar")
	c.issuer.Discovery.JWKSFile = filepath.Join(t.TempDir(), "missing.json")
	log := &testkit.Buffer{}
	f := newFixture(t, func(config *Config) {
		config.Issuers = append(config.Issuers, c.issuer)
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, c.patched(t, nil)), refusal.IssuerUnavailable, `the signing keys of identity "github" cannot be read at the moment`)
	if failure.Provider != "github" {
		t.Errorf("%+v", failure)
	}
	if s := f.Status(); len(s) != 2 || s[0].Name != "prod-eu" || s[1].Name != "github" || s[1].Keys != 0 || s[1].LastFailure == "" {
		t.Errorf("status %+v", s)
	}
	if !strings.Contains(log.String(), "identity=github") {
		t.Errorf("log: %s", log)
	}
}

// New requirements of an identity apply to the next request, and its keys stay known.
func TestAProviderIsChanged(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/github.txtar")
	f := providerFixture(t, c)
	raw := keys().rsa.sign(t, c.patched(t, nil))
	first := accept(t, f.Verifier, raw)
	same := f.issuers[0].Issuer
	same.Provider = &Provider{Name: "github", Profile: identity.GitHub, Require: map[string][]string{"repository_owner_id": {"1234"}}}
	if next := f.follow(t, same); !next.Remembers(presented(raw)) || next.issuers[0] != f.issuers[0] {
		t.Error("settings that are the same are taken for others")
	}
	stricter := same
	stricter.Provider = &Provider{Name: "github", Profile: identity.GitHub, Require: map[string][]string{"repository_owner_id": {"1234"}, "environment": {"production"}}}
	next := f.follow(t, stricter)
	refuse(t, next, raw, refusal.TokenRequire, `claim "environment" is not what identity "github" requires`)
	if s := next.Status()[0]; s.Fetches != 1 {
		t.Errorf("its keys were fetched again: %+v", s)
	}
	renamed := same
	renamed.Provider = &Provider{Name: "octo", Profile: identity.GitHub, Require: same.Provider.Require}
	next = f.follow(t, renamed)
	if next.issuers[0].keys == f.issuers[0].keys {
		t.Error("the log goes on to name its keys by the name before")
	}
	if id := accept(t, next, raw); id.External.Provider != "octo" || id.Subject == first.Subject {
		t.Errorf("with another name: %+v", id)
	}
}

func TestIssuedAtOfWhoDoesNotSay(t *testing.T) {
	t.Parallel()
	c := readProviderCase(t, "testdata/identities/spiffe.txtar")
	f := providerFixture(t, c)
	// One minute has passed since the token was issued: ten are left at the most.
	accept(t, f.Verifier, keys().rsa.sign(t, c.patched(t, map[string]any{"iat": nil, "exp": issuedAt.Add(11 * time.Minute).Unix()})))
	refuse(t, f.Verifier, keys().rsa.sign(t, c.patched(t, map[string]any{"iat": nil, "exp": issuedAt.Add(11*time.Minute + time.Second).Unix()})),
		refusal.TokenLifetime, `the token's lifetime of 10m1s is longer than the 10m0s that identity "spire" allows (maxTokenLifetime); request a shorter one, give the job a shorter time-out`)
}

func decode(t *testing.T, part string) []byte {
	t.Helper()
	parsed, refusal := parse("e30.e30." + part)
	if refusal != nil {
		t.Fatal(refusal)
	}
	return parsed.signature
}

func hash(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}
