package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

type object = map[string]any

// apiServer is as much of an API server as the proxy asks, over TLS. It serves
// what the real one cannot be made to show at will: lists that fail. What is
// said about real ones is in e2e.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	objects  map[string][]object // by resource
	events   []object            // that were written
	failList func()              // called for each list of ServiceAccounts, which then fails; nil: they succeed
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{objects: map[string][]object{
		"serviceaccounts": {newObject("team-a", "web", "uid-1")},
		"pods":            {newObject("team-a", "web-0", "uid-2")},
		"nodes":           {newObject("", "node1", "uid-3"), newObject("", "node2", "uid-4")},
		"namespaces":      {newObject("", "team-a", "uid-5")},
	}}
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	a.StartTLS()
	t.Cleanup(a.Close)
	t.Cleanup(a.CloseClientConnections) // watches
	return a
}

func newObject(namespace, name, uid string) object {
	return object{"metadata": object{"namespace": namespace, "name": name, "uid": uid, "resourceVersion": "1"}}
}

func (a *apiServer) kubeconfig() string {
	ca, _ := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}))
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %s}}],
"users": [{"name": "u", "user": {"token": "kubeconfig-secret"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, a.URL, ca)
}

// set adds a field to the only object of this name.
func (a *apiServer) set(resource, name, field string, value any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[resource] {
		metadata := o["metadata"].(object)
		if metadata["name"] != name {
			continue
		}
		if field == "labels" || field == "annotations" {
			metadata[field] = value
		} else {
			o[field] = value
		}
	}
}

func (a *apiServer) failLists(called func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failList = called
}

func (a *apiServer) written() []object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

// ServeHTTP answers /api/v1[/namespaces/NAMESPACE]/RESOURCE[/NAME].
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	namespace, name := "", ""
	if len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) == 2 {
		name = parts[1]
	}
	query := r.URL.Query()
	switch {
	case r.Header.Get("Authorization") != "Bearer kubeconfig-secret":
		answerStatus(w, http.StatusUnauthorized, "Unauthorized", object{})
	case r.Method == http.MethodPost && resource == "events":
		var event object
		_ = json.NewDecoder(r.Body).Decode(&event)
		a.mu.Lock()
		a.events = append(a.events, event)
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(event)
	case query.Get("sendInitialEvents") != "": // as API servers do that do not stream lists
		answerStatus(w, http.StatusUnprocessableEntity, "Invalid", object{})
	case query.Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // nothing ever happens
	case name != "":
		a.answerGet(w, resource, namespace, name)
	default:
		a.answerList(w, resource)
	}
}

func (a *apiServer) answerGet(w http.ResponseWriter, resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[resource] {
		if metadata := o["metadata"].(object); metadata["name"] == name && metadata["namespace"] == namespace {
			answerJSON(w, http.StatusOK, asKind(o, resource))
			return
		}
	}
	answerStatus(w, http.StatusNotFound, "NotFound", object{"kind": resource, "name": name})
}

func (a *apiServer) answerList(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if resource == "serviceaccounts" && a.failList != nil {
		a.failList()
		answerStatus(w, http.StatusInternalServerError, "InternalError", object{})
		return
	}
	kind := "PartialObjectMetadataList"
	version := "meta.k8s.io/v1"
	if resource == "nodes" {
		kind, version = "NodeList", "v1"
	}
	items := []object{}
	for _, o := range a.objects[resource] {
		items = append(items, asKind(o, resource))
	}
	answerJSON(w, http.StatusOK, object{"apiVersion": version, "kind": kind, "metadata": object{"resourceVersion": "1"}, "items": items})
}

// asKind returns a whole object, which has everything of its metadata as well.
func asKind(o object, resource string) object {
	kinds := map[string]string{"nodes": "Node", "pods": "Pod", "serviceaccounts": "ServiceAccount", "namespaces": "Namespace"}
	whole := object{"apiVersion": "v1", "kind": kinds[resource]}
	for field, value := range o {
		whole[field] = value
	}
	return whole
}

func answerStatus(w http.ResponseWriter, code int, reason string, details object) {
	answerJSON(w, code, object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code, "details": details})
}

func answerJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

func (p *proxy) ready(t *testing.T) bool {
	t.Helper()
	status, _ := p.fetch(t, "http://"+p.admin+"/readyz")
	return status == http.StatusOK
}

// expect asks for a login and looks at the answer and its audit line.
func (p *proxy) expect(t *testing.T, raw string, status int, reason string) exchange.Event {
	t.Helper()
	got := p.status(t, raw)
	event := p.lastEvent(t)
	if got != status || event.Reason != reason {
		t.Errorf("status %d, reason %q (%s); want %d, %q", got, event.Reason, event.Message, status, reason)
	}
	return event
}

// tokenWith is the token of the pod with other claims of Kubernetes.
func tokenWith(t *testing.T, change func(kubernetes object)) string {
	t.Helper()
	claims := tokenClaims("https://issuer.example.com")
	change(claims["kubernetes.io"].(object))
	return signToken(t, claims)
}

// All that a connection is for: who is gone, annotations, labels, the pod's
// event, readiness and metrics.
func TestServeAsksTheAPIServer(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	api.set("serviceaccounts", "web", "annotations", object{"pullpass.dev/repositories": "team-a/web"})
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{
		"kubeconfig": api.kubeconfig(), "policy.yaml": policyFor("elsewhere/**") + annotationRule,
	})
	eventually(t, "the service gets ready", func() bool { return p.ready(t) })
	if access := p.exchange(t, "/token", serviceAccountToken(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("the annotation opens %v", access)
	}
	p.expect(t, tokenWith(t, func(k object) { k["serviceaccount"] = object{"name": "web", "uid": "uid-old"} }), http.StatusForbidden, "service_account_gone")
	p.expect(t, tokenWith(t, func(k object) { k["pod"] = object{"name": "web-0", "uid": "uid-old"} }), http.StatusForbidden, "pod_gone")

	eventually(t, "the pod is told", func() bool { return len(api.written()) > 0 })
	if event := api.written()[0]; event["reason"] != "ImagePullDenied" || event["involvedObject"].(object)["uid"] != "uid-2" {
		t.Errorf("event %v", event)
	}
	if _, body := p.fetch(t, "http://"+p.admin+"/readyz"); !strings.Contains(body, `"kubernetes":[{"name":"prod","healthy":true}]`) {
		t.Errorf("/readyz: %s", body)
	}
	_, metrics := p.fetch(t, "http://"+p.admin+"/metrics")
	for _, want := range []string{
		`pullpass_kubernetes_synced{cluster="prod",resource="pods"} 1`,
		`pullpass_kubernetes_objects{cluster="prod",resource="serviceaccounts"} 1`,
		`pullpass_kubernetes_confirmations_total{cluster="prod",result="gone"} 2`,
		`pullpass_pod_event_failures_total{cluster="prod"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics has no line %s", want)
		}
	}
	must(t, p.stop())
	if all := p.stdout.String() + p.log.String(); strings.Contains(all, "kubeconfig-secret") {
		t.Error("the credential for the API server stands in what the service wrote")
	}
}

// Tokens are judged without pods where the configuration says so, and pods are
// then neither told nor watched.
func TestServeWithoutPods(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig, podChecks: false, podEvents: false}\n", map[string]string{"kubeconfig": api.kubeconfig()})
	eventually(t, "the service gets ready", func() bool { return p.ready(t) })
	p.expect(t, tokenWith(t, func(k object) { k["pod"] = object{"name": "web-0", "uid": "uid-old"} }), http.StatusOK, "")
	_, metrics := p.fetch(t, "http://"+p.admin+"/metrics")
	for _, unwanted := range []string{`resource="pods"`, `resource="nodes"`, "pullpass_pod_event_failures_total"} {
		if strings.Contains(metrics, unwanted) {
			t.Errorf("/metrics has %s", unwanted)
		}
	}
}

// Which nodes may pull, and who is one.
func TestServeJudgesNodes(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	api.set("nodes", "node1", "labels", object{"pool": "build"})
	api.set("nodes", "node1", "status", object{"addresses": []object{{"type": "InternalIP", "address": "127.0.0.1"}}})
	api.set("nodes", "node2", "labels", object{"pool": "other"})
	api.set("pods", "web-0", "spec", object{"nodeName": "node1"})
	files := map[string]string{"kubeconfig": api.kubeconfig()}
	onNode2 := tokenWith(t, func(k object) { k["node"] = object{"name": "node2", "uid": "uid-4"} })
	unnamed := tokenWith(t, func(k object) { delete(k, "node") })

	p := startServiceWith(t, "  node: {selector: pool=build, fallback: api}\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	p.expect(t, serviceAccountToken(t, "https://issuer.example.com"), http.StatusOK, "")
	p.expect(t, onNode2, http.StatusForbidden, "node_not_selected")
	if event := p.expect(t, unnamed, http.StatusOK, ""); !event.NodeFromAPI || event.Node == nil || event.Node.UID != "uid-3" {
		t.Errorf("the node of the pod is %+v", event.Node)
	}
	unbound := tokenWith(t, func(k object) { delete(k, "node"); k["pod"] = object{"name": "web-0", "uid": "uid-2"} })
	api.set("pods", "web-0", "spec", object{})
	q := startServiceWith(t, "  node: {fallback: api, proof: {mode: enforce, methods: [address]}}\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	q.expect(t, unbound, http.StatusUnauthorized, "token_no_node")
	q.expect(t, onNode2, http.StatusForbidden, "caller_not_node")
	if event := q.expect(t, serviceAccountToken(t, "https://issuer.example.com"), http.StatusOK, ""); event.Proof == nil || event.Proof.Method != exchange.ProofAddress {
		t.Errorf("proof %+v", event.Proof)
	}
}

// An API server that is down is its own cluster's trouble alone. What cannot be
// asked is neither granted nor refused.
func TestServeWithAnAPIServerDown(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	config := api.kubeconfig()
	api.Close()
	raw := serviceAccountToken(t, "https://issuer.example.com")
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": config})
	p.expect(t, raw, http.StatusServiceUnavailable, "kubernetes_unavailable")
	var body string
	eventually(t, "readyz names the API server", func() bool {
		_, body = p.fetch(t, "http://"+p.admin+"/readyz")
		return strings.Contains(body, `"name":"prod","healthy":false,"message":"serviceaccounts: `) && strings.Contains(body, "refused")
	})
	if p.ready(t) {
		t.Errorf("ready, and no cluster can be served: %s", body)
	}

	others := startServiceWith(t, `  kubernetes: {kubeconfigFile: kubeconfig}
- name: other
  issuer: https://other.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
`, map[string]string{"kubeconfig": config})
	eventually(t, "the service gets ready", func() bool { return others.ready(t) })
	others.expect(t, raw, http.StatusServiceUnavailable, "kubernetes_unavailable")
	others.expect(t, serviceAccountToken(t, "https://other.example.com"), http.StatusOK, "")
}

// A policy that reads an annotation counts when the annotation is there, and not
// before: it would refuse what it grants. Until then the old one counts.
func TestPolicyWaitsForItsAnnotations(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	api.set("serviceaccounts", "web", "annotations", object{"pullpass.dev/repositories": "team-a/web", "example.com/more": "team-a/more"})
	old := policyFor("elsewhere/**") + annotationRule
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": api.kubeconfig(), "policy.yaml": old})
	connection := p.service.objects.connected[0]
	go connection.Run(t.Context())
	raw := serviceAccountToken(t, "https://issuer.example.com")
	expect := func(repository string) {
		t.Helper()
		query := url.Values{"service": {"registry.example.com"}, "scope": {"repository:team-a/web:pull", "repository:team-a/more:pull"}}
		request := httptest.NewRequest(http.MethodGet, "/token?"+query.Encode(), nil)
		request.SetBasicAuth("serviceaccount", raw)
		p.service.public.ServeHTTP(httptest.NewRecorder(), request)
		if event, want := p.lastEvent(t), []string{"repository:" + repository + ":pull"}; !slices.Equal(event.Granted, want) {
			t.Errorf("granted %q (%s), want %q", event.Granted, event.Message, want)
		}
	}
	eventually(t, "everything is listed", func() bool { return kubernetesCheck("", connection.Status()).Healthy })
	expect("team-a/web")

	write(t, p.dir, "policy.yaml", strings.ReplaceAll(old, "pullpass.dev/repositories", "example.com/more"))
	ctx, cancel := context.WithCancel(t.Context())
	api.failLists(cancel)
	if err := p.service.reloadPolicy(ctx); err == nil || !strings.HasPrefix(err.Error(), "cluster prod: cannot list the ServiceAccounts with the annotations of the new policy: ") {
		t.Errorf("a list that fails: %v", err)
	}
	expect("team-a/web")
	api.failLists(nil)
	must(t, p.service.reloadPolicy(t.Context()))
	expect("team-a/more")

	// With several clusters, one may have the annotations of the new policy while
	// another has not and the old policy goes on: so those of the old one stay.
	claims := tokenClaims("https://issuer.example.com")["kubernetes.io"].(object)
	account := claims["serviceaccount"].(map[string]string)
	facts, err := p.service.objects.Lookup(t.Context(), oidc.Identity{
		Cluster: "prod", Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: account["name"], UID: account["uid"]},
	})
	must(t, err)
	if len(facts.Annotations) != 2 {
		t.Errorf("annotations %v, want those of both policies", facts.Annotations)
	}
}

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
