package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// Object is any Kubernetes object, as JSON decodes it.
type Object map[string]any

// UID is the object's metadata.uid.
func (o Object) UID() string {
	metadata, _ := o["metadata"].(map[string]any)
	uid, _ := metadata["uid"].(string)
	return uid
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

// Delete deletes the object at path.
func (c *Cluster) Delete(t testing.TB, path string) {
	t.Helper()
	c.do(t, http.MethodDelete, path, nil)
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

// Bound is the object whose life a token shares.
type Bound struct{ Kind, Name, UID string }

// TokenRequest asks for a ServiceAccount token.
type TokenRequest struct {
	Namespace, ServiceAccount string
	Audiences                 []string      // empty: the API server's own
	Lifetime                  time.Duration // 0: one hour
	Bound                     *Bound        // nil: not bound
}

// Token requests a token with the TokenRequest API, as the kubelet and "kubectl create token" do.
func (c *Cluster) Token(t testing.TB, r TokenRequest) string {
	t.Helper()
	spec := Object{"audiences": r.Audiences}
	if r.Lifetime > 0 {
		spec["expirationSeconds"] = int64(r.Lifetime / time.Second)
	}
	if r.Bound != nil {
		spec["boundObjectRef"] = Object{"apiVersion": "v1", "kind": r.Bound.Kind, "name": r.Bound.Name, "uid": r.Bound.UID}
	}
	answer := c.Create(t, "/api/v1/namespaces/"+r.Namespace+"/serviceaccounts/"+r.ServiceAccount+"/token",
		Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	status, _ := answer["status"].(map[string]any)
	token, _ := status["token"].(string)
	if token == "" {
		t.Fatalf("the API server answered %v to a TokenRequest without a token", answer["kind"])
	}
	return token
}

// LegacyToken waits until the token controller, which must run, has filled the Secret, and returns its token.
func (c *Cluster) LegacyToken(t testing.TB, namespace, secret string) string {
	t.Helper()
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		data, _ := c.Get(t, "/api/v1/namespaces/"+namespace+"/secrets/"+secret)["data"].(map[string]any)
		if encoded, _ := data["token"].(string); encoded != "" {
			token, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				t.Fatal(err)
			}
			return string(token)
		}
	}
	t.Fatalf("no token in the Secret %s/%s after %v", namespace, secret, startLimit)
	return ""
}

func (c *Cluster) do(t testing.TB, method, path string, body Object) Object {
	t.Helper()
	object, err := c.try(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func (c *Cluster) try(ctx context.Context, method, path string, body Object) (Object, error) {
	var payload io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Issuer+path, payload)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
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
