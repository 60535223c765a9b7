package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
)

// Whatever serve decides, explain says the same: of the same token from the
// same address, and of the line that serve has written, while nothing changes.
func TestExplainAgreesWithServe(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	api.set("serviceaccounts", "web", "annotations", object{"pullpass.dev/repositories": "team-a/web shared/x:push"})
	api.set("namespaces", "team-a", "labels", object{"team": "a"})
	api.set("nodes", "node1", "labels", object{"pool": "build"})
	api.set("nodes", "node1", "status", object{"addresses": []object{{"type": "InternalIP", "address": "192.0.2.1"}}})
	api.set("pods", "web-0", "spec", object{"nodeName": "node1"})
	const policy = `
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- {name: labelled, subjects: [{namespaceSelector: team=a}], allow: [{repositories: ["labelled/**"], actions: [pull]}]}
- {name: noded, subjects: [{nodes: ["node*"]}], allow: [{repositories: ["nodes/**"], actions: [pull, push]}]}
- {name: public, anonymous: true, allow: [{repositories: ["public/**"], actions: [pull]}]}
`
	const denials = "deny: [{name: stolen, subjects: [{tokenIDs: [stolen]}]}]\n"
	claims := func(change func(claims, kubernetes object)) string {
		all := tokenClaims("https://issuer.example.com")
		change(all, all["kubernetes.io"].(object))
		return signToken(t, all)
	}
	tokens := map[string]string{
		"":              "",
		"good":          serviceAccountToken(t, "https://issuer.example.com"),
		"stolen":        claims(func(c, _ object) { c["jti"] = "stolen" }),
		"nodeless":      claims(func(_, k object) { delete(k, "node") }),
		"other node":    claims(func(_, k object) { k["node"] = object{"name": "node2", "uid": "uid-4"} }),
		"pod gone":      claims(func(_, k object) { k["pod"] = object{"name": "web-0", "uid": "uid-old"} }),
		"account gone":  claims(func(_, k object) { k["serviceaccount"] = object{"name": "web", "uid": "uid-old"} }),
		"expired":       claims(func(c, _ object) { c["exp"], c["iat"], c["nbf"] = 1700003600, 1700000000, 1700000000 }),
		"other issuer":  claims(func(c, _ object) { c["iss"] = "https://other.example.com" }),
		"other purpose": claims(func(c, _ object) { c["aud"] = []string{"other"} }),
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
			p := newSite(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n"+cluster, map[string]string{
				"kubeconfig": api.kubeconfig(), "policy.yaml": policy + annotationRule + denials,
			})
			cfg, err := LoadConfig(filepath.Join(p.dir, "pullpass.yaml"))
			must(t, err)
			service, err := newService(serviceConfig{Config: cfg, Version: "test", Stdout: p.stdout, Logger: quietLogger()})
			must(t, err)
			explain := func(args ...string) explanation {
				t.Helper()
				var stdout, stderr bytes.Buffer
				args = append([]string{"explain", "--config", filepath.Join(p.dir, "pullpass.yaml"), "-o", "json"}, args...)
				if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 {
					t.Fatalf("%q: %s", args, &stderr)
				}
				var answer explanation
				must(t, checkExplanation(stdout.Bytes()))
				must(t, json.Unmarshal(stdout.Bytes(), &answer))
				return answer
			}
			same := func(what string, event exchange.Event, now outcome) {
				t.Helper()
				if event.Result != now.Result || event.Status != now.Status || event.Reason != now.Reason || event.Rule != now.Rule || !slices.Equal(event.Granted, now.Granted) {
					t.Errorf("%s: serve says\n%+v\nand explain\n%+v", what, event, now)
				}
			}
			for token, raw := range tokens {
				for _, address := range []string{"192.0.2.1", "192.0.2.9"} {
					for i, asked := range scopes {
						if i > 1 && token != "good" && token != "nodeless" && token != "" {
							continue // whoever is refused is refused whatever is asked for
						}
						request := httptest.NewRequest(http.MethodGet, "/token?"+url.Values{"service": {"registry.example.com"}, "scope": asked}.Encode(), nil)
						request.RemoteAddr = address + ":1234"
						args := []string{"--caller", address}
						for _, scope := range asked {
							args = append(args, "--scope", scope)
						}
						if raw != "" {
							request.SetBasicAuth("x", raw)
							write(t, p.dir, "token.jwt", raw)
						}
						service.public.ServeHTTP(httptest.NewRecorder(), request)
						event, what := p.lastEvent(t), token+" "+address+" "+strings.Join(asked, " ")
						if raw != "" {
							same(what, event, explain(append(args, "--token-file", filepath.Join(p.dir, "token.jwt"))...).Now)
						}
						if event.Claimed != nil && event.Reason != "token_unknown_issuer" {
							continue // a good token is judged, and not this one
						}
						write(t, p.dir, "audit.log", p.stdout.String())
						again := explain("--from-audit", event.ID, "--audit-file", filepath.Join(p.dir, "audit.log"))
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
