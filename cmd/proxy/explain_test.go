package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// explain asks by the same code as serve, and says what was asked.
func TestExplainAsksTheAPIServer(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	api.set("serviceaccounts", "web", "annotations", object{"pullpass.dev/repositories": "team-a/web"})
	api.set("namespaces", "team-a", "labels", object{"team": "a", "tier": "gold"})
	api.set("nodes", "node1", "labels", object{"pool": "build"})
	api.set("nodes", "node1", "status", object{"addresses": []object{{"type": "InternalIP", "address": "192.0.2.1"}}})
	api.set("pods", "web-0", "spec", object{"nodeName": "node1"})
	raw := serviceAccountToken(t, "https://issuer.example.com")
	onNode2 := tokenWith(t, func(k object) { k["node"] = object{"name": "node2", "uid": "uid-4"} })
	gone := tokenWith(t, func(k object) { k["pod"] = object{"name": "web-0", "uid": "uid-old"} })
	unnamed := tokenWith(t, func(k object) { delete(k, "node") })
	const asked = "  node: {selector: pool=build, fallback: api, proof: {mode: MODE, methods: [METHODS], clientCAFile: nodes.crt}}\n"
	settings := func(mode, methods string) string {
		text := strings.NewReplacer("MODE", mode, "METHODS", methods).Replace(asked)
		if !strings.Contains(methods, proofCertificate) {
			text = strings.Replace(text, ", clientCAFile: nodes.crt", "", 1)
		}
		return text
	}
	noClaim := func(mode string) string {
		return "  node: {claim: optional, proof: {mode: " + mode + ", methods: [certificate, address], clientCAFile: nodes.crt}}\n"
	}
	as := []string{"--as", "prod/team-a/web"}
	by := func(token string, more ...string) []string { return append([]string{"--token-file", token}, more...) }
	for name, test := range map[string]struct {
		cluster string
		args    []string
		want    []string
		not     string
	}{
		"a name": {settings(modeEnforce, "address"), as, []string{
			"UID uid-1", `annotation   pullpass.dev/repositories: "team-a/web"`, "labels       of the namespace: team=a,tier=gold",
			"caller       is not judged: only a token names a node", "GRANTED: pull",
		}, "REFUSED"},
		"a token": {settings(modeOff, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			"node         node1, UID uid-3\n", "selector     the node matches pool=build", "caller       192.0.2.9 is not judged: node.proof is off in this cluster", "GRANTED: pull",
		}, "REFUSED"},
		"the pod's node": {settings(modeOff, "address"), by(unnamed), []string{"node         node1, UID uid-3, says the API server", "GRANTED: pull"}, "caller"},
		"a pod that is gone": {settings(modeEnforce, "address"), by(gone, "--caller", "192.0.2.1"), []string{
			"REFUSED      the Pod team-a/web-0 that the token names was deleted", "reason       pod_gone",
		}, "GRANTED"},
		"another node": {settings(modeOff, "address"), by(onNode2), []string{"node         node2, UID uid-4", "REFUSED      only nodes that match", "reason       node_not_selected"}, "GRANTED"},
		"an address of the node": {settings(modeEnforce, "address"), by(raw, "--caller", "192.0.2.1"), []string{
			"caller       192.0.2.1 is an address of the node", "GRANTED: pull",
		}, "REFUSED"},
		"another address": {settings(modeEnforce, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			`caller       the caller is not proven to be the token's node "node1"`, "REFUSED      node.proof.mode is enforce (403)",
		}, "GRANTED"},
		"another address, watched": {settings(modeAudit, "address"), by(raw, "--caller", "192.0.2.9"), []string{
			"not proven", "node.proof.mode is audit: it is written down, and nobody is refused", "GRANTED: pull",
		}, "REFUSED"},
		"another address, and certificates": {settings(modeEnforce, "certificate, address"), by(raw, "--caller", "192.0.2.9"), []string{
			"not proven", "REFUSED (403) unless its client certificate proves it", "GRANTED: pull",
		}, ""},
		"a proxy": {settings(modeEnforce, "address"), by(raw, "--caller", "10.0.0.1"), []string{"is that of a trusted proxy", "REFUSED"}, "GRANTED"},
		"no address": {settings(modeEnforce, "address"), by(raw), []string{
			"caller       is not judged (node.proof.mode is enforce); --caller ADDRESS does", "GRANTED: pull",
		}, "REFUSED"},
		"certificates only": {settings(modeEnforce, "certificate"), by(raw, "--caller", "192.0.2.1"), []string{
			"caller       is not judged (node.proof.mode is enforce); only a certificate proves one in this cluster", "GRANTED: pull",
		}, "REFUSED"},
		"a token that names no node": {noClaim(modeEnforce), by(unnamed), []string{
			"no node is known for sure to be the token's", "REFUSED      node.proof.mode is enforce (403)",
		}, "GRANTED"},
		"a token that names no node, from an address": {noClaim(modeEnforce), by(unnamed, "--caller", "192.0.2.1"), []string{
			"no node is known for sure to be the token's", "REFUSED      node.proof.mode is enforce (403)",
		}, "GRANTED"},
		"a token that names no node, watched": {noClaim(modeAudit), by(unnamed), []string{
			"no node is known for sure to be the token's", "nobody is refused", "GRANTED: pull",
		}, "REFUSED"},
		"a proxy, as mapped into IPv6": {settings(modeEnforce, "address"), by(raw, "--caller", "::ffff:10.0.0.1"), []string{"is that of a trusted proxy", "REFUSED"}, "GRANTED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := slices.Clone(test.args)
			p := explainFiles(t, api, test.cluster)
			if args[0] == "--token-file" {
				write(t, p, "token.jwt", args[1])
				args[1] = filepath.Join(p, "token.jwt")
			}
			out, err := runExplain(t, p, args...)
			must(t, err)
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
	dir := explainFiles(t, api, "")
	if _, err := runExplain(t, dir, "--as", "prod/team-a/nobody"); err == nil || err.Error() != `pullpass: --as: cluster "prod" has no ServiceAccount team-a/nobody` {
		t.Errorf("a name that nobody has: %v", err)
	}
	write(t, dir, "token.jwt", raw)
	if _, err := runExplain(t, dir, "--token-file", filepath.Join(dir, "token.jwt"), "--caller", "worker-17"); err == nil || err.Error() != `pullpass: --caller "worker-17" is not an IP address` {
		t.Errorf("a caller that is no address: %v", err)
	}
}

// Without its API server there is no answer, and that is said at once.
func TestExplainWithAnAPIServerDown(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	dir := explainFiles(t, api, "")
	api.Close()
	write(t, dir, "token.jwt", serviceAccountToken(t, "https://issuer.example.com"))
	for _, args := range [][]string{{"--as", "prod/team-a/web"}, {"--token-file", filepath.Join(dir, "token.jwt")}} {
		out, err := runExplain(t, dir, args...)
		if err == nil || !strings.Contains(err.Error(), "cluster prod: cannot get serviceaccounts team-a/web: ") || strings.Contains(out, "REFUSED") || strings.Contains(out, "GRANTED") {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
	}
}

// explainFiles returns a directory with a configuration; cluster are fields of
// its cluster.
func explainFiles(t *testing.T, api *apiServer, cluster string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "kubeconfig", api.kubeconfig())
	write(t, dir, "policy.yaml", policyFor("elsewhere/**")+annotationRule)
	write(t, dir, "issuer.json", issuerJWKS(t))
	write(t, dir, "pullpass.yaml", `
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
server: {trustedProxies: [10.0.0.0/8]}
clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
  kubernetes: {kubeconfigFile: kubeconfig}
`+cluster+`
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`)
	return dir
}

func runExplain(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append([]string{"explain", "--config", filepath.Join(dir, "pullpass.yaml"), "--scope", "repository:team-a/web:pull"}, args...)
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 {
		return stdout.String(), errors.New(strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
