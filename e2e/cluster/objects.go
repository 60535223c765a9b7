package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Object is any Kubernetes object, as JSON decodes it.
type Object map[string]any

// UID is the object's metadata.uid.
func (o Object) UID() string { return o.metadata("uid") }

// Name is the object's metadata.name.
func (o Object) Name() string { return o.metadata("name") }

// Namespace is the object's metadata.namespace.
func (o Object) Namespace() string { return o.metadata("namespace") }

func (o Object) metadata(field string) string {
	metadata, _ := o["metadata"].(map[string]any)
	value, _ := metadata[field].(string)
	return value
}

// Text is the text at the path of field names; "" if there is none.
func (o Object) Text(path ...string) string {
	value := any(map[string]any(o))
	for _, field := range path {
		fields, _ := value.(map[string]any)
		value = fields[field]
	}
	text, _ := value.(string)
	return text
}

// Decode reads the object into a struct, as encoding/json does.
func (o Object) Decode(t testing.TB, into any) {
	t.Helper()
	content, err := json.Marshal(o)
	testenv.Must(t, err)
	testenv.Must(t, json.Unmarshal(content, into))
}

// Create creates an object. The collection is its path, such as /api/v1/namespaces.
func (c *Cluster) Create(t testing.TB, collection string, object Object) Object {
	t.Helper()
	return c.do(t, http.MethodPost, collection, object)
}

// Get reads the object at path.
func (c *Cluster) Get(t testing.TB, path string) Object {
	t.Helper()
	return c.do(t, http.MethodGet, path, nil)
}

// Patch merges the change into the object at path (RFC 7396: null removes).
func (c *Cluster) Patch(t testing.TB, path string, change Object) Object {
	t.Helper()
	return c.do(t, http.MethodPatch, path, change)
}

// Delete deletes the object at path, at once: without a kubelet, nothing would end a pod's period of grace.
func (c *Cluster) Delete(t testing.TB, path string) {
	t.Helper()
	c.do(t, http.MethodDelete, path+"?gracePeriodSeconds=0", nil)
}

// OpenDiscovery lets anonymous callers read the discovery documents, as many clusters do for token federation.
func (c *Cluster) OpenDiscovery(t testing.TB) {
	t.Helper()
	c.Create(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", Object{
		"metadata": Object{"name": "anonymous-discovery"},
		"roleRef":  Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:service-account-issuer-discovery"},
		"subjects": []Object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}},
	})
}

func (c *Cluster) do(t testing.TB, method, path string, body Object) Object {
	t.Helper()
	object, err := c.Try(t.Context(), method, path, body)
	testenv.Must(t, err)
	return object
}

// Try sends a request as the administrator and returns the API server's answer. It is for goroutines, which must not end a test.
func (c *Cluster) Try(ctx context.Context, method, path string, body Object) (Object, error) {
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	return c.send(ctx, method, path, contentType, payload)
}

func (c *Cluster) send(ctx context.Context, method, path, contentType string, payload []byte) (Object, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.Issuer+path, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.admin.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	var object Object
	if err := json.Unmarshal(answer, &object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return object, nil
}
