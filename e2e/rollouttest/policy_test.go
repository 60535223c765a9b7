package rollouttest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
)

// A pod of the installer can do to its own Node what it has to, and nothing else; to others nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	f := startFleet(t, valuesFor("registry.example.com", "install"))
	for _, name := range []string{"own", "other"} {
		f.Create(t, "/api/v1/nodes", cluster.Object{"metadata": cluster.Object{"name": name, "labels": cluster.Object{"a": "b"}, "annotations": cluster.Object{"a": "b"}}})
		f.Patch(t, "/api/v1/nodes/"+name, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoSchedule"}, {"key": "example.com/a", "effect": "NoSchedule"}}}})
	}
	// As the DaemonSet controller and the scheduler make it.
	var ours pod
	decode(t, f.Create(t, "/api/v1/namespaces/"+namespace+"/pods", cluster.Object{
		"metadata": cluster.Object{"name": "installer"},
		"spec": cluster.Object{"nodeName": "own", "serviceAccountName": "pullpass-node-install", "automountServiceAccountToken": false,
			"containers": []cluster.Object{{"name": "c", "image": "a"}}},
	}), &ours)
	token, unbound := f.token(t, ours), f.Token(t, cluster.TokenRequest{Namespace: namespace, ServiceAccount: "pullpass-node-install"})
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.CA.Pool()}}}
	t.Cleanup(client.CloseIdleConnections)
	try := func(token, method, path string, body cluster.Object) (int, string) {
		t.Helper()
		content, err := json.Marshal(body)
		check(t, err)
		request, err := http.NewRequestWithContext(t.Context(), method, f.Issuer+path, bytes.NewReader(content))
		check(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", map[string]string{http.MethodPatch: "application/merge-patch+json"}[method])
		if method != http.MethodPatch {
			request.Header.Set("Content-Type", "application/json")
		}
		response, err := client.Do(request)
		check(t, err)
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		check(t, err)
		return response.StatusCode, string(answer)
	}
	metadata := func(field string, change cluster.Object) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{field: change}}
	}
	const (
		node   = "/api/v1/nodes/own"
		leases = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
		events = "/api/v1/namespaces/default/events"
	)
	event := func(name string) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{"generateName": "e-"}, "involvedObject": cluster.Object{"kind": "Node", "name": name}, "reason": "A", "message": "a", "type": "Normal"}
	}
	// A policy takes a moment until it counts.
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(pollPeriod) {
		if code, answer := try(token, http.MethodPatch, "/api/v1/nodes/other?dryRun=All", metadata("labels", cluster.Object{key: "x"})); code != http.StatusOK {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the policy does not count: %s", answer)
		}
	}
	lease := func(holder string) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{"name": "pullpass-node-install"}, "spec": cluster.Object{"holderIdentity": holder}}
	}
	for _, c := range []struct {
		name, token, method, path string
		body                      cluster.Object
		refused                   string // "": it is not
	}{
		{"another Node", token, http.MethodPatch, "/api/v1/nodes/other", metadata("annotations", cluster.Object{key: "{}"}), "the Node is not the one that the token is for"},
		{"a token of no pod", unbound, http.MethodPatch, node, metadata("annotations", cluster.Object{key: "{}"}), "the token names no node"},
		{"another label", token, http.MethodPatch, node, metadata("labels", cluster.Object{"a": "c"}), "no other label"},
		{"one label less", token, http.MethodPatch, node, metadata("labels", cluster.Object{"a": nil}), "no other label"},
		{"one label more", token, http.MethodPatch, node, metadata("labels", cluster.Object{"node-role.kubernetes.io/control-plane": ""}), "no other label"},
		{"another annotation", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"a": "c"}), "no other annotation"},
		{"one annotation less", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"a": nil}), "no other annotation"},
		{"one annotation more", token, http.MethodPatch, node, metadata("annotations", cluster.Object{"c": "d"}), "no other annotation"},
		{"a finalizer", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"finalizers": []string{"a.example.com/b"}}}, "nothing else of its Node"},
		{"an owner", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"ownerReferences": []cluster.Object{{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}}}}, "nothing else of its Node"},
		{"cordon", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"unschedulable": true}}, "nothing else of its Node"},
		{"the machine's name", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"providerID": "a"}}, "nothing else of its Node"},
		{"the network of its pods", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"podCIDR": "10.0.0.0/24", "podCIDRs": []string{"10.0.0.0/24"}}}, "nothing else of its Node"},
		{"a taint of others", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoSchedule"}}}}, "no other taint"},
		{"a taint more", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": taint, "effect": "NoExecute"}, {"key": "example.com/a", "effect": "NoSchedule"}}}}, "no other taint"},
		{"the status", token, http.MethodPatch, node + "/status", cluster.Object{"status": cluster.Object{"phase": "a"}}, "cannot patch resource \\\"nodes/status\\\""},
		{"delete", token, http.MethodDelete, node, nil, "cannot delete resource"},
		{"all Nodes", token, http.MethodGet, "/api/v1/nodes", nil, "cannot list resource"},
		{"an event about another", token, http.MethodPost, events, event("other"), "may tell of its own Node alone"},
		{"the turn of another", token, http.MethodPost, leases, lease("other/uid"), "may take the turn of its own node alone"},
		{"a pod", token, http.MethodPost, "/api/v1/namespaces/" + namespace + "/pods", cluster.Object{"metadata": cluster.Object{"name": "a"}}, "cannot create resource"},
		{"delete a pod", token, http.MethodDelete, "/api/v1/namespaces/" + namespace + "/pods/installer", nil, "cannot delete resource"},
		{"Secrets", token, http.MethodGet, "/api/v1/namespaces/" + namespace + "/secrets", nil, "cannot list resource"},
		{"pods of others", token, http.MethodGet, "/api/v1/namespaces/default/pods", nil, "cannot list resource"},

		{"its state", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{key: "ready"}, "annotations": cluster.Object{key: "{}"}}}, ""},
		{"its taint", token, http.MethodPatch, node, cluster.Object{"spec": cluster.Object{"taints": []cluster.Object{{"key": "example.com/a", "effect": "NoSchedule"}}}}, ""},
		{"its turn", token, http.MethodPost, leases, lease("own/uid"), ""},
		{"an event", token, http.MethodPost, events, event("own"), ""},
		{"its pods", token, http.MethodGet, "/api/v1/namespaces/" + namespace + "/pods", nil, ""},
		{"that another has its turn, once it is", token, http.MethodPut, leases + "/pullpass-node-install", lease("other/uid"), "may take the turn of its own node alone"},
		{"the end of its turn", token, http.MethodPut, leases + "/pullpass-node-install", lease(""), ""},
		{"no state any more", token, http.MethodPatch, node, cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{key: nil}, "annotations": cluster.Object{key: nil}}}, ""},
	} {
		if c.method == http.MethodPut {
			c.body["metadata"].(cluster.Object)["resourceVersion"] = f.Get(t, c.path).Text("metadata", "resourceVersion")
		}
		code, answer := try(c.token, c.method, c.path, c.body)
		if c.refused == "" && code >= 300 || c.refused != "" && (code < 400 || !strings.Contains(answer, c.refused)) {
			t.Errorf("%s: %d %s, want it refused by %q", c.name, code, answer, c.refused)
		}
	}
}
