package kubectl

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

const (
	apiGroup       = "pullpass.dev"
	apiVersion     = policy.APIVersion
	accessResource = "repositoryaccesses"
)

// AccessMetadata is what is written and shown of an object's metadata.
type AccessMetadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// AccessSpec is what a RepositoryAccess requests.
type AccessSpec = policy.RequestSpec

// AccessStatus is what Pullpass says of it.
type AccessStatus = policyobjects.RepositoryAccessStatus

// NewAccess returns an object that requests actions on repositories for a ServiceAccount of the
// namespace. The error has every fault of it.
func (c *Cluster) NewAccess(name, account string, repositories, actions []string) (*Access, error) {
	a := &Access{APIVersion: apiVersion, Kind: policy.KindRequest, Metadata: AccessMetadata{name, c.Namespace}}
	a.Spec.ServiceAccounts, a.Spec.Repositories = []string{account}, repositories
	for _, action := range actions {
		a.Spec.Actions = append(a.Spec.Actions, policy.ActionName(action))
	}
	text, err := json.Marshal(a.Spec)
	if err != nil {
		return nil, err
	}
	var spec any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	return a, policy.ParseRequest(c.Namespace, name, spec).Err()
}

// Create writes the object to the cluster.
func (c *Cluster) Create(ctx context.Context, a *Access) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	err = c.core.Post().AbsPath(c.accessPath()).SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return errNotInstalled
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("the RepositoryAccess %s exists; choose another name with --name, or run: kubectl edit repositoryaccess %s -n %s", a.Metadata.Name, a.Metadata.Name, c.Namespace)
	}
	return c.right(err, "create", accessResource+"."+apiGroup, "", c.Namespace)
}
