package explain_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server"
	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Whatever serve decides, explain says the same: of the same token from the
// same address, and of the line that serve has written, while nothing changes.
func TestExplainAgreesWithServe(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("serviceaccounts", "web", "annotations", kubetest.Object{"pullpass.dev/repositories": "team-a/web shared/x:push"})
	api.Set("namespaces", "team-a", "labels", kubetest.Object{"team": "a"})
	api.Set("nodes", "node1", "labels", kubetest.Object{"pool": "build"})
	api.Set("nodes", "node1", "status", kubetest.Object{"addresses": []kubetest.Object{{"type": "InternalIP", "address": "192.0.2.1"}}})
	api.Set("pods", "web-0", "spec", kubetest.Object{"nodeName": "node1"})
	const policy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: labelled, subjects: [{namespaceSelector: team=a}], allow: [{repositories: ["labelled/**"], actions: [pull]}]}
- {name: noded, subjects: [{nodes: ["node*"]}], allow: [{repositories: ["nodes/**"], actions: [pull, push]}]}
- {name: public, anonymous: true, allow: [{repositories: ["public/**"], actions: [pull]}]}
`
	const denials = "deny: [{name: stolen, subjects: [{tokenIDs: [stolen]}]}]\n"
	claims := func(change func(claims, kubernetes kubetest.Object)) string {
		all := kubetest.TokenClaims("https://issuer.example.com")
		change(all, all["kubernetes.io"].(kubetest.Object))
		return kubetest.SignToken(t, all)
	}
	tokens := map[string]string{
		"":              "",
		"good":          kubetest.Token(t, "https://issuer.example.com"),
		"stolen":        claims(func(c, _ kubetest.Object) { c["jti"] = "stolen" }),
		"nodeless":      claims(func(_, k kubetest.Object) { delete(k, "node") }),
		"other node":    claims(func(_, k kubetest.Object) { k["node"] = kubetest.Object{"name": "node2", "uid": "uid-4"} }),
		"pod gone":      claims(func(_, k kubetest.Object) { k["pod"] = kubetest.Object{"name": "web-0", "uid": "uid-old"} }),
		"account gone":  claims(func(_, k kubetest.Object) { k["serviceaccount"] = kubetest.Object{"name": "web", "uid": "uid-old"} }),
		"expired":       claims(func(c, _ kubetest.Object) { c["exp"], c["iat"], c["nbf"] = 1700003600, 1700000000, 1700000000 }),
		"other issuer":  claims(func(c, _ kubetest.Object) { c["iss"] = "https://other.example.com" }),
		"other purpose": claims(func(c, _ kubetest.Object) { c["aud"] = []string{"other"} }),
	}
	scopes := [][]string{nil, {"repository:labelled/x:pull,push"}, {"repository:nodes/x:pull", "repository:team-a/web:pull"}, {"repository:shared/x:push", "registry:catalog:*"}, {"repository:public/x:pull"}, {"plugin:x:pull"}}
	for name, cluster := range map[string]string{
		"plain":      "",
		"by address": "  node: {fallback: api, proof: {mode: enforce, methods: [address]}}\n",
		"watched":    "  node: {claim: optional, proof: {mode: audit, methods: [address]}}\n",
		"selected":   "  node: {selector: pool=build, fallback: api}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := proxytest.New(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n"+cluster, map[string]string{
				"kubeconfig": api.Kubeconfig(), "policy.yaml": policy + proxytest.AnnotationRule + denials,
			})
			cfg := testkit.Value(config.Load(filepath.Join(p.Dir, "pullpass.yaml")))(t)
			service, err := server.New(server.Config{Config: cfg, Version: "test", Getenv: func(string) string { return "" }, Stdout: p.Stdout, Logger: testkit.QuietLogger()})
			testkit.Must(t, err)
			ask := func(args ...string) explain.Explanation {
				t.Helper()
				explanation := testkit.Value(explained(t, append([]string{"--config", filepath.Join(p.Dir, "pullpass.yaml")}, args...)...))(t)
				var answer explain.Explanation
				testkit.Must(t, json.Unmarshal(asJSON(t, explanation), &answer))
				return answer
			}
			same := func(what string, event exchange.Event, now explain.Outcome) {
				t.Helper()
				if event.Result != now.Result || event.Status != now.Status || event.Reason != now.Reason || event.Rule != now.Rule || !slices.Equal(event.Granted, now.Granted) {
					t.Errorf("%s: serve says\n%+v\nand explain\n%+v", what, event, now)
				}
			}
			for token, raw := range tokens {
				for _, address := range []string{"192.0.2.1", "192.0.2.9"} {
					for i, asked := range scopes {
						if i > 1 && token != "good" && token != "nodeless" && token != "" {
							continue // a refusal of the subject holds for every scope
						}
						request := httptest.NewRequest(http.MethodGet, "/token?"+url.Values{"service": {"registry.example.com"}, "scope": asked}.Encode(), nil)
						request.RemoteAddr = address + ":1234"
						args := []string{"--caller", address}
						for _, scope := range asked {
							args = append(args, "--scope", scope)
						}
						if raw != "" {
							request.SetBasicAuth("x", raw)
							testkit.Write(t, p.Dir, "token.jwt", raw)
						}
						service.Public.ServeHTTP(httptest.NewRecorder(), request)
						event, what := p.LastEvent(t), token+" "+address+" "+strings.Join(asked, " ")
						if raw != "" {
							same(what, event, ask(append(args, "--token-file", filepath.Join(p.Dir, "token.jwt"))...).Now)
						}
						if event.Claimed != nil && event.Reason != "token_unknown_issuer" {
							continue // a good token is judged, and not this one
						}
						testkit.Write(t, p.Dir, "audit.log", p.Stdout.String())
						again := ask("--from-audit", event.ID, "--audit-file", filepath.Join(p.Dir, "audit.log"))
						same(what+", of the log", event, again.Now)
						if again.Changes != nil {
							t.Errorf("%s: changed %+v", what, again.Changes)
						}
					}
				}
			}
		})
	}
}
