package cluster

import (
	"context"
	"net/http"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// CreateNamespace creates a namespace with labels.
func (c *Cluster) CreateNamespace(t testing.TB, name string, labels Object) {
	t.Helper()
	c.Create(t, "/api/v1/namespaces", Object{"metadata": Object{"name": name, "labels": labels}})
}

// CreateServiceAccount creates a ServiceAccount with annotations.
func (c *Cluster) CreateServiceAccount(t testing.TB, namespace, name string, annotations Object) {
	t.Helper()
	c.Create(t, "/api/v1/namespaces/"+namespace+"/serviceaccounts",
		Object{"metadata": Object{"name": name, "annotations": annotations}})
}

// CreateNode creates a Node with labels and addresses.
func (c *Cluster) CreateNode(t testing.TB, name string, labels Object, addresses ...string) Object {
	t.Helper()
	c.Create(t, "/api/v1/nodes", Object{"metadata": Object{"name": name, "labels": labels}})
	var list []Object
	for _, address := range addresses {
		list = append(list, Object{"type": "InternalIP", "address": address})
	}
	// The creator of a Node cannot set its status; the kubelet writes it afterwards, too.
	return c.Patch(t, "/api/v1/nodes/"+name+"/status", Object{"status": Object{"addresses": list}})
}

// CreatePod creates a pod of the ServiceAccount on a node; without one it waits to be scheduled.
func (c *Cluster) CreatePod(t testing.TB, namespace, name, serviceAccount, node string) Object {
	t.Helper()
	pod := testenv.Value(c.TryPod(t.Context(), namespace, name, serviceAccount, node))(t)
	return pod
}

// TryPod is CreatePod for goroutines, which must not end a test.
func (c *Cluster) TryPod(ctx context.Context, namespace, name, serviceAccount, node string) (Object, error) {
	return c.Try(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", Object{
		"metadata": Object{"name": name},
		"spec": Object{
			"nodeName": node, "serviceAccountName": serviceAccount, "automountServiceAccountToken": false,
			"containers": []Object{{"name": "c", "image": "localhost/app"}},
		},
	})
}

// Schedule puts a pod that waits onto a node, as the scheduler does.
func (c *Cluster) Schedule(t testing.TB, pod Object, node string) {
	t.Helper()
	c.Create(t, PodPath(pod)+"/binding", Object{
		"metadata": Object{"name": pod.Name(), "uid": pod.UID()},
		"target":   Object{"apiVersion": "v1", "kind": "Node", "name": node},
	})
}

// PodPath is the path of a pod in the API.
func PodPath(pod Object) string {
	return "/api/v1/namespaces/" + pod.Namespace() + "/pods/" + pod.Name()
}

// PodToken asks for what the kubelet gets for a pod that pulls an image.
func PodToken(pod Object, audience string) TokenRequest {
	return TokenRequest{
		Namespace: pod.Namespace(), ServiceAccount: pod.Text("spec", "serviceAccountName"), Audiences: []string{audience},
		Bound: &Bound{Kind: "Pod", Name: pod.Name(), UID: pod.UID()},
	}
}

// Event is one about an object, as far as the tests read it.
type Event struct {
	Type, Reason, Component, Message string
	Count                            float64
}

// Events are those about an object so far.
func (c *Cluster) Events(t testing.TB, object Object) (events []Event) {
	t.Helper()
	items, _ := c.Get(t, "/api/v1/namespaces/"+object.Namespace()+"/events?fieldSelector=involvedObject.uid%3D"+object.UID())["items"].([]any)
	for _, item := range items {
		e := Object(item.(map[string]any))
		count, _ := e["count"].(float64)
		events = append(events, Event{e.Text("type"), e.Text("reason"), e.Text("source", "component"), e.Text("message"), count})
	}
	return events
}
