package kube

import (
	"context"
	"fmt"
	"maps"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/policy"
)

// ServiceAccount is one of a list, for people who ask about all: a decision never
// starts from one.
type ServiceAccount struct {
	Namespace, Name string
	Annotations     map[string]string // those that are kept; must not be changed
	NamespaceLabels map[string]string // nil: not known; must not be changed
	Objects         policy.Objects    // what objects of the cluster say of it
}

// ServiceAccounts returns all there are: from memory where Run has listed them, and
// else from the API server. They are in no order. What is made or deleted meanwhile
// may be among them.
func (c *Cluster) ServiceAccounts(ctx context.Context) ([]ServiceAccount, error) {
	accounts, err := c.accounts.Load().all(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	namespaces, err := c.namespaces.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	if err := c.ListPolicyObjects(ctx); err != nil {
		return nil, err
	}
	list := make([]ServiceAccount, 0, len(accounts))
	for key, account := range accounts {
		namespace := key.namespace.Value()
		labels := namespaces[objectKey{unique.Make(""), namespace}].text
		objects, err := c.objects.of(namespace, key.name)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", c.name, err)
		}
		list = append(list, ServiceAccount{Namespace: namespace, Name: key.name, Annotations: account.text, NamespaceLabels: labels, Objects: objects})
	}
	return list, nil
}

// ServiceAccounts returns those that the files have of a cluster, in no order.
func (m *Manifests) ServiceAccounts(cluster string) []ServiceAccount {
	var list []ServiceAccount
	for key, account := range m.current.Load().byUID {
		if key.cluster == cluster {
			list = append(list, ServiceAccount{Namespace: account.namespace, Name: account.name, Annotations: account.annotations})
		}
	}
	return list
}

// all returns the objects that are in memory, or a list of the API server.
func (r *resource) all(ctx context.Context) (map[objectKey]object, error) {
	r.mu.RLock()
	if r.objects != nil {
		defer r.mu.RUnlock()
		return maps.Clone(r.objects), nil
	}
	r.mu.RUnlock()
	all := map[objectKey]object{}
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := r.page(ctx, options)
		if err != nil {
			return nil, explain(err, "list", r.name)
		}
		for _, value := range page.Items {
			if i, ok := value.(*item); ok {
				all[i.key] = i.object
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
