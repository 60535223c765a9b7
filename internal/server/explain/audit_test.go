package explain_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// auditOf is the line that a serving proxy would have written of a request of
// the ServiceAccount that the API server of the tests has.
func auditOf(t *testing.T, change func(line kubetest.Object)) string {
	t.Helper()
	line := kubetest.Object{
		"time": "2026-03-01T09:00:00Z", "id": "ID", "result": "granted", "status": 200,
		"cluster": "prod", "namespace": "team-a", "serviceAccount": kubetest.Object{"name": "web", "uid": "uid-1"},
		"pod": kubetest.Object{"name": "web-0", "uid": "uid-2"}, "node": kubetest.Object{"name": "node1", "uid": "uid-3"}, "credentialID": "JTI=id-1",
		"service": "registry.example.com", "grantType": "password", "requested": []string{"repository:team-a/web:pull"},
		"granted": []string{"repository:team-a/web:pull"}, "rule": "annotated", "issuedID": "I", "caller": "192.0.2.9", "latency": 0.001,
	}
	change(line)
	text := testkit.Value(json.Marshal(line))(t)
	proxytest.CheckAuditLines(t, text)
	return string(text) + "\n"
}

// A line of the audit log is judged as a serving proxy would judge the same pod
// now: by the objects of now, and by its address.
func TestExplainFromAuditAsksTheAPIServer(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("serviceaccounts", "web", "annotations", kubetest.Object{"pullpass.dev/repositories": "team-a/web"})
	api.Set("nodes", "node1", "labels", kubetest.Object{"pool": "build"})
	api.Set("nodes", "node1", "status", kubetest.Object{"addresses": []kubetest.Object{{"type": "InternalIP", "address": "192.0.2.1"}}})
	api.Set("pods", "web-0", "spec", kubetest.Object{"nodeName": "node1"})
	const byAddress = "  node: {proof: {mode: enforce, methods: [address]}}\n"
	const byBoth = "  node: {proof: {mode: enforce, methods: [certificate, address], clientCAFile: nodes.crt}}\n"
	byCertificate := func(line kubetest.Object) {
		line["proof"] = kubetest.Object{"mode": "enforce", "passed": true, "method": "certificate"}
	}
	inSecret := func(line kubetest.Object) {
		delete(line, "pod")
		delete(line, "node")
		line["pullSecret"] = kubetest.Object{"name": "pull", "uid": "uid-pull"}
	}
	for name, test := range map[string]struct {
		cluster string
		change  func(line kubetest.Object)
		want    []string
		not     string
	}{
		"as it was": {"", func(kubetest.Object) {}, []string{
			"objects      passed      the API server has every object that the token names\n", "node         node1, UID uid-3\n",
			"now          granted 200\n             unless this refuses, which was not judged: token\n",
		}, "REFUSED"},
		"the rule has another name now": {"", func(line kubetest.Object) { line["rule"] = "other" }, []string{"changed      rule: other -> asked-for\n"}, "REFUSED"},
		"a ServiceAccount that was made again": {"", func(line kubetest.Object) { line["serviceAccount"] = kubetest.Object{"name": "web", "uid": "uid-0"} }, []string{
			"objects      REFUSED     the ServiceAccount team-a/web that the token names was deleted", "refused 403: service_account_gone",
			"changed      result: granted -> refused\n", "remedy       recreate the ServiceAccount if it is missing; the kubelet gets a new token",
		}, "not for it"},
		"a pod that is gone": {"", func(line kubetest.Object) { line["pod"] = kubetest.Object{"name": "web-0", "uid": "uid-old"} }, []string{"refused 403: pod_gone"}, "not for it"},
		"a token in a Secret": {byAddress + "  pullSecrets: {audience: a, namespaces: [team-*]}\n", inSecret, []string{
			"pull secret  pull, UID uid-pull\n", "objects      passed      the API server has the ServiceAccount; without the token, the Secret cannot be verified\n",
			"the rest assumes a valid token in the same Secret", "now          granted 200\n             unless this refuses, which was not judged: token\n",
		}, "REFUSED"},
		"a token in a Secret of a namespace that is not allowed now": {"  pullSecrets: {audience: a, namespaces: [team-b]}\n", inSecret, []string{"refused 401: token_pull_secret"}, "granted 200\n"},
		"a token in a Secret where none is accepted now":             {"", inSecret, []string{"refused 401: token_audience"}, "granted 200\n"},
		"a node that the API server named": {"  node: {fallback: api, selector: pool=build}\n", func(line kubetest.Object) {
			line["nodeFromAPI"], line["node"] = true, kubetest.Object{"name": "node-of-then", "uid": "uid-then"}
		}, []string{"node         node1, UID uid-3, says the API server\n", "node         passed      its labels match pool=build\n"}, "node-of-then, UID"},
		"a node that the API server no longer names": {"", func(line kubetest.Object) { line["nodeFromAPI"] = true }, []string{
			"node         REFUSED     neither the token nor its pod names a node", "refused 401: token_no_node",
		}, "granted 200\n"},
		"an address that is not the node's": {byAddress, func(kubetest.Object) {}, []string{
			"caller       REFUSED     the caller is not proven to be the token's node", "refused 403: caller_not_node",
		}, "not judged  node.proof"},
		"an address that is the node's": {byAddress, func(line kubetest.Object) { line["caller"] = "192.0.2.1" }, []string{"caller       passed      192.0.2.1 is an address of the node\n"}, "REFUSED"},
		"a caller that showed its certificate": {byBoth, byCertificate, []string{
			"caller       not judged  its client certificate proved the node then, but the log does not contain certificates (node.proof.mode is enforce)\n",
			"unless this refuses, which was not judged: token, caller\n",
		}, "REFUSED"},
		"a certificate that counts no more": {byAddress, byCertificate, []string{"refused 403: caller_not_node"}, "proved it then"},
		"a line without an address":         {byAddress, func(line kubetest.Object) { delete(line, "caller") }, []string{"caller       not judged  node.proof.mode is enforce; the line has no address\n"}, "--caller"},
		"a claim of a ServiceAccount": {"", func(line kubetest.Object) {
			for _, field := range []string{"serviceAccount", "namespace", "pod", "node", "credentialID", "granted", "rule", "issuedID"} {
				delete(line, field)
			}
			line["result"], line["status"], line["reason"], line["message"] = "refused", 401, "token_signature", "wrong"
			line["claimed"] = kubetest.Object{"issuer": "https://issuer.example.com", "subject": "system:serviceaccount:team-a:web", "pod": "web-0", "node": "node1"}
		}, []string{
			"subject      prod/team-a/web, ServiceAccount UID uid-1\n             NOT PROVEN: a token that was refused (token_signature) claimed it, and anyone can make such a token\n",
			"token        not judged  it was refused at 2026-03-01T09:00:00Z (token_signature)", "changed      cannot be said",
		}, "pod          "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := proxytest.Connected(t, api, test.cluster)
			testkit.Write(t, dir, "audit.log", auditOf(t, test.change))
			out := testkit.Value(explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log")))(t)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Contains(out, test.not) {
				t.Errorf("%q is in\n%s", test.not, out)
			}
		})
	}
	// A refused token that claims an unknown ServiceAccount gets no explanation.
	dir := proxytest.Connected(t, api, "")
	testkit.Write(t, dir, "audit.log", auditOf(t, func(line kubetest.Object) {
		for _, field := range []string{"serviceAccount", "namespace", "pod", "node", "credentialID", "granted", "rule", "issuedID"} {
			delete(line, field)
		}
		line["result"], line["status"], line["reason"], line["message"] = "refused", 401, "token_signature", "wrong"
		line["claimed"] = kubetest.Object{"issuer": "https://issuer.example.com", "subject": "system:serviceaccount:team-a:absent"}
	}))
	_, err := explainBoth(t, "--config", filepath.Join(dir, "pullpass.yaml"), "--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log"))
	if want := `the refused token claims to be one of team-a/absent: cluster "prod" has no ServiceAccount team-a/absent`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// revocationsOf opens the revocations that a configuration names.
func revocationsOf(t *testing.T, file string) *state.RedisRevocations {
	t.Helper()
	cfg, err := config.Load(file)
	testkit.Must(t, err)
	list, closeList, err := setup.OpenRevocations(cfg)
	testkit.Must(t, err)
	t.Cleanup(closeList)
	return list
}

func revoke(t *testing.T, list *state.RedisRevocations, target state.Target, reason string) {
	t.Helper()
	testkit.Must(t, list.Add(t.Context(), state.Revocation{Target: target, By: "alice", Reason: reason, Until: time.Now().Add(time.Hour)}))
}

// Revocations are read from Redis. The output names each check that could not be done.
func TestExplainJudgesRevocations(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	api := kubetest.NewAPIServer(t)
	dir := proxytest.Connected(t, api, "")
	file := filepath.Join(dir, "pullpass.yaml")
	settings := testkit.Value(os.ReadFile(file))(t)
	testkit.Write(t, dir, "pullpass.yaml", string(settings)+proxytest.WithRedis(redis.Address(), "enforce"))
	testkit.Write(t, dir, "audit.log", auditOf(t, func(kubetest.Object) {}))
	testkit.Write(t, dir, "token.jwt", kubetest.Token(t, "https://issuer.example.com"))
	list := revocationsOf(t, file)
	account := state.Target{Kind: state.TargetServiceAccount, Cluster: "prod", Namespace: "team-a", Name: "web"}
	expect := func(source string, want ...string) {
		t.Helper()
		args := map[string][]string{
			"name": {"--as", "prod/team-a/web"}, "token": {"--token-file", filepath.Join(dir, "token.jwt")}, "audit": {"--from-audit", "ID", "--audit-file", filepath.Join(dir, "audit.log")},
		}[source]
		out := testkit.Value(explainBoth(t, append([]string{"--config", file}, args...)...))(t)
		for _, want := range want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", source, want, out)
			}
		}
	}
	expect("name", "revocations  passed      not revoked: ServiceAccount; not checked, because the request names none: token, pod, node\n",
		"replay       not judged  only the serving proxies know which caller presented the token first (state.replay is enforce)\n", "not judged: token, node, replay\n")
	expect("token", "revocations  passed      not revoked: ServiceAccount, token, pod, node\n", "not judged: replay\n")
	expect("audit", "revocations  passed      not revoked: ServiceAccount, token, pod, node\n")

	revoke(t, list, account, "examined")
	for _, source := range []string{"name", "token", "audit"} {
		expect(source, `revocations  REFUSED     revoked by an operator: "examined" (--service-account prod/team-a/web until `, `by "alice")`+"\n", `now          refused 403: revoked; revoked by an operator: "examined"`,
			"remedy       an administrator of Pullpass can end it")
	}
	testkit.Must(t, list.Remove(t.Context(), account, "alice"))
	revoke(t, list, state.Target{Kind: state.TargetNode, Cluster: "prod", Name: "node1"}, "examined")
	expect("name", "revocations  passed  ", "granted 200")
	expect("audit", "REFUSED     revoked by an operator", "changed      result: granted -> refused\n")

	redis.Kill()
	expect("name", "revocations  not judged  whether the ServiceAccount is revoked is not known: ", "the rest assumes that it is not revoked\n", "not judged: token, node, revocations, replay\n")
	expect("token", "revocations  not judged  whether the ServiceAccount, token, pod, node is revoked is not known: ", "now          granted 200", "not judged: revocations, replay\n")
}
