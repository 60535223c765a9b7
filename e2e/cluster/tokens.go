package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

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
	token := testenv.Value(c.TryToken(t.Context(), r))(t)
	return token
}

// TryToken is Token for goroutines, which must not end a test.
func (c *Cluster) TryToken(ctx context.Context, r TokenRequest) (string, error) {
	spec := Object{"audiences": r.Audiences}
	if r.Lifetime > 0 {
		spec["expirationSeconds"] = int64(r.Lifetime / time.Second)
	}
	if r.Bound != nil {
		spec["boundObjectRef"] = Object{"apiVersion": "v1", "kind": r.Bound.Kind, "name": r.Bound.Name, "uid": r.Bound.UID}
	}
	answer, err := c.Try(ctx, http.MethodPost, "/api/v1/namespaces/"+r.Namespace+"/serviceaccounts/"+r.ServiceAccount+"/token",
		Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	if err != nil {
		return "", err
	}
	token := answer.Text("status", "token")
	if token == "" {
		return "", fmt.Errorf("the API server answered %v to a TokenRequest without a token", answer["kind"])
	}
	secrets.Note("ServiceAccount token", token)
	return token, nil
}

// LegacyToken waits until the token controller, which must run, has filled the Secret, and returns its token.
func (c *Cluster) LegacyToken(t testing.TB, namespace, secret string) string {
	t.Helper()
	encoded := ""
	testenv.Await(t, startLimit, "a token is in the Secret "+namespace+"/"+secret, func() bool {
		encoded = c.Get(t, "/api/v1/namespaces/"+namespace+"/secrets/"+secret).Text("data", "token")
		return encoded != ""
	})
	token := testenv.Value(base64.StdEncoding.DecodeString(encoded))(t)
	secrets.Note("legacy token", string(token))
	return string(token)
}
