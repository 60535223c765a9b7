package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// policy gives a ServiceAccount its namespace, and the repositories of shared that its annotation lists.
const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{clusters: [e2e], namespaces: [team-a], serviceAccounts: ["*"]}]
  services: [registry.example.com]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
`

const service = "registry.example.com"

var (
	asked    = []string{"repository:team-a/web:pull,push", "repository:shared/base:pull", "repository:team-b/web:pull"}
	given    = []string{"repository:shared/base:pull", "repository:team-a/web:pull"}
	withheld = []string{"repository:team-a/web:pull,push", "repository:team-b/web:pull"}
	modeList = []string{"pod", "pod, node optional", "pod-or-node", "pod-or-node, node optional", "any, node required", "any"}
)

// judgement says for each kind of token and each mode why it is refused; "" means that it passes.
var judgement = map[string][6]string{
	podScheduled:   {"", "", "", "", "", ""},
	podUnscheduled: {"token_no_node", "", "token_no_node", "", "token_no_node", ""},
	nodeBound:      {"token_not_bound", "token_not_bound", "", "", "", ""},
	// The Secret that a token is bound to says nothing about where it is used: it counts as unbound.
	secretBound:   {"token_not_bound", "token_not_bound", "token_not_bound", "token_not_bound", "token_no_node", ""},
	unbound:       {"token_not_bound", "token_not_bound", "token_not_bound", "token_not_bound", "token_no_node", ""},
	unboundShort:  {"token_not_bound", "token_not_bound", "token_not_bound", "token_not_bound", "token_no_node", ""},
	unboundTwoAud: {"token_not_bound", "token_not_bound", "token_not_bound", "token_not_bound", "token_no_node", ""},
	unboundAPIAud: {"token_audience", "token_audience", "token_audience", "token_audience", "token_audience", "token_audience"},
	podYearAPIAud: {"token_audience", "token_audience", "token_audience", "token_audience", "token_audience", "token_audience"},
	legacy:        {"token_legacy", "token_legacy", "token_legacy", "token_legacy", "token_legacy", "token_legacy"},
}

// TestAPIServerTokens presents every kind of token that a real API server issues, in every mode: exactly the right ones pass.
func TestAPIServerTokens(t *testing.T) {
	key := certs.NewRSAKey(t)
	c := cluster.Start(t, key)
	c.StartTokenController(t, key)
	createWorkload(t, c)
	c.OpenDiscovery(t)
	manifest := serviceAccountManifest(t, c)
	tokens := requestTokens(t, c)
	for _, kind := range kinds {
		checkKind(t, kind, tokens[kind])
	}
	ca := certs.NewCA(t, "pullpass-ca")

	config := func(bound, claim string, audiences ...string) pullpass.Config {
		return pullpass.Config{
			Clusters: []pullpass.Cluster{{
				Name: "e2e", Issuer: c.Issuer, Audiences: audiences, Bound: bound,
				Node:       pullpass.Node{Claim: claim},
				Discovery:  pullpass.Discovery{CAFile: c.CA.File},
				Kubernetes: pullpass.Kubernetes{ManifestFiles: []string{manifest}},
			}},
			Policy:  policy,
			Service: service,
		}
	}

	modes := []struct {
		bound, claim string // empty: the default
		column       string
	}{
		{"", "", "pod"},
		{"pod", "", "pod"},
		{"pod", "required", "pod"},
		{"pod", "optional", "pod, node optional"},
		{"pod-or-node", "", "pod-or-node"},
		{"pod-or-node", "required", "pod-or-node"},
		{"pod-or-node", "optional", "pod-or-node, node optional"},
		{"any", "required", "any, node required"},
		{"any", "optional", "any"},
		{"any", "", "any"}, // tokens that are bound to nothing have no node, so here the default is optional
	}
	for _, mode := range modes {
		t.Run(fmt.Sprintf("bound=%s,node.claim=%s", orDefault(mode.bound), orDefault(mode.claim)), func(t *testing.T) {
			proxy := pullpass.Start(t, ca, config(mode.bound, mode.claim, audience))
			for _, kind := range kinds {
				t.Run(kind, func(t *testing.T) {
					reason := judgement[kind][slices.Index(modeList, mode.column)]
					judge(t, proxy, tokens[kind], reason)
				})
			}
		})
	}

	t.Run("through the kubelet's plugin", func(t *testing.T) {
		username, password := throughPlugin(t, "registry.example.com:5000", tokens[podScheduled])
		if username == "" {
			t.Error("containerd drops a credential without a username")
		}
		judge(t, pullpass.Start(t, ca, config("", "", audience)), password, "")
	})

	// Were the API audience configured, the token that every pod finds in its volume would be a password for a year.
	t.Run("API audience configured", func(t *testing.T) {
		proxy := pullpass.Start(t, ca, config("any", "optional", c.Issuer))
		judge(t, proxy, tokens[podYearAPIAud], "token_lifetime")
		judge(t, proxy, tokens[unboundAPIAud], "")
		judge(t, proxy, tokens[podScheduled], "token_audience")
		judge(t, proxy, tokens[legacy], "token_legacy")
	})

	// The annotation belongs to the ServiceAccount with the UID of the manifest, not to a later one of the same name.
	t.Run("ServiceAccount recreated", func(t *testing.T) {
		proxy := pullpass.Start(t, ca, config("any", "", audience))
		c.Delete(t, serviceAccounts+"/"+puller)
		createPuller(t, c)
		token := c.Token(t, cluster.TokenRequest{Namespace: namespace, ServiceAccount: puller, Audiences: []string{audience}})
		answer := proxy.Get(t, service, token, asked...)
		if answer.Status != http.StatusOK {
			t.Fatalf("status %d, audit %+v", answer.Status, answer.Audit)
		}
		if got, want := access(t, answer.Body.Token), []string{"repository:team-a/web:pull"}; !slices.Equal(got, want) {
			t.Errorf("access %v, want %v", got, want)
		}
	})
}

func orDefault(setting string) string {
	if setting == "" {
		return "default"
	}
	return setting
}

// serviceAccountManifest writes the ServiceAccount as the API server shows it to a file.
func serviceAccountManifest(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	content := testenv.Value(json.Marshal(c.Get(t, serviceAccounts+"/"+puller)))(t)
	return testenv.WriteFile(t, filepath.Join(t.TempDir(), "serviceaccount.yaml"), content)
}

// judge presents the token with POST and with GET. It must pass when reason is empty, and otherwise be refused for it.
func judge(t *testing.T, proxy *pullpass.Proxy, token, reason string) {
	t.Helper()
	post := proxy.Post(t, service, token, asked...)
	get := proxy.Get(t, service, token, asked...)
	for method, answer := range map[string]pullpass.Answer{"POST": post, "GET": get} {
		if got := answer.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control %q, want no-store", method, got)
		}
		if reason == "" {
			checkGranted(t, method, token, answer)
		} else {
			checkRefused(t, method, token, answer, reason)
		}
	}
	// The two wire forms of a POST that a GET does not have.
	if scope := post.Body.Scope; reason == "" && (scope == nil || *scope != strings.Join(given, " ")) {
		t.Errorf("POST: scope %v, want %q", scope, strings.Join(given, " "))
	}
	if reason != "" && post.Body.Error != "invalid_grant" {
		t.Errorf("POST: error %q, want invalid_grant", post.Body.Error)
	}
}

func checkGranted(t *testing.T, method, token string, answer pullpass.Answer) {
	t.Helper()
	if answer.Status != http.StatusOK {
		t.Errorf("%s: status %d, want 200; audit %+v", method, answer.Status, answer.Audit)
		return
	}
	body, audit := answer.Body, answer.Audit
	if body.Token == "" || body.Token != body.AccessToken {
		t.Errorf("%s: token and access_token are not equal", method)
	}
	if body.Refresh != "" {
		t.Errorf("%s: there is a refresh_token, which outlives the pod", method)
	}
	if body.ExpiresIn < 60 || body.ExpiresIn > 300 {
		t.Errorf("%s: expires_in %d, want 60 to 300 (the default tokenLifetime)", method, body.ExpiresIn)
	}
	if age := time.Since(body.IssuedAt); age < -time.Minute || age > 5*time.Minute {
		t.Errorf("%s: issued_at %v", method, body.IssuedAt)
	}

	in, out := claims(t, token), claims(t, body.Token)
	if out["iss"] != pullpass.Issuer || out["aud"] != service && !reflect.DeepEqual(out["aud"], []any{service}) || out["sub"] != in["sub"] {
		t.Errorf("%s: iss %v, aud %v, sub %v", method, out["iss"], out["aud"], out["sub"])
	}
	if number(t, out, "exp") > number(t, in, "exp") {
		t.Errorf("%s: the registry token outlives the ServiceAccount's", method)
	}
	if got := access(t, body.Token); !slices.Equal(got, given) {
		t.Errorf("%s: access %v, want %v", method, got, given)
	}

	want := pullpass.Event{
		Result: "partial", Status: http.StatusOK, Reason: audit.Reason, Message: audit.Message,
		Cluster: "e2e", Namespace: namespace, ServiceAccount: object(in, "serviceaccount"), Pod: object(in, "pod"), Node: object(in, "node"),
		CredentialID: "JTI=" + in["jti"].(string),
		Service:      service, GrantType: audit.GrantType, Requested: audit.Requested, Granted: given, Rule: "own-namespace,asked-for",
		Scopes:   audit.Scopes,
		IssuedID: out["jti"].(string),
		Caller:   "127.0.0.1", Client: "Go-http-client/1.1",
	}
	if audit.Client == "Go-http-client/2.0" {
		want.Client = audit.Client
	}
	if !reflect.DeepEqual(audit, want) {
		t.Errorf("%s: audit\n got %+v\nwant %+v", method, audit, want)
	}
	var cut []string
	for _, scope := range audit.Scopes {
		cut = append(cut, scope.Scope)
	}
	if !slices.Equal(cut, withheld) {
		t.Errorf("%s: the audit line gives reasons for %v, want %v", method, cut, withheld)
	}
}

func checkRefused(t *testing.T, method, token string, answer pullpass.Answer, reason string) {
	t.Helper()
	body, audit := answer.Body, answer.Audit
	if answer.Status != http.StatusUnauthorized {
		t.Errorf("%s: status %d, want 401", method, answer.Status)
	}
	if body.Token != "" || body.AccessToken != "" {
		t.Errorf("%s: a refusal with a token", method)
	}
	if challenge := answer.Header.Get("WWW-Authenticate"); !strings.HasPrefix(challenge, "Basic realm=") {
		t.Errorf("%s: WWW-Authenticate %q, want Basic", method, challenge)
	}
	if len(body.Errors) != 1 || body.Errors[0].Code != "UNAUTHORIZED" || body.Errors[0].Message == "" {
		t.Errorf("%s: errors %+v, want one UNAUTHORIZED with a message", method, body.Errors)
	}
	if audit.Status != http.StatusUnauthorized || audit.Result != "refused" || audit.Reason != reason {
		t.Errorf("%s: audit status %d, result %q, reason %q; want 401, refused, %q; message: %s", method, audit.Status, audit.Result, audit.Reason, reason, audit.Message)
	}
	if len(audit.Granted) > 0 || audit.IssuedID != "" {
		t.Errorf("%s: the audit line of a refusal says granted %v, issued %q", method, audit.Granted, audit.IssuedID)
	}
	if sub := claims(t, token)["sub"]; audit.Claimed.Subject != sub {
		t.Errorf("%s: the audit line says claimed subject %q, want %q", method, audit.Claimed.Subject, sub)
	}
	if reason == "token_legacy" && (audit.Claimed.Secret != "puller-legacy" || !audit.Claimed.Verified) {
		t.Errorf("%s: the audit line of a legacy token must name its Secret and that the signature is good: %+v", method, audit.Claimed)
	}
}

// object reads the reference to an object from the kubernetes.io claim.
func object(claims map[string]any, kind string) pullpass.Object {
	ref, _ := claims["kubernetes.io"].(map[string]any)[kind].(map[string]any)
	name, _ := ref["name"].(string)
	uid, _ := ref["uid"].(string)
	return pullpass.Object{Name: name, UID: uid}
}

// access lists what a registry token gives, in the form of scopes.
func access(t *testing.T, token string) []string {
	t.Helper()
	scopes := testenv.Value(accessIn(claims(t, token)))(t)
	return scopes
}

func accessIn(claims map[string]any) ([]string, error) {
	entries, ok := claims["access"].([]any)
	if !ok {
		return nil, errors.New("access is not a list")
	}
	var scopes []string
	for _, entry := range entries {
		e := entry.(map[string]any)
		var actions []string
		for _, action := range e["actions"].([]any) {
			actions = append(actions, action.(string))
		}
		scopes = append(scopes, fmt.Sprintf("%v:%v:%s", e["type"], e["name"], strings.Join(actions, ",")))
	}
	return scopes, nil
}

// throughPlugin runs the kubelet's credential provider as the kubelet does, and returns the username and password for the host.
func throughPlugin(t *testing.T, host, token string) (username, password string) {
	t.Helper()
	request, err := json.Marshal(map[string]any{
		"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderRequest",
		"image": host + "/" + namespace + "/web", "serviceAccountToken": token,
	})
	testenv.Must(t, err)
	plugin := exec.CommandContext(t.Context(), programs.CredentialProvider(t))
	plugin.Stdin = bytes.NewReader(request)
	output, err := plugin.Output()
	if err != nil {
		t.Fatalf("the credential provider: %v", err)
	}
	var response struct {
		Auth map[string]struct{ Username, Password string }
	}
	testenv.Must(t, json.Unmarshal(output, &response))
	credential, ok := response.Auth[host]
	if !ok {
		t.Fatalf("the credential provider answered nothing for %s", host)
	}
	return credential.Username, credential.Password
}
