package server

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// All that a connection is for: who is gone, annotations, labels, the pod's
// event, readiness and metrics.
func TestServeAsksTheAPIServer(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("serviceaccounts", "web", "annotations", kubetest.Object{"pullpass.dev/repositories": "team-a/web"})
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{
		"kubeconfig": api.Kubeconfig(), "policy.yaml": proxytest.PolicyFor("elsewhere/**") + proxytest.AnnotationRule,
	})
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	if access := p.Exchange(t, "/token", kubetest.Token(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("the annotation opens %v", access)
	}
	p.Expect(t, kubetest.TokenWith(t, func(k kubetest.Object) { k["serviceaccount"] = kubetest.Object{"name": "web", "uid": "uid-old"} }), http.StatusForbidden, "service_account_gone")
	p.Expect(t, kubetest.TokenWith(t, func(k kubetest.Object) { k["pod"] = kubetest.Object{"name": "web-0", "uid": "uid-old"} }), http.StatusForbidden, "pod_gone")

	testkit.Eventually(t, "the pod is told", func() bool { return len(api.Written()) > 0 })
	if event := api.Written()[0]; event["reason"] != "ImagePullDenied" || event["involvedObject"].(kubetest.Object)["uid"] != "uid-2" {
		t.Errorf("event %v", event)
	}
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); !strings.Contains(body, `"kubernetes":[{"name":"prod","healthy":true}]`) {
		t.Errorf("/readyz: %s", body)
	}
	_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
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
	testkit.Must(t, p.stop())
	if all := p.Stdout.String() + p.Log.String(); strings.Contains(all, "kubeconfig-secret") {
		t.Error("the credential for the API server stands in what the service wrote")
	}
}

// Tokens are judged without pods where the configuration says so, and pods are
// then neither told nor watched.
func TestServeWithoutPods(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig, podChecks: false, podEvents: false}\n", map[string]string{"kubeconfig": api.Kubeconfig()})
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	p.Expect(t, kubetest.TokenWith(t, func(k kubetest.Object) { k["pod"] = kubetest.Object{"name": "web-0", "uid": "uid-old"} }), http.StatusOK, "")
	_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
	for _, unwanted := range []string{`resource="pods"`, `resource="nodes"`, "pullpass_pod_event_failures_total"} {
		if strings.Contains(metrics, unwanted) {
			t.Errorf("/metrics has %s", unwanted)
		}
	}
}

// Which nodes may pull, and who is one.
func TestServeJudgesNodes(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("nodes", "node1", "labels", kubetest.Object{"pool": "build"})
	api.Set("nodes", "node1", "status", kubetest.Object{"addresses": []kubetest.Object{{"type": "InternalIP", "address": "127.0.0.1"}}})
	api.Set("nodes", "node2", "labels", kubetest.Object{"pool": "other"})
	api.Set("pods", "web-0", "spec", kubetest.Object{"nodeName": "node1"})
	files := map[string]string{"kubeconfig": api.Kubeconfig()}
	onNode2 := kubetest.TokenWith(t, func(k kubetest.Object) { k["node"] = kubetest.Object{"name": "node2", "uid": "uid-4"} })
	unnamed := kubetest.TokenWith(t, func(k kubetest.Object) { delete(k, "node") })

	p := startServiceWith(t, "  node: {selector: pool=build, fallback: api}\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, "")
	p.Expect(t, onNode2, http.StatusForbidden, "node_not_selected")
	if event := p.Expect(t, unnamed, http.StatusOK, ""); !event.NodeFromAPI || event.Node == nil || event.Node.UID != "uid-3" {
		t.Errorf("the node of the pod is %+v", event.Node)
	}

	// The fallback alone, and tokens that are bound to a node instead of a pod.
	p = startServiceWith(t, "  node: {fallback: api}\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	p.Expect(t, unnamed, http.StatusOK, "")
	p = startServiceWith(t, "  bound: pod-or-node\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	boundTo := func(uid string) string {
		return kubetest.TokenWith(t, func(k kubetest.Object) { delete(k, "pod"); k["node"] = kubetest.Object{"name": "node1", "uid": uid} })
	}
	p.Expect(t, boundTo("uid-3"), http.StatusOK, "")
	p.Expect(t, boundTo("uid-old"), http.StatusForbidden, "node_gone")

	api.Set("pods", "web-0", "spec", kubetest.Object{}) // not scheduled
	p = startServiceWith(t, "  node: {fallback: api, proof: {mode: enforce, methods: [address]}}\n  kubernetes: {kubeconfigFile: kubeconfig}\n", files)
	p.Expect(t, unnamed, http.StatusUnauthorized, "token_no_node")
	p.Expect(t, onNode2, http.StatusForbidden, "caller_not_node")
	if event := p.Expect(t, kubetest.Token(t, "https://issuer.example.com"), http.StatusOK, ""); event.Proof == nil || event.Proof.Method != nodeproof.Address {
		t.Errorf("proof %+v", event.Proof)
	}
}

// Where nodes must prove who they are, tokens in Secrets pull all the same, from the
// namespaces that are named, until their Secret is deleted.
func TestServePullSecrets(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Put("secrets", kubetest.Object{"metadata": kubetest.Object{"namespace": "team-a", "name": "pull", "uid": "uid-pull"}})
	token := func(uid string) string {
		claims := kubetest.TokenClaims("https://issuer.example.com")
		claims["aud"], claims["jti"] = []string{"pull-secrets"}, "id-of-"+uid
		k := claims["kubernetes.io"].(kubetest.Object)
		delete(k, "pod")
		delete(k, "node")
		k["secret"] = kubetest.Object{"name": "pull", "uid": uid}
		return kubetest.SignToken(t, claims)
	}
	const cluster = "  node: {proof: {mode: enforce, methods: [address]}}\n  kubernetes: {kubeconfigFile: kubeconfig}\n"
	files := map[string]string{"kubeconfig": api.Kubeconfig()}
	p := startServiceWith(t, cluster+"  pullSecrets: {audience: pull-secrets, namespaces: [\"team-*\"]}\n", files)
	kept := token("uid-pull")
	event := p.Expect(t, kept, http.StatusOK, "")
	if event.PullSecret == nil || event.PullSecret.Name != "pull" || event.Proof != nil {
		t.Errorf("Secret %+v, proof %+v", event.PullSecret, event.Proof)
	}
	p.Expect(t, token("uid-before"), http.StatusForbidden, "secret_gone")
	api.Fail("create tokenreviews", kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"))
	p.Expect(t, token("uid-pull-2"), http.StatusServiceUnavailable, "kubernetes_unavailable")
	p.Expect(t, kept, http.StatusOK, "") // remembered

	p = startServiceWith(t, cluster+"  pullSecrets: {audience: pull-secrets, namespaces: [team-b]}\n", files)
	p.Expect(t, token("uid-pull"), http.StatusUnauthorized, "token_pull_secret")
	p = startServiceWith(t, cluster, files)
	p.Expect(t, token("uid-pull"), http.StatusUnauthorized, "token_audience")
}

// If an API server is down, only its own cluster is affected. Requests that need it are neither
// granted nor refused.
func TestServeWithAnAPIServerDown(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	config := api.Kubeconfig()
	api.Close()
	raw := kubetest.Token(t, "https://issuer.example.com")
	p := startServiceWith(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": config})
	p.Expect(t, raw, http.StatusServiceUnavailable, "kubernetes_unavailable")
	var body string
	testkit.Eventually(t, "readyz names the API server", func() bool {
		_, body = p.Fetch(t, "http://"+p.Admin+"/readyz")
		return strings.Contains(body, `"name":"prod","healthy":false,"message":"serviceaccounts: `) && strings.Contains(body, "refused")
	})
	if p.Ready(t) {
		t.Errorf("ready, and no cluster can be served: %s", body)
	}

	others := startServiceWith(t, `  kubernetes: {kubeconfigFile: kubeconfig}
- name: other
  issuer: https://other.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
`, map[string]string{"kubeconfig": config})
	testkit.Eventually(t, "the service gets ready", func() bool { return others.Ready(t) })
	others.Expect(t, raw, http.StatusServiceUnavailable, "kubernetes_unavailable")
	others.Expect(t, kubetest.Token(t, "https://other.example.com"), http.StatusOK, "")
}

// While three clusters hang, API servers and issuers, the tokens of others find a place.
func TestClustersThatHangCannotTakeAllPlaces(t *testing.T) {
	t.Parallel()
	if each := kube.MaxWaiting + oidc.MaxWaiting; maxInFlight <= 3*each {
		t.Errorf("%d requests are worked on at a time, and %d can wait for one cluster", maxInFlight, each)
	}
}

// A policy that reads an annotation counts when the annotation is there, and not
// before: it would refuse what it grants. Until then the old one counts.
func TestPolicyWaitsForItsAnnotations(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Set("serviceaccounts", "web", "annotations", kubetest.Object{
		"pullpass.dev/repositories": "team-a/web", "example.com/more": "team-a/more", "example.com/last": "team-a/web",
	})
	old := proxytest.PolicyFor("elsewhere/**") + proxytest.AnnotationRule
	p := newTestService(t, "  kubernetes: {kubeconfigFile: kubeconfig}\n", map[string]string{"kubeconfig": api.Kubeconfig(), "policy.yaml": old})
	p.service.settleTimeout = 3 * time.Second
	p.reconcile(t)
	connection := p.service.current.Load().objects.Connected[0]
	go connection.Run(t.Context())
	raw := kubetest.Token(t, "https://issuer.example.com")
	expect := func(repository string) {
		t.Helper()
		query := url.Values{"service": {"registry.example.com"}, "scope": {"repository:team-a/web:pull", "repository:team-a/more:pull"}}
		request := httptest.NewRequest(http.MethodGet, "/token?"+query.Encode(), nil)
		request.SetBasicAuth("serviceaccount", raw)
		p.service.Public.ServeHTTP(httptest.NewRecorder(), request)
		if event, want := p.LastEvent(t), []string{"repository:" + repository + ":pull"}; !slices.Equal(event.Granted, want) {
			t.Errorf("granted %q (%s), want %q", event.Granted, event.Message, want)
		}
	}
	testkit.Eventually(t, "everything is listed", func() bool { return kubernetesCheck("", connection.Status()).Healthy })
	expect("team-a/web")

	testkit.Write(t, p.Dir, "policy.yaml", strings.ReplaceAll(old, "pullpass.dev/repositories", "example.com/more"))
	api.FailLists(func() {})
	if err := p.service.reloadPolicy(); err == nil || !strings.HasPrefix(err.Error(), "cluster prod: cannot list the ServiceAccounts with the annotations of the new policy: ") {
		t.Errorf("a list that fails: %v", err)
	}
	expect("team-a/web")
	api.FailLists(nil)
	p.service.settleTimeout = time.Minute // on a machine that is busy
	testkit.Must(t, p.service.reloadPolicy())
	expect("team-a/more")

	// With several clusters, one may have the annotations of the new policy while
	// another has not and the old policy goes on: so those of the old one stay.
	kept := func() []string {
		t.Helper()
		facts := testkit.Value(p.service.current.Load().objects.Lookup(t.Context(), oidc.Identity{
			Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web", UID: "uid-1"}},
		}, nil))(t)
		return slices.Sorted(maps.Keys(facts.Annotations))
	}
	if got, want := kept(), []string{"example.com/more", "pullpass.dev/repositories"}; !slices.Equal(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
	testkit.Write(t, p.Dir, "policy.yaml", strings.ReplaceAll(old, "pullpass.dev/repositories", "example.com/last"))
	testkit.Must(t, p.service.reloadPolicy())
	if got, want := kept(), []string{"example.com/last", "example.com/more"}; !slices.Equal(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
}

// Ready is who has listed everything once, also if the API server is down by now.
func TestReadinessOfConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		resources []kube.ResourceStatus
		want      check
	}{
		"listed":           {[]kube.ResourceStatus{{Resource: "pods", Synced: true}, {Resource: "nodes", Synced: true}}, check{Name: "prod", Healthy: true}},
		"one is not":       {[]kube.ResourceStatus{{Resource: "pods", Synced: true}, {Resource: "nodes"}}, check{Name: "prod", Message: "nodes: not listed yet"}},
		"the first is not": {[]kube.ResourceStatus{{Resource: "pods"}, {Resource: "nodes", Synced: true}}, check{Name: "prod", Message: "pods: not listed yet"}},
		"forbidden": {[]kube.ResourceStatus{{Resource: "pods", LastFailure: "forbidden"}, {Resource: "nodes", LastFailure: "down"}},
			check{Name: "prod", Message: "pods: forbidden; nodes: down"}},
		"objects are not": {[]kube.ResourceStatus{{Resource: "pods", Synced: true}, {Resource: "objects", Optional: true}}, check{Name: "prod", late: true, Message: "objects: not listed yet"}},
		"objects take long": {[]kube.ResourceStatus{{Resource: "pods", Synced: true}, {Resource: "objects", Optional: true, Overdue: true}},
			check{Name: "prod", Tolerated: true, late: true, Message: "objects: not listed yet"}},
		"objects fail": {[]kube.ResourceStatus{{Resource: "pods", Synced: true}, {Resource: "objects", Optional: true, LastFailure: "forbidden"}},
			check{Name: "prod", Tolerated: true, Message: "objects: forbidden"}},
		"all take long": {[]kube.ResourceStatus{{Resource: "pods", Overdue: true}, {Resource: "objects", Optional: true, Overdue: true}},
			check{Name: "prod", Message: "pods: not listed yet; objects: not listed yet"}},
		"lost later": {[]kube.ResourceStatus{{Resource: "pods", Synced: true, LastFailure: "down"}}, check{Name: "prod", Healthy: true, Message: "pods: down"}},
	} {
		if got := kubernetesCheck("prod", kube.ClusterStatus{Resources: test.resources}); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
