package oidc

import (
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestIdentityOfAKubeletToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	raw := keys().rsa.sign(t, payload(t, "kubelet"))
	want := Identity{
		Cluster: "prod-eu",
		Issuer:  issuerURL,
		Subject: "system:serviceaccount:team-a:puller",
		TokenID: "63ef7a8c-1d81-4c97-8f89-724a51634a91",
		Kubernetes: KubernetesIdentity{Namespace: "team-a",
			ServiceAccount: ObjectRef{"puller", "6d2b46cf-ca6d-4816-a59d-1d08107f9180"},
			Pod:            ObjectRef{"app-1", "da2e7a3c-63e8-4855-9874-2073194456f5"},
			Node:           ObjectRef{"node1", "2bf1cc3e-4f38-4595-b30d-f4751860f82e"}},
		IssuedAt: time.Unix(1795230411, 0).UTC(),
		Expiry:   time.Unix(1795234011, 0).UTC(),
	}
	for _, when := range []string{"first", "remembered"} {
		if got := accept(t, f.Verifier, raw); got != want {
			t.Errorf("%s: got %+v, want %+v", when, got, want)
		}
	}
}

// The kinds are those that a real API server issues.
func TestKindsOfTokensInEachBoundMode(t *testing.T) {
	t.Parallel()
	const ok = refusal.Reason("")
	kinds := []struct {
		kind                    string
		pod, podOrNode, any     refusal.Reason
		podWithNode, anyAndNode refusal.Reason // with RequireNode
	}{
		{"kubelet", ok, ok, ok, ok, ok},
		{"pod-unscheduled", ok, ok, ok, refusal.TokenNoNode, refusal.TokenNoNode},
		{"node", refusal.TokenNotBound, ok, ok, refusal.TokenNotBound, ok},
		{"secret", refusal.TokenNotBound, refusal.TokenNotBound, ok, refusal.TokenNotBound, refusal.TokenNoNode},
		{"unbound", refusal.TokenNotBound, refusal.TokenNotBound, ok, refusal.TokenNotBound, refusal.TokenNoNode},
		{"unbound-two-audiences", refusal.TokenNotBound, refusal.TokenNotBound, ok, refusal.TokenNotBound, refusal.TokenNoNode},
		{"unbound-api-audience", refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience},
		{"pod-api-audience", refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience, refusal.TokenAudience},
		{"legacy", refusal.TokenLegacy, refusal.TokenLegacy, refusal.TokenLegacy, refusal.TokenLegacy, refusal.TokenLegacy},
	}
	modes := []struct {
		bound       Bound
		requireNode bool
	}{{BoundPod, false}, {BoundPodOrNode, false}, {BoundAny, false}, {BoundPod, true}, {BoundAny, true}}
	for column, mode := range modes {
		f := newFixture(t, func(c *Config) {
			c.Issuers[0].Bound, c.Issuers[0].RequireNode = mode.bound, mode.requireNode
		})
		for _, k := range kinds {
			want := []refusal.Reason{k.pod, k.podOrNode, k.any, k.podWithNode, k.anyAndNode}[column]
			raw := keys().rsa.sign(t, payload(t, k.kind))
			if want == ok {
				if id := accept(t, f.Verifier, raw); id.InSecret() {
					t.Errorf("%s: without pullSecrets, the Secret is %+v", k.kind, id.Kubernetes.Secret)
				}
			} else {
				refuse(t, f.Verifier, raw, want, "")
			}
		}
	}
}

// API servers write only the name of a node if its Node object does not exist. The name is kept,
// because a rule may refuse it, but it proves nothing.
func TestNodeClaimWithoutUID(t *testing.T) {
	t.Parallel()
	const node, pod = `,"uid":"2bf1cc3e-4f38-4595-b30d-f4751860f82e"`, `"pod":{"name":"app-1","uid":"da2e7a3c-63e8-4855-9874-2073194456f5"},`
	ofPod := keys().rsa.sign(t, payload(t, "kubelet", node, ""))
	ofNode := keys().rsa.sign(t, payload(t, "kubelet", node, "", pod, ""))

	f := newFixture(t, func(c *Config) { c.Issuers[0].Bound = BoundPodOrNode })
	if id := accept(t, f.Verifier, ofPod); id.Kubernetes.Node != (ObjectRef{Name: "node1"}) {
		t.Errorf("node %+v", id.Kubernetes.Node)
	}
	refuse(t, f.Verifier, ofNode, refusal.TokenNotBound, "")

	f = newFixture(t, func(c *Config) { c.Issuers[0].RequireNode = true })
	refuse(t, f.Verifier, ofPod, refusal.TokenNoNode, "the token's node claim has no UID")
}

// The message of a refusal is all that a developer gets to see.
func TestRefusalsSayTheRemedy(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.Issuers[0].RequireNode = true
		c.Issuers[0].MaxLifetime = 30 * time.Minute
	})
	sign := func(kind string, edits ...string) string { return keys().rsa.sign(t, payload(t, kind, edits...)) }
	const halfHour = `"exp":1795232211`
	for _, test := range []struct {
		name   string
		raw    string
		reason refusal.Reason
		text   string
	}{
		{"issuer", sign("kubelet", issuerURL, issuerURL+"/"), refusal.TokenUnknownIssuer,
			`the token's issuer "https://issuer.example/" is not configured here; it must equal that of a cluster (its API server's --service-account-issuer) or of an identity exactly`},
		{"audience", sign("unbound-api-audience"), refusal.TokenAudience,
			`the token's audience ["https://issuer.example"] is not accepted here; request a token with audience "registry.example.com" ` +
				`(tokenAttributes.serviceAccountTokenAudience in the kubelet's CredentialProviderConfig)`},
		{"lifetime", sign("kubelet"), refusal.TokenLifetime,
			`the token's lifetime of 1h0m0s is longer than the 30m0s that cluster "prod-eu" allows (maxTokenLifetime); request a shorter one, with an audience of its own`},
		{"unbound", sign("unbound", `"exp":1795234011`, halfHour), refusal.TokenNotBound, `the token is not bound to an object, and cluster "prod-eu" wants one that is bound to a pod (bound: pod)`},
		{"secret", sign("secret", `"exp":1795234011`, halfHour), refusal.TokenNotBound, "the token is bound to a Secret"},
		{"node-bound", sign("node", `"exp":1795234011`, halfHour), refusal.TokenNotBound, "the token is bound to a node"},
		{"no node", sign("pod-unscheduled", `"exp":1795234011`, halfHour), refusal.TokenNoNode, `cluster "prod-eu" requires (node.claim)`},
		{"legacy", sign("legacy"), refusal.TokenLegacy,
			`the token of Secret "puller-legacy" in namespace "team-a" never expires and is not accepted; delete that Secret, and use`},
	} {
		failure := refuse(t, f.Verifier, test.raw, test.reason, test.text)
		if failure.Claimed.Subject != "system:serviceaccount:team-a:puller" {
			t.Errorf("%s: claimed subject %q", test.name, failure.Claimed.Subject)
		}
	}
}

func TestClaimedNamesTheSenderOfARefusedToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "pod-api-audience")), refusal.TokenAudience, "")
	want := Claimed{
		Issuer:         issuerURL,
		Subject:        "system:serviceaccount:team-a:puller",
		TokenID:        "63ef7a8c-1d81-4c97-8f89-724a51634a91",
		Namespace:      "team-a",
		ServiceAccount: ObjectRef{"puller", "6d2b46cf-ca6d-4816-a59d-1d08107f9180"},
		Pod:            ObjectRef{"app-1", "da2e7a3c-63e8-4855-9874-2073194456f5"},
		Node:           ObjectRef{"node1", "2bf1cc3e-4f38-4595-b30d-f4751860f82e"},
	}
	if failure.Claimed != want || failure.Cluster != "prod-eu" || failure.Verified {
		t.Errorf("got %+v of cluster %q, verified %v", failure.Claimed, failure.Cluster, failure.Verified)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	const expiry = 3600 * time.Second // after issuedAt
	for _, test := range []struct {
		name   string
		now    time.Duration // since issuedAt
		edits  []string
		reason refusal.Reason
		text   string
	}{
		{"last moment", expiry - time.Nanosecond, nil, "", ""},
		{"exp is the end, without leeway", expiry, nil, refusal.TokenExpired, "the token expired at 2026-11-21T04:06:51Z, 0s ago; request a new one"},
		{"long expired", expiry + 9*time.Minute, nil, refusal.TokenExpired, "9m0s ago"},
		{"clock of the API server one minute ahead", -ClockSkew, nil, "", ""},
		{"further ahead", -ClockSkew - time.Second, nil, refusal.TokenNotYetValid, "the token is valid from 2026-11-21T03:06:51Z, 1m1s from now"},
		{"nbf alone in the future", 0, []string{`"nbf":1795230411`, `"nbf":1795230472`}, refusal.TokenNotYetValid, ""},
		{"iat alone in the future", -61 * time.Second, []string{`"nbf":1795230411`, `"nbf":1795230000`}, refusal.TokenNotYetValid, ""},
	} {
		f := newFixture(t, nil)
		f.clock.Set(issuedAt.Add(test.now))
		raw := keys().rsa.sign(t, payload(t, "kubelet", test.edits...))
		if test.reason == "" {
			accept(t, f.Verifier, raw)
		} else {
			refuse(t, f.Verifier, raw, test.reason, test.text)
		}
	}
}

// Mistake: a lifetime in nanoseconds that overflows and is then short.
func TestLifetime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Issuers[0].MaxLifetime = time.Hour })
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
	for _, exp := range []string{"1795234012", "1826766411", "11018602448", "253402300799"} {
		refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", `"exp":1795234011`, `"exp":`+exp)), refusal.TokenLifetime, "")
	}
}

func TestOneOfSeveralAudiencesIsEnough(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		c.Issuers[0].Audiences = []string{"other.example.com", audience1}
	})
	for _, aud := range []string{`["a","registry.example.com","b"]`, `"registry.example.com"`} {
		accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", `["registry.example.com"]`, aud)))
	}
	for _, aud := range []string{`["registry.example.co"]`, `["registry.example.com."]`, `["REGISTRY.example.com"]`, `"registry"`} {
		refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", `["registry.example.com"]`, aud)),
			refusal.TokenAudience, `request a token with audience "other.example.com" or "registry.example.com"`)
	}
}

// The statements of docs/internals/security.md about the API server's audience.
func TestAudienceOfTheAPIServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	const api, ours = `"https://issuer.example"`, `"registry.example.com"`
	with := func(audiences string) string {
		return keys().rsa.sign(t, payload(t, "kubelet", `["registry.example.com"]`, audiences))
	}
	for _, alone := range []string{api, "[" + api + "]", "[" + api + `,"https://kubernetes.default.svc"]`} {
		refuse(t, f.Verifier, with(alone), refusal.TokenAudience, "is not accepted here")
	}
	for _, both := range []string{"[" + api + "," + ours + "]", "[" + ours + "," + api + "]"} {
		accept(t, f.Verifier, with(both))
	}
}

// Mistake: the same names in two clusters are taken for the same account, or a
// key of one cluster signs for the other.
func TestClustersAreApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) {
		second := validIssuer(c.Issuers[0].Discovery.JWKSFile + "2")
		second.Cluster, second.URL = "prod-us", "https://us.example"
		c.Issuers = append(c.Issuers, second)
	})
	other := keys().rsa2
	other.id = keys().rsa.id // the same name for another key
	testkit.Put(t, f.file+"2", keySetJSON(t, other))
	eu, us := payload(t, "kubelet"), payload(t, "kubelet", issuerURL, "https://us.example")

	first, second := accept(t, f.Verifier, keys().rsa.sign(t, eu)), accept(t, f.Verifier, other.sign(t, us))
	if first.Cluster != "prod-eu" || second.Cluster != "prod-us" {
		t.Errorf("clusters %q and %q", first.Cluster, second.Cluster)
	}
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, us), refusal.TokenSignature, "")
	if failure.Cluster != "prod-us" {
		t.Errorf("refused for cluster %q", failure.Cluster)
	}
	refuse(t, f.Verifier, other.sign(t, eu), refusal.TokenSignature, "")
}

func TestLegacyTokenIsRefusedAndItsSignatureTold(t *testing.T) {
	t.Parallel()
	genuine := keys().rsa.sign(t, payload(t, "legacy"))
	forged := keys().rsa2
	forged.id = keys().rsa.id
	unknown := keys().rsa2

	f := newFixture(t, nil)
	// Before anything was fetched nothing can be told, and nothing is fetched.
	if failure := refuse(t, f.Verifier, genuine, refusal.TokenLegacy, ""); failure.Verified || failure.Cluster != "" {
		t.Error("verified without keys")
	}
	if fetches := f.Status()[0].Fetches; fetches != 0 {
		t.Errorf("a legacy token caused %d fetches", fetches)
	}

	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet"))) // fetches the keys
	for range 2 {
		failure := refuse(t, f.Verifier, genuine, refusal.TokenLegacy, "")
		want := Claimed{
			Issuer:         "kubernetes/serviceaccount",
			Subject:        "system:serviceaccount:team-a:puller",
			Namespace:      "team-a",
			ServiceAccount: ObjectRef{"puller", "6d2b46cf-ca6d-4816-a59d-1d08107f9180"},
			Secret:         "puller-legacy",
		}
		if !failure.Verified || failure.Cluster != "prod-eu" || failure.Claimed != want {
			t.Errorf("verified %v, cluster %q, claimed %+v", failure.Verified, failure.Cluster, failure.Claimed)
		}
	}
	text := payload(t, "legacy")
	for name, raw := range map[string]string{
		"forged":      forged.sign(t, text),
		"unknown key": unknown.sign(t, text),
		"none":        encode(`{"alg":"none","kid":"rsa"}`) + "." + encode(text) + ".",
		"other alg":   keys().rsa.signHeader(t, `{"alg":"ES256","kid":"rsa"}`, text),
		"jku":         keys().rsa.signHeader(t, `{"alg":"RS256","kid":"rsa","jku":"https://evil.example"}`, text),
	} {
		if failure := refuse(t, f.Verifier, raw, refusal.TokenLegacy, "delete that Secret"); failure.Verified || failure.Cluster != "" {
			t.Errorf("%s: verified %v for cluster %q", name, failure.Verified, failure.Cluster)
		}
	}
	if fetches := f.Status()[0].Fetches; fetches != 1 {
		t.Errorf("legacy tokens caused %d fetches", fetches-1)
	}
	// Keys that are too old prove nothing.
	f.clock.Advance(25 * time.Hour)
	if failure := refuse(t, f.Verifier, genuine, refusal.TokenLegacy, ""); failure.Verified {
		t.Error("verified with keys that are too old")
	}
}

// A message and a Claimed repeat untrusted input. They must stay short and on one line.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	long := strings.Repeat("x", 9000)
	for _, test := range []struct {
		edits  []string
		reason refusal.Reason
	}{
		{[]string{issuerURL, long}, refusal.TokenUnknownIssuer},
		{[]string{"system:serviceaccount:team-a:puller", `a\n\u0000\u2028é` + long}, refusal.TokenClaims},
		{[]string{`"registry.example.com"`, `"1` + long[:3000] + `","2` + long[:3000] + `","3","4","5"`}, refusal.TokenAudience},
		{[]string{"team-a\",\"node", long + `","node`}, refusal.TokenClaims},
		{[]string{`"nbf"`, `"` + long + `":1,"` + long[:100] + `":1,"` + long[:100] + `":1,"nbf"`}, refusal.TokenMalformed},
	} {
		failure := refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", test.edits...)), test.reason, "")
		if n := len(failure.Error()); n > 1500 {
			t.Errorf("%s: error of %d bytes", test.reason, n)
		}
		for _, r := range failure.Error() {
			if r < ' ' || r > '~' {
				t.Errorf("%s: error with %q", test.reason, r)
			}
		}
		for _, s := range []string{failure.Claimed.Issuer, failure.Claimed.Subject, failure.Claimed.Namespace} {
			if len(s) > maxQuotedBytes+len("...") {
				t.Errorf("%s: %d bytes claimed", test.reason, len(s))
			}
		}
	}
}

// Mistake: a token in a log. No text of a Verifier may contain a part of a token.
func TestTokensAreNeverRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	tokens := []string{
		keys().rsa.sign(t, payload(t, "kubelet")),
		keys().rsa2.sign(t, payload(t, "kubelet")),
		keys().rsa.sign(t, payload(t, "legacy")),
		keys().rsa.sign(t, payload(t, "unbound")),
		keys().rsa.sign(t, payload(t, "kubelet", `"iat":1795230411`, `"iat":"x"`)),
		keys().rsa.sign(t, payload(t, "kubelet")) + "=",
		"Bearer " + keys().rsa.sign(t, payload(t, "kubelet")),
		keys().rsa.sign(t, "secret-that-is-no-json"),
	}
	var said strings.Builder
	for _, raw := range tokens {
		if _, err := f.Verify(t.Context(), presented(raw)); err != nil {
			said.WriteString(err.Error() + "\n")
		}
	}
	said.WriteString(f.log.String())
	for _, raw := range tokens {
		for part := range strings.SplitSeq(raw, ".") {
			if strings.Contains(said.String(), part[:min(len(part), 20)]) {
				t.Errorf("%q is in %s", part, said.String())
			}
		}
	}
}
