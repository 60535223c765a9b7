package cluster

import (
	"context"
	"net/http"

	"github.com/pullpass/pullpass/e2e/secrets"
)

// captured are the objects in which Pullpass writes, and others that it could have written. Secrets hold credentials because they are Secrets.
var captured = []string{
	"/api/v1/configmaps", "/api/v1/events", "/api/v1/nodes", "/api/v1/pods", "/api/v1/serviceaccounts",
	"/apis/coordination.k8s.io/v1/leases",
	"/apis/pullpass.dev/v1beta1/accesspolicies", "/apis/pullpass.dev/v1beta1/repositoryaccesses",
}

// capture keeps the objects, if the API server still runs.
func (c *Cluster) capture() {
	if !secrets.Captures() {
		return
	}
	seen := secrets.Seen("objects")
	for _, path := range captured {
		if _, answer, err := c.exchange(context.Background(), c.admin, "", http.MethodGet, path, "", nil); err == nil {
			_, _ = seen.Write(answer) // a run whose disk is full fails elsewhere
		}
	}
}
