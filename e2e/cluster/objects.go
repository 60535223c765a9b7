package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
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
	content := testenv.Value(json.Marshal(o))(t)
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
	object := testenv.Value(c.Try(t.Context(), method, path, body))(t)
	return object
}

// Try sends a request as the administrator and returns the API server's answer. It is for goroutines, which must not end a test.
func (c *Cluster) Try(ctx context.Context, method, path string, body Object) (Object, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	return c.send(ctx, method, path, contentType(method, path), payload)
}

func contentType(method, path string) string {
	switch {
	case method != http.MethodPatch:
		return "application/json"
	case strings.Contains(path, "force="): // of server-side apply alone
		return "application/apply-patch+yaml"
	}
	return "application/merge-patch+json"
}

func (c *Cluster) send(ctx context.Context, method, path, contentType string, payload []byte) (Object, error) {
	status, answer, err := c.exchange(ctx, c.admin, "", method, path, contentType, payload)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if status >= 300 {
		return nil, fmt.Errorf("%s %s: %d %s: %s", method, path, status, http.StatusText(status), answer)
	}
	var object Object
	if err := json.Unmarshal(answer, &object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return object, nil
}

// As sends a request with a token, and returns what the API server answers.
func (c *Cluster) As(t testing.TB, token, method, path string, body any) (status int, answer string) {
	t.Helper()
	payload, err := json.Marshal(body)
	testenv.Must(t, err)
	status, content, err := c.exchange(t.Context(), c.others, token, method, path, contentType(method, path), payload)
	testenv.Must(t, err)
	return status, string(content)
}

func (c *Cluster) exchange(ctx context.Context, client *http.Client, token, method, path, contentType string, payload []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.Issuer+path, bytes.NewReader(payload))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}
