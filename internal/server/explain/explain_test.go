package explain_test

import (
	"bytes"
	"flag"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// explain asks by the same code as serve, and says what was asked.
func TestExplainAsksTheAPIServer(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("serviceaccounts", "web", "annotations", kubetest.Object{"pullpass.dev/repositories": "team-a/web"})
	api.Set("namespaces", "team-a", "labels", kubetest.Object{"team": "a", "tier": "gold"})
	api.Set("nodes", "node1", "labels", kubetest.Object{"pool": "build"})
	api.Set("nodes", "node1", "status", kubetest.Object{"addresses": []kubetest.Object{{"type": "InternalIP", "address": "192.0.2.1"}}})
	api.Set("pods", "web-0", "spec", kubetest.Object{"nodeName": "node1"})
	raw := kubetest.Token(t, "https://issuer.example.com")
	onNode2 := kubetest.TokenWith(t, func(k kubetest.Object) { k["node"] = kubetest.Object{"name": "node2", "uid": "uid-4"} })
	gone := kubetest.TokenWith(t, func(k kubetest.Object) { k["pod"] = kubetest.Object{"name": "web-0", "uid": "uid-old"} })
	unnamed := kubetest.TokenWith(t, func(k kubetest.Object) { delete(k, "node") })
	api.Put("secrets", kubetest.Object{"metadata": kubetest.Object{"namespace": "team-a", "name": "pull", "uid": "uid-pull"}})
	inSecret := func(uid string) string {
		claims := kubetest.TokenClaims("https://issuer.example.com")
		claims["aud"] = []string{"pull-secrets"}
		k := claims["kubernetes.io"].(kubetest.Object)
		delete(k, "pod")
		delete(k, "node")
		k["secret"] = kubetest.Object{"name": "pull", "uid": uid}
		return kubetest.SignToken(t, claims)
	}
	const accepted = "  pullSecrets: {audience: pull-secrets, namespaces: [team-a]}\n"
	const asked = "  node: {selector: pool=build, fallback: api, proof: {mode: MODE, methods: [METHODS], clientCAFile: nodes.crt}}\n"
	settings := func(mode nodeproof.Mode, methods string) string {
		text := strings.NewReplacer("MODE", string(mode), "METHODS", methods).Replace(asked)
		if !strings.Contains(methods, "certificate") {
			text = strings.Replace(text, ", clientCAFile: nodes.crt", "", 1)
		}
		return text
	}
	noClaim := func(mode nodeproof.Mode) string {
		return "  node: {claim: optional, proof: {mode: " + string(mode) + ", methods: [certificate, address], clientCAFile: nodes.crt}}\n"
	}
	as := []string{"--as", "prod/team-a/web"}
	by := func(token string, more ...string) []string { return append([]string{"--token-file", token}, more...) }
	for name, test := range map[string]struct {
		cluster string
		args    []string
		want    []string
		not     string
	}{
		"a name": {settings(nodeproof.Enforce, "address"), as, []string{
			"prod/team-a/web, ServiceAccount UID uid-1\n", "NOT PROVEN: no token says so: --as does", "token        not judged  --as has no token",
			"objects      passed      the API server has the ServiceAccount; the token names no pod",
			`annotation   pullpass.dev/repositories: "team-a/web"`, "labels       of the namespace: team=a,tier=gold",
			"node         not judged  only a token names one", "caller       not judged  only a token names a node (node.proof.mode is enforce)",
			"GRANTED: pull", "now          granted 200\n             unless this refuses, which was not judged: token, node, caller\n",
		}, "REFUSED"},
		"a token": {settings(nodeproof.Off, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			"node         node1, UID uid-3\n", "token        passed      good until ", "objects      passed      the API server has every object that the token names\n",
			"node         passed      its labels match pool=build", "caller       off         node.proof is off in this cluster",
			"revocations  off         revocations need Redis (state.redis)", "now          granted 200\n",
		}, "PROVEN"},
		"a token in a Secret": {settings(nodeproof.Enforce, "address") + accepted, by(inSecret("uid-pull")), []string{
			"pull secret  pull, UID uid-pull\n", "objects      passed      the API server has the ServiceAccount and the Secret\n",
			"node         off         the token of a pull secret names no node", "caller       off         the token of a pull secret names no node",
			"replay       off         a token in a Secret may come from several callers\n", "now          granted 200\n",
		}, "unless"},
		"a token in a Secret that is gone": {settings(nodeproof.Enforce, "address") + accepted, by(inSecret("uid-before")), []string{
			"objects      REFUSED     the API server does not accept the token in the Secret team-a/pull", "refused 403: secret_gone", "remedy       check that pullpass pull-secrets controller runs",
		}, "granted"},
		"the pod's node": {settings(nodeproof.Off, "address"), by(unnamed), []string{"node         node1, UID uid-3, says the API server\n", "now          granted 200\n"}, "unless"},
		"a pod that is gone": {settings(nodeproof.Enforce, "address"), by(gone, "--caller", "192.0.2.1"), []string{
			"objects      REFUSED     the Pod team-a/web-0 that the token names was deleted", "now          refused 403: pod_gone; the Pod",
		}, "granted"},
		"another node": {settings(nodeproof.Off, "address"), by(onNode2), []string{"node         node2, UID uid-4", "node         REFUSED     only nodes that match", "refused 403: node_not_selected"}, "granted"},
		"an address of the node": {settings(nodeproof.Enforce, "address"), by(raw, "--caller", "192.0.2.1"), []string{
			"caller       passed      192.0.2.1 is an address of the node", "now          granted 200\n",
		}, "unless"},
		"another address": {settings(nodeproof.Enforce, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			`caller       REFUSED     the caller is not proven to be the token's node "node1"`, "now          refused 403: caller_not_node; ", "remedy       the token was sent from 192.0.2.9",
		}, "granted"},
		"another address, watched": {settings(nodeproof.Audit, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			"caller       noted       the caller is not proven", "node.proof.mode is audit: the audit log records it, and the request is not refused", "now          granted 200\n",
		}, "unless"},
		"another address, and certificates": {settings(nodeproof.Enforce, "certificate, address"), by(raw, "--caller", "192.0.2.9"), []string{
			"caller       not judged  the caller is not proven", "only its client certificate could prove it (node.proof.mode is enforce)",
			"granted 200\n             unless this refuses, which was not judged: caller\n",
		}, "REFUSED"},
		"a proxy": {settings(nodeproof.Enforce, "address"), by(raw, "--caller", "10.0.0.1"), []string{"is that of a trusted proxy", "REFUSED"}, "granted"},
		"no address": {settings(nodeproof.Enforce, "address"), by(raw), []string{
			"caller       not judged  node.proof.mode is enforce; --caller ADDRESS judges an address", "unless this refuses, which was not judged: caller\n",
		}, "REFUSED"},
		"certificates only": {settings(nodeproof.Enforce, "certificate"), by(raw, "--caller", "192.0.2.1"), []string{
			"caller       not judged  only a certificate proves one in this cluster (node.proof.mode is enforce)", "unless this refuses, which was not judged: caller\n",
		}, "REFUSED"},
		"a token that names no node": {noClaim(nodeproof.Enforce), by(unnamed), []string{
			"caller       REFUSED     the caller cannot prove", "no node is known for sure to be the token's", "refused 403: caller_not_node",
		}, "granted"},
		"a token that names no node, from an address": {noClaim(nodeproof.Enforce), by(unnamed, "--caller", "192.0.2.1"), []string{
			"no node is known for sure to be the token's", "refused 403: caller_not_node",
		}, "granted"},
		"a token that names no node, watched": {noClaim(nodeproof.Audit), by(unnamed), []string{
			"node         off         no node is known, and none is required (node.claim)", "caller       noted", "the request is not refused", "now          granted 200\n",
		}, "REFUSED"},
		"a proxy, as mapped into IPv6": {settings(nodeproof.Enforce, "address"), by(raw, "--caller", "::ffff:10.0.0.1"), []string{"is that of a trusted proxy", "REFUSED"}, "granted"},
		"pods that are not asked for":  {"", by(raw), []string{"objects      passed      the API server has the ServiceAccount; the pod is not checked (podChecks: false)"}, "REFUSED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := slices.Clone(test.args)
			p := proxytest.Connected(t, api, test.cluster)
			if name == "pods that are not asked for" {
				p = proxytest.Connected(t, api, "", "podChecks: false")
			}
			if args[0] == "--token-file" {
				testkit.Write(t, p, "token.jwt", args[1])
				args[1] = filepath.Join(p, "token.jwt")
			}
			out := testkit.Value(runExplain(t, p, args...))(t)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if test.not != "" && strings.Contains(out, test.not) {
				t.Errorf("%q is in\n%s", test.not, out)
			}
		})
	}
	dir := proxytest.Connected(t, api, "")
	if _, err := runExplain(t, dir, "--as", "prod/team-a/absent"); err == nil || err.Error() != `--as: cluster "prod" has no ServiceAccount team-a/absent` {
		t.Errorf("an unknown name: %v", err)
	}
	testkit.Write(t, dir, "token.jwt", raw)
	if _, err := runExplain(t, dir, "--token-file", filepath.Join(dir, "token.jwt"), "--caller", "worker-17"); err == nil || err.Error() != `--caller "worker-17" is not an IP address` {
		t.Errorf("a caller that is not an address: %v", err)
	}
}

// Without its API server there is no answer, and that is said at once.
func TestExplainWithAnAPIServerDown(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	dir := proxytest.Connected(t, api, "")
	api.Close()
	testkit.Write(t, dir, "token.jwt", kubetest.Token(t, "https://issuer.example.com"))
	for _, args := range [][]string{{"--as", "prod/team-a/web"}, {"--token-file", filepath.Join(dir, "token.jwt")}} {
		out, err := runExplain(t, dir, args...)
		if err == nil || !strings.Contains(err.Error(), "cluster prod: cannot get serviceaccounts team-a/web: ") || strings.Contains(out, "REFUSED") || strings.Contains(out, "GRANTED") {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
	}
}

func runExplain(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"--config", filepath.Join(dir, "pullpass.yaml"), "--scope", "repository:team-a/web:pull"}, args...)
	return explainBoth(t, args...)
}

// explainBoth returns the text of an explanation, and holds the JSON to its schema.
func explainBoth(t *testing.T, args ...string) (string, error) {
	t.Helper()
	answer, err := explained(t, args...)
	if err != nil {
		if answer != nil {
			t.Errorf("%+v, though %v", answer, err)
		}
		return "", err
	}
	asJSON(t, answer)
	var text bytes.Buffer
	testkit.Must(t, explain.WriteText(&text, answer))
	return text.String(), nil
}

// asJSON holds an answer to the schema.
func asJSON(t *testing.T, answer *explain.Explanation) []byte {
	t.Helper()
	var text bytes.Buffer
	testkit.Must(t, explain.WriteJSON(&text, answer))
	if err := proxytest.CheckExplanation(text.Bytes()); err != nil {
		t.Errorf("%v\n%s", err, &text)
	}
	return text.Bytes()
}

// explained explains with the flags of the command.
func explained(t *testing.T, args ...string) (*explain.Explanation, error) {
	t.Helper()
	var r explain.Request
	var file string
	flags := flag.NewFlagSet("explain", flag.PanicOnError)
	for name, field := range map[string]*string{
		"config": &file, "token-file": &r.TokenFile, "as": &r.As, "claims": &r.ClaimsFile, "identity": &r.Identity, "from-audit": &r.FromAudit, "caller": &r.Caller,
	} {
		flags.StringVar(field, name, "", "")
	}
	for name, list := range map[string]*[]string{"scope": &r.Scopes, "audit-file": &r.AuditFiles} {
		flags.Func(name, "", func(value string) error { *list = append(*list, value); return nil })
	}
	testkit.Must(t, flags.Parse(args))
	cfg := testkit.Value(config.Load(file))(t)
	return explain.Explain(t.Context(), cfg, r, strings.NewReader(""), io.Discard)
}
