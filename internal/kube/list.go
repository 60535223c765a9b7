package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// Listed is all that a cluster has, for people who ask about all.
type Listed struct {
	ServiceAccounts []ServiceAccount  // in no order
	Policies        *policy.Policies  // nil: no objects count
	Requests        []*policy.Request // that count, sorted by namespace and name
}

// List returns all there is: from memory where Run has listed it, and else from the
// API server. What is made or deleted meanwhile may be among it.
func (c *Cluster) List(ctx context.Context) (Listed, error) {
	fail := func(err error) (Listed, error) { return Listed{}, fmt.Errorf("cluster %s: %w", c.name, err) }
	accounts, err := c.accounts.Load().all(ctx)
	if err != nil {
		return fail(err)
	}
	namespaces, err := c.namespaces.all(ctx)
	if err != nil {
		return fail(err)
	}
	if err := c.ListPolicyObjects(ctx); err != nil {
		return Listed{}, err
	}
	ofAll, err := c.objects.of("", "")
	if err != nil {
		return fail(err)
	}
	listed := Listed{Policies: ofAll.Policies, Requests: c.objects.allRequests()}
	for key, account := range accounts {
		namespace := key.namespace.Value()
		labels := namespaces[objectKey{unique.Make(""), namespace}].text
		objects, err := c.objects.of(namespace, key.name)
		if err != nil {
			return fail(err)
		}
		listed.ServiceAccounts = append(listed.ServiceAccounts, ServiceAccount{Namespace: namespace, Name: key.name, Annotations: account.text, NamespaceLabels: labels, Objects: objects})
	}
	return listed, nil
}

// allRequests returns those that count, sorted by namespace and name.
func (o *policyObjects) allRequests() []*policy.Request {
	if o == nil || o.requests == nil {
		return nil
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	var all []*policy.Request
	for _, namespace := range slices.Sorted(maps.Keys(o.namespaces)) {
		all = append(all, o.namespaces[namespace].objects...)
	}
	return all
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
