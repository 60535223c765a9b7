package objectstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

// manager owns the fields of every status.
const manager = "pullpass-policy-status"

// Status holds the totals of a Controller.
type Status struct {
	Leads    bool
	Writes   uint64 // of a status, since the start
	Failures uint64 // failed attempts, which are retried after a delay
	Refused  uint64 // writes that the API server refused because of the object itself
}

type counts struct {
	leads                     atomic.Bool
	writes, failures, refused atomic.Uint64
}

// Status returns the current totals.
func (c *Controller) Status() Status {
	return Status{Leads: c.counts.leads.Load(), Writes: c.counts.writes.Load(), Failures: c.counts.failures.Load(), Refused: c.counts.refused.Load()}
}

// applied is an object in the form of server-side apply.
type applied struct {
	APIVersion string                                `json:"apiVersion"`
	Kind       string                                `json:"kind"`
	Metadata   appliedMetadata                       `json:"metadata"`
	Status     *policyobjects.RepositoryAccessStatus `json:"status"`
}

type appliedMetadata struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"` // prevents a write to a recreated object
}

// concernsServer reports whether a failed write says that others would fail too.
func concernsServer(err error) bool {
	_, answered := errors.AsType[*apierrors.StatusError](err)
	return !answered || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// write writes a status, only through the subresource. It returns no error if the API server refuses
// this status; the next look repairs or reports that.
func (c *Controller) write(ctx context.Context, o *kube.PolicyObject, next *policyobjects.RepositoryAccessStatus) error {
	kind := policy.Kind
	if o.Namespace != "" {
		kind = policy.KindRequest
	}
	body, err := json.Marshal(applied{policy.APIVersion, kind, appliedMetadata{o.Namespace, o.Name, o.UID}, next})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	resource := c.metadata.Resource(schema.FromAPIVersionAndKind(policy.APIVersion, "").GroupVersion().WithResource(o.Resource)).Namespace(o.Namespace)
	force := true
	_, err = resource.Patch(ctx, o.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force}, "status")
	switch {
	case err == nil:
		c.counts.writes.Add(1)
		return nil
	case apierrors.IsConflict(err): // the object was recreated; the watch will report it
		return nil
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsBadRequest(err):
		c.counts.refused.Add(1)
		c.log.Warn("the API server refuses the status of an object", "resource", o.Resource, "namespace", o.Namespace, "name", o.Name, "error", err)
		return nil
	case apierrors.IsNotFound(err):
		if now, ok := c.objects.PolicyObject(o.ObjectRef); !ok || now.UID != o.UID {
			return nil
		}
		return fmt.Errorf("%s have no status there: apply the CustomResourceDefinitions of this version: %w", o.Resource, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("give Pullpass the verb \"patch\" on \"%s/status\" (deploy/kubernetes/policy-objects-status.yaml), or write objects.status: false: %w", o.Resource, err)
	}
	return err
}
