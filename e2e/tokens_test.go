package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	audience  = "registry.example.com" // of the tokens for Pullpass
	namespace = "team-a"
	puller    = "puller" // the ServiceAccount
)

// The kinds of tokens that a real API server issues. The names appear in test names and failures.
const (
	podScheduled    = "pod on a node" // what the kubelet asks for
	podUnscheduled  = "pod without a node"
	nodeBound       = "node"
	secretBound     = "secret"
	unbound         = "unbound"
	unboundShort    = "unbound, 10 minutes"
	unboundTwoAud   = "unbound, two audiences"
	unboundAPIAud   = "unbound, API audience"
	podYearAPIAud   = "pod volume, API audience" // 3607 s asked, one year given
	legacy          = "legacy Secret"
	serviceAccounts = "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	pods            = "/api/v1/namespaces/" + namespace + "/pods"
)

// kinds are in the order in which they are presented. The legacy token comes last: it is refused in any case, so it never
// makes Pullpass fetch the keys with which it can tell that the token is genuine.
var kinds = []string{
	podScheduled, podUnscheduled, nodeBound, secretBound, unbound, unboundShort, unboundTwoAud, unboundAPIAud, podYearAPIAud, legacy,
}

// createWorkload creates what the tokens are about: the namespace, the ServiceAccount, a Node and two pods.
func createWorkload(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	type o = cluster.Object
	c.Create(t, "/api/v1/namespaces", o{"metadata": o{"name": namespace}})
	createPuller(t, c)
	c.Create(t, "/api/v1/nodes", o{"metadata": o{"name": "node1"}})
	for name, node := range map[string]string{"scheduled": "node1", "unscheduled": ""} {
		c.Create(t, pods, o{
			"metadata": o{"name": name},
			"spec": o{
				"nodeName": node, "serviceAccountName": puller, "automountServiceAccountToken": false,
				"containers": []o{{"name": "c", "image": "localhost/team-a/app"}},
			},
		})
	}
}

func createPuller(t *testing.T, c *cluster.Cluster) cluster.Object {
	t.Helper()
	return c.Create(t, serviceAccounts, cluster.Object{"metadata": cluster.Object{
		"name":        puller,
		"annotations": cluster.Object{"pullpass.dev/repositories": "shared/base"},
	}})
}

// requestTokens returns a token of each kind.
func requestTokens(t *testing.T, c *cluster.Cluster) map[string]string {
	t.Helper()
	type o = cluster.Object
	bound := func(kind, name, path string) *cluster.Bound {
		return &cluster.Bound{Kind: kind, Name: name, UID: c.Get(t, path).UID()}
	}
	c.Create(t, "/api/v1/namespaces/"+namespace+"/secrets", o{
		"metadata": o{"name": "puller-legacy", "annotations": o{"kubernetes.io/service-account.name": puller}},
		"type":     "kubernetes.io/service-account-token",
	})
	scheduled := bound("Pod", "scheduled", pods+"/scheduled")
	requests := map[string]cluster.TokenRequest{
		podScheduled:   {Audiences: []string{audience}, Bound: scheduled},
		podUnscheduled: {Audiences: []string{audience}, Bound: bound("Pod", "unscheduled", pods+"/unscheduled")},
		nodeBound:      {Audiences: []string{audience}, Bound: bound("Node", "node1", "/api/v1/nodes/node1")},
		secretBound:    {Audiences: []string{audience}, Bound: bound("Secret", "puller-legacy", "/api/v1/namespaces/"+namespace+"/secrets/puller-legacy")},
		unbound:        {Audiences: []string{audience}},
		unboundShort:   {Audiences: []string{audience}, Lifetime: 10 * time.Minute},
		unboundTwoAud:  {Audiences: []string{audience, "second-audience"}},
		unboundAPIAud:  {},
		podYearAPIAud:  {Lifetime: 3607 * time.Second, Bound: scheduled},
	}
	tokens := map[string]string{legacy: c.LegacyToken(t, namespace, "puller-legacy")}
	for kind, r := range requests {
		r.Namespace, r.ServiceAccount = namespace, puller
		tokens[kind] = c.Token(t, r)
	}
	return tokens
}

// checkKind makes sure that the API server issued what the kind's name says: the claims that tell the kinds apart.
func checkKind(t *testing.T, kind, token string) {
	t.Helper()
	c := claims(t, token)
	if kind == legacy {
		for _, claim := range []string{"aud", "exp", "iat", "nbf", "jti", "kubernetes.io"} {
			if _, has := c[claim]; has {
				t.Errorf("%s: has the claim %s", kind, claim)
			}
		}
		if c["iss"] != "kubernetes/serviceaccount" {
			t.Errorf("%s: iss %v", kind, c["iss"])
		}
		return
	}
	want := map[string][]string{
		podScheduled: {"pod", "node"}, podYearAPIAud: {"pod", "node"}, podUnscheduled: {"pod"}, nodeBound: {"node"}, secretBound: {"secret"},
	}[kind]
	kubernetes, _ := c["kubernetes.io"].(map[string]any)
	for _, claim := range []string{"pod", "node", "secret"} {
		if _, has := kubernetes[claim]; has != slices.Contains(want, claim) {
			t.Errorf("%s: kubernetes.io is %v, want of pod, node and secret %v", kind, kubernetes, want)
		}
	}
	const year = 365 * 24 * time.Hour
	lifetime := time.Duration(number(t, c, "exp")-number(t, c, "iat")) * time.Second
	if (kind == podYearAPIAud) != (lifetime == year) {
		t.Errorf("%s: lifetime %v", kind, lifetime)
	}
	if audiences, _ := c["aud"].([]any); (kind == unboundTwoAud) != (len(audiences) == 2) {
		t.Errorf("%s: aud %v", kind, c["aud"])
	}
}

// number reads a claim that is a time in seconds.
func number(t *testing.T, claims map[string]any, claim string) int64 {
	t.Helper()
	value, _ := claims[claim].(json.Number)
	n, err := value.Int64()
	if err != nil {
		t.Fatalf("claim %s: %v", claim, err)
	}
	return n
}

// claims decodes the payload of a token without verifying it. Numbers are json.Number.
func claims(t *testing.T, token string) map[string]any { t.Helper(); return part(t, token, 1) }

// keyID is the kid in the header of a token.
func keyID(t *testing.T, token string) string {
	t.Helper()
	kid, _ := part(t, token, 0)["kid"].(string)
	return kid
}

func part(t *testing.T, token string, n int) map[string]any {
	t.Helper()
	decoded := testenv.Value(decode(token, n))(t)
	return decoded
}

// decode is part for goroutines, which must not end a test.
func decode(token string, n int) (map[string]any, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("a token of %d parts", len(parts))
	}
	encoded, err := base64.RawURLEncoding.DecodeString(parts[n])
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber() // times must stay integers when they are signed again
	var decoded map[string]any
	return decoded, decoder.Decode(&decoded)
}

// resign returns a token with the same claims, signed with another key.
func resign(t *testing.T, token string, key certs.RSAKey) string {
	t.Helper()
	return sign(t, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key.PrivateKey, KeyID: "unknown"}}, nil, claims(t, token))
}

func sign(t *testing.T, key jose.SigningKey, options *jose.SignerOptions, claims map[string]any) string {
	t.Helper()
	payload := testenv.Value(json.Marshal(claims))(t)
	signer := testenv.Value(jose.NewSigner(key, options))(t)
	signed := testenv.Value(signer.Sign(payload))(t)
	token := testenv.Value(signed.CompactSerialize())(t)
	return token
}
