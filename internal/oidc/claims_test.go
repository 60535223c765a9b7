package oidc

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
)

// Each case edits the claims of a good token and signs the result with the
// published key, so that nothing but the check under test can refuse it.
func TestClaims(t *testing.T) {
	t.Parallel()
	const (
		namespace = `"namespace":"team-a"`
		subject   = `"system:serviceaccount:team-a:puller"`
		sa        = `{"name":"puller","uid":"6d2b46cf-ca6d-4816-a59d-1d08107f9180"}`
		pod       = `{"name":"app-1","uid":"da2e7a3c-63e8-4855-9874-2073194456f5"}`
		node      = `{"name":"node1","uid":"2bf1cc3e-4f38-4595-b30d-f4751860f82e"}`
		tokenID   = `"63ef7a8c-1d81-4c97-8f89-724a51634a91"`
		exp       = `"exp":1795234011`
		iat       = `"iat":1795230411`
		nbf       = `"nbf":1795230411`
		aud       = `["registry.example.com"]`
		form      = "a claim of the token has another type than issuers give it"
		years     = "is not a time between 1970 and 9999"
		object    = "the token's payload is not a JSON object with distinct members"
	)
	f := newFixture(t, nil)
	for _, test := range []struct {
		name     string
		old, new string
		reason   refusal.Reason
		text     string
	}{
		{"iss missing", `"iss":"https://issuer.example",`, ``, refusal.TokenClaims, `claim "iss" is missing`},
		{"iss empty", `"https://issuer.example"`, `""`, refusal.TokenClaims, `claim "iss" is missing`},
		{"iss null", `"https://issuer.example"`, `null`, refusal.TokenClaims, `claim "iss" is missing`},
		{"iss a list", `"https://issuer.example"`, `["https://issuer.example"]`, refusal.TokenClaims, form},
		{"iss in upper case", `"iss"`, `"ISS"`, refusal.TokenClaims, `claim "iss" is missing`},
		{"iss in other case", issuerURL, "https://Issuer.example", refusal.TokenUnknownIssuer, ""},
		{"iss twice", `"iss":`, `"iss":"https://issuer.example","iss":`, refusal.TokenMalformed, object},
		{"iss twice, once escaped", `"iss":`, `"\u0069ss":"https://issuer.example","iss":`, refusal.TokenMalformed, object},
		{"sub missing", `,"sub":` + subject, ``, refusal.TokenClaims, `claim "sub" is missing`},
		{"sub a number", subject, `1`, refusal.TokenClaims, form},
		{"sub of another namespace", subject, `"system:serviceaccount:team-b:puller"`, refusal.TokenClaims, `claim "sub" is "system:serviceaccount:team-b:puller", but "kubernetes.io" says "system:serviceaccount:team-a:puller"`},
		{"sub of another account", subject, `"system:serviceaccount:team-a:pusher"`, refusal.TokenClaims, `claim "sub" is`},
		{"sub with a suffix", subject, `"system:serviceaccount:team-a:puller:x"`, refusal.TokenClaims, `claim "sub" is`},
		{"sub of a user", subject, `"system:node:node1"`, refusal.TokenClaims, `claim "sub" is`},
		{"sub with NUL", subject, `"system:serviceaccount:team-a:puller\u0000"`, refusal.TokenClaims, `claim "sub" is`},
		{"jti missing", `"jti":` + tokenID + `,`, ``, refusal.TokenClaims, `API servers set it since Kubernetes 1.30`},
		{"jti empty", tokenID, `""`, refusal.TokenClaims, `claim "jti" is missing`},
		{"jti an object", tokenID, `{}`, refusal.TokenClaims, form},
		{"jti too long", tokenID, `"` + strings.Repeat("x", 257) + `"`, refusal.TokenClaims, `claim "jti" must be at most 256 printable`},
		{"jti with a line break", tokenID, `"a\nb"`, refusal.TokenClaims, `claim "jti" must be at most 256 printable`},
		{"jti with a space", tokenID, `"a b"`, refusal.TokenClaims, `claim "jti" must be at most 256 printable`},
		{"jti with NUL", tokenID, `"a\u0000"`, refusal.TokenClaims, `claim "jti" must be at most 256 printable`},

		{"aud missing", `"aud":` + aud + `,`, ``, refusal.TokenClaims, `claim "aud" is missing`},
		{"aud an empty list", aud, `[]`, refusal.TokenClaims, `claim "aud" is missing`},
		{"aud empty", aud, `""`, refusal.TokenClaims, `claim "aud" has an empty member`},
		{"aud null", aud, `null`, refusal.TokenClaims, `claim "aud" is missing`},
		{"aud a number", aud, `1`, refusal.TokenClaims, form},
		{"aud an object", aud, `{"registry.example.com":true}`, refusal.TokenClaims, form},
		{"aud with a number", aud, `["registry.example.com",1]`, refusal.TokenClaims, form},
		{"aud with null", aud, `["registry.example.com",null]`, refusal.TokenClaims, `claim "aud" has an empty member`},
		{"aud with a list", aud, `["registry.example.com",["x"]]`, refusal.TokenClaims, form},
		{"aud with an empty string", aud, `["registry.example.com",""]`, refusal.TokenClaims, `claim "aud" has an empty member`},
		{"AUD does not count", `"aud":` + aud, `"aud":["x"],"AUD":` + aud, refusal.TokenAudience, `["x"]`},
		{"deep aud", aud, strings.Repeat("[", 4000) + strings.Repeat("]", 4000), refusal.TokenMalformed, "nested more than 64 deep"},

		{"exp missing", exp + `,`, ``, refusal.TokenClaims, `claim "exp" is missing`},
		{"exp null", exp, `"exp":null`, refusal.TokenClaims, `claim "exp" is missing`},
		{"exp a string", exp, `"exp":"1795234011"`, refusal.TokenClaims, form},
		{"exp with a fraction", exp, `"exp":1795234011.5`, refusal.TokenClaims, form},
		{"exp with a zero fraction", exp, `"exp":1795234011.0`, refusal.TokenClaims, form},
		{"exp with an exponent", exp, `"exp":1795234011e0`, refusal.TokenClaims, form},
		{"exp 1e300", exp, `"exp":1e300`, refusal.TokenClaims, form},
		{"exp negative", exp, `"exp":-1795234011`, refusal.TokenClaims, years},
		{"exp zero", exp, `"exp":0`, refusal.TokenClaims, `claim "exp" is missing`},
		{"exp beyond the year 9999", exp, `"exp":253402300800`, refusal.TokenClaims, years},
		{"exp beyond 64 bits", exp, `"exp":18446744075504785627`, refusal.TokenClaims, form},
		{"exp of 5000 digits", exp, `"exp":1` + strings.Repeat("0", 5000), refusal.TokenClaims, form},
		{"exp NaN", exp, `"exp":NaN`, refusal.TokenMalformed, object},
		{"exp Infinity", exp, `"exp":Infinity`, refusal.TokenMalformed, object},
		{"exp hexadecimal", exp, `"exp":0x6B01`, refusal.TokenMalformed, object},
		{"exp with a leading zero", exp, `"exp":01795234011`, refusal.TokenMalformed, object},
		{"exp a list", exp, `"exp":[1795234011]`, refusal.TokenClaims, form},
		{"exp twice", exp, exp + `,"exp":1895234011`, refusal.TokenMalformed, object},
		{"a member twice in an unused claim", exp, exp + `,"more":[{"a":1,"a":1}]`, refusal.TokenMalformed, object},
		{"iat missing", iat + `,`, ``, refusal.TokenClaims, `claim "iat" is missing`},
		{"iat a fraction", iat, iat + `.1`, refusal.TokenClaims, form},
		{"nbf missing", nbf + `,`, ``, refusal.TokenClaims, `claim "nbf" is missing`},
		{"nbf true", nbf, `"nbf":true`, refusal.TokenClaims, form},
		{"exp equals iat", iat, `"iat":1795234011`, refusal.TokenClaims, `claim "exp" must be later than "iat"`},
		{"exp equals nbf", nbf, `"nbf":1795234011`, refusal.TokenClaims, `claim "exp" must be later than "nbf"`},

		{"kubernetes.io missing", `"kubernetes.io"`, `"kubernetes.example"`, refusal.TokenClaims, `claim "kubernetes.io" is missing: this is not a ServiceAccount token`},
		{"kubernetes.io in upper case", `"kubernetes.io"`, `"Kubernetes.io"`, refusal.TokenClaims, `claim "kubernetes.io" is missing`},
		{"kubernetes.io twice", `"kubernetes.io":`, `"kubernetes.io":{},"kubernetes.io":`, refusal.TokenMalformed, object},
		{"namespace missing", namespace + `,`, ``, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace twice", namespace, namespace + `,"namespace":"team-b"`, refusal.TokenMalformed, object},
		{"namespace a number", namespace, `"namespace":1`, refusal.TokenClaims, form},
		{"namespace with a dot", namespace, `"namespace":"team.a"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace with a slash", namespace, `"namespace":"team/a"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace ..", namespace, `"namespace":".."`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace *", namespace, `"namespace":"*"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace with a colon", namespace, `"namespace":"team-a:x"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace in upper case", namespace, `"namespace":"Team-A"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace of letters that look alike", namespace, `"namespace":"tеam-a"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace with a dash at the end", namespace, `"namespace":"team-"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace with a dash at the start", namespace, `"namespace":"-team"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"namespace too long", namespace, `"namespace":"` + strings.Repeat("a", 64) + `"`, refusal.TokenClaims, "is not the name of a namespace"},
		{"serviceaccount missing", `"serviceaccount"`, `"serviceAccount"`, refusal.TokenClaims, `claim "kubernetes.io.serviceaccount" is missing`},
		{"serviceaccount a string", sa, `"puller"`, refusal.TokenClaims, form},
		{"serviceaccount a number", sa, `1`, refusal.TokenClaims, form},
		{"serviceaccount without name", sa, `{"uid":"6d2b46cf"}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"serviceaccount without UID", sa, `{"name":"puller"}`, refusal.TokenClaims, `claim "kubernetes.io.serviceaccount.uid" must be 1 to 128 printable`},
		{"serviceaccount with an empty UID", sa, `{"name":"puller","uid":""}`, refusal.TokenClaims, `claim "kubernetes.io.serviceaccount.uid" must be 1 to 128 printable`},
		{"serviceaccount with two names", sa, `{"name":"pusher","name":"puller","uid":"6d2b46cf"}`, refusal.TokenMalformed, object},
		{"serviceaccount too long", sa, `{"name":"` + strings.Repeat("a", 254) + `","uid":"6d2b46cf"}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"serviceaccount with an empty label", sa, `{"name":"a..b","uid":"6d2b46cf"}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"UID with a space", sa, `{"name":"puller","uid":"6d2b 46cf"}`, refusal.TokenClaims, `claim "kubernetes.io.serviceaccount.uid" must be 1 to 128 printable`},
		{"UID too long", sa, `{"name":"puller","uid":"` + strings.Repeat("6", 129) + `"}`, refusal.TokenClaims, `claim "kubernetes.io.serviceaccount.uid" must be 1 to 128 printable`},
		{"UID a number", sa, `{"name":"puller","uid":6}`, refusal.TokenClaims, form},
		{"pod a string", pod, `"app-1"`, refusal.TokenClaims, form},
		{"pod true", pod, `true`, refusal.TokenClaims, form},
		{"pod a list", pod, `[` + pod + `]`, refusal.TokenClaims, form},
		{"pod empty", pod, `{}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"pod without UID", pod, `{"name":"app-1"}`, refusal.TokenClaims, `claim "kubernetes.io.pod.uid" must be 1 to 128 printable`},
		{"pod with a slash", pod, `{"name":"team-b/app-1","uid":"da2e7a3c"}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"pod null is none", pod, `null`, refusal.TokenNotBound, ""},
		{"node empty", node, `{}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"node with a bad UID", node, `{"name":"node1","uid":" "}`, refusal.TokenClaims, `claim "kubernetes.io.node.uid" must be 1 to 128 printable`},
		{"node in upper case", node, `{"name":"NODE1","uid":"2bf1cc3e"}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
		{"secret empty", namespace, namespace + `,"secret":{}`, refusal.TokenClaims, "is not the name of a Kubernetes object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", test.old, test.new)), test.reason, test.text)
		})
	}
}

func TestPayloads(t *testing.T) {
	t.Parallel()
	good := payload(t, "kubelet")
	const (
		object = "the token's payload is not a JSON object with distinct members"
		deep   = "the token's payload is nested more than 64 deep"
	)
	f := newFixture(t, nil)
	for _, test := range []struct {
		name, payload string
		reason        refusal.Reason
		text          string
	}{
		{"empty", ``, refusal.TokenMalformed, object},
		{"null", `null`, refusal.TokenClaims, `claim "iss" is missing`},
		{"empty object", `{}`, refusal.TokenClaims, `claim "iss" is missing`},
		{"list", `[` + good + `]`, refusal.TokenClaims, "another type than issuers give it"},
		{"string", `"x"`, refusal.TokenClaims, "another type than issuers give it"},
		{"two objects", good + good, refusal.TokenMalformed, object},
		{"trailing text", good + "x", refusal.TokenMalformed, object},
		{"trailing NUL", good + "\x00", refusal.TokenMalformed, object},
		{"cut", good[:len(good)-1], refusal.TokenMalformed, object},
		{"comment", "/**/" + good, refusal.TokenMalformed, object},
		{"byte order mark", "\ufeff" + good, refusal.TokenMalformed, object},
		{"trailing comma", good[:len(good)-1] + ",}", refusal.TokenMalformed, object},
		{"line break in a string", strings.Replace(good, "team-a", "team\n-a", 1), refusal.TokenMalformed, object},
		{"not UTF-8", strings.Replace(good, "team-a", "team-\xff", 1), refusal.TokenMalformed, "not UTF-8"},
		{"64 deep", strings.Replace(good, "{", `{"x":`+strings.Repeat("[", 63)+strings.Repeat("]", 63)+`,`, 1), "", ""},
		{"65 deep", strings.Replace(good, "{", `{"x":`+strings.Repeat("[", 64)+strings.Repeat("]", 64)+`,`, 1), refusal.TokenMalformed, deep},
		{"lists too deep", strings.Repeat("[", 11000), refusal.TokenMalformed, deep},
		{"objects without end", strings.Repeat(`{"a":`, 2300), refusal.TokenMalformed, deep},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			raw := keys().rsa.sign(t, test.payload)
			if test.reason == "" {
				accept(t, f.Verifier, raw)
			} else {
				refuse(t, f.Verifier, raw, test.reason, test.text)
			}
		})
	}
}

// Unusual claims with the same meaning are accepted: newer API servers may add claims, and JSON has
// more than one form.
func TestClaimsThatAreTolerated(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	longName := strings.Repeat("a", 253)
	for _, edits := range [][]string{
		{`"iss":`, `"future":{"a":[1,2.5,null]},"ISS":"https://evil.example","iss":`},
		{`"namespace":`, `"future":[],"warnafter":1795233804,"namespace":`},
		{`"iss"`, `"\u0069ss"`},
		{`"name":"app-1"`, `"name":"app\u002d1"`},
		{`"iat":1795230411`, ` "iat" : 1795230411 `},
		{`"nbf":1795230411`, `"nbf":1795230400`},
		{`"name":"app-1"`, `"name":"` + longName + `"`},
		{`"name":"puller"`, `"name":"pull.er"`, `account:team-a:puller`, `account:team-a:pull.er`},
		{`"name":"node1"`, `"name":"ip-10-0-0-1.eu.compute.internal"`},
	} {
		accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", edits...)))
	}
}

// A claim of another type does not hide from the log what comes after it.
func TestClaimsBesideOneOfAnotherType(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	failure := refuse(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", `"aud":["registry.example.com"]`, `"aud":5`)), refusal.TokenClaims, "another type")
	if c := failure.Claimed; c.Subject == "" || c.Pod.Name == "" || c.TokenID == "" {
		t.Errorf("claimed %+v", c)
	}
}
