package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/base/term"
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

// Account completes the name of a ServiceAccount with the namespace. flag is where it came from.
func (c *Cluster) Account(flag, name string) (string, error) {
	if parts := strings.Split(name, "/"); len(parts) > 3 || slices.Contains(parts, "") {
		return "", fmt.Errorf("%s %s is not [NAMESPACE/]SERVICEACCOUNT", flag, term.QuoteValue(name))
	}
	if !strings.Contains(name, "/") {
		return c.Namespace + "/" + name, nil
	}
	return name, nil
}

// NewAccess returns an object that requests actions on repositories for a ServiceAccount, in its
// namespace. Without a name, it has that of the ServiceAccount. The error has every fault of it.
func (c *Cluster) NewAccess(name, account string, repositories, actions []string) (*Access, error) {
	account, err := c.Account("--as", account)
	if err != nil {
		return nil, err
	}
	namespace, account, _ := strings.Cut(account, "/")
	if strings.Contains(account, "/") {
		return nil, errors.New("--as names a cluster; the object is written to that of the kubeconfig: write NAMESPACE/SERVICEACCOUNT")
	}
	a := &Access{APIVersion: apiVersion, Kind: policy.KindRequest, Metadata: AccessMetadata{cmp.Or(name, account), namespace}}
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
	return a, policy.ParseRequest(namespace, a.Metadata.Name, spec).Err()
}

// YAML returns the object as kubectl apply reads it.
func (a *Access) YAML() ([]byte, error) { return yaml.Marshal(a) }

// Create writes the object to the cluster.
func (c *Cluster) Create(ctx context.Context, a *Access) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	err = c.core.Post().AbsPath(accessPath(a.Metadata.Namespace)).SetHeader("Content-Type", "application/json").Body(text).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err):
		return errNotInstalled
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("the RepositoryAccess %s exists; choose another name with --name, or run: kubectl edit repositoryaccess %s -n %s", a.Metadata.Name, a.Metadata.Name, a.Metadata.Namespace)
	}
	return c.right(err, "create", accessResource+"."+apiGroup, "", a.Metadata.Namespace)
}
