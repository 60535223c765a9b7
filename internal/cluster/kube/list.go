package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"unique"

	"github.com/pullpass/pullpass/internal/policy"
)

// ServiceAccount is an element of a list, for people who ask about all. A decision never starts
// from one.
type ServiceAccount struct {
	Namespace, Name string
	Annotations     map[string]string // only the kept ones; must not be changed
	NamespaceLabels map[string]string // nil: not known; must not be changed
	Objects         policy.Objects    // content of the cluster's policy objects about it
}

// Listed is the content of a cluster, for people who ask about all.
type Listed struct {
	ServiceAccounts []ServiceAccount  // in no order
	Policies        *policy.Policies  // nil: no objects count
	Requests        []*policy.Request // only those that count, sorted by namespace and name
}

// List returns everything: from memory if Run has listed it, otherwise from the API server. Objects
// that are created or deleted during the call may be included.
func (c *Cluster) List(ctx context.Context) (Listed, error) {
	fail := func(err error) (Listed, error) { return Listed{}, fmt.Errorf("cluster %s: %w", c.name, err) }
	resource := c.accounts.Load()
	accounts, err := resource.all(ctx)
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
		listed.ServiceAccounts = append(listed.ServiceAccounts, ServiceAccount{Namespace: namespace, Name: key.name, Annotations: resource.annotations(account), NamespaceLabels: labels, Objects: objects})
	}
	return listed, nil
}

// allRequests returns the requests that count, sorted by namespace and name.
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

// ServiceAccounts returns the ServiceAccounts of a cluster in the files, in no order.
func (m *Manifests) ServiceAccounts(cluster string) []ServiceAccount {
	var list []ServiceAccount
	for key, account := range m.current.Load().byUID {
		if key.cluster == cluster {
			list = append(list, ServiceAccount{Namespace: account.namespace, Name: account.name, Annotations: account.annotations})
		}
	}
	return list
}

// all returns the objects in memory, or a list from the API server.
func (r *resource) all(ctx context.Context) (map[objectKey]object, error) {
	r.mu.RLock()
	if r.objects != nil {
		defer r.mu.RUnlock()
		return maps.Clone(r.objects), nil
	}
	r.mu.RUnlock()
	list, err := r.list(ctx)
	if err != nil {
		return nil, explain(err, "list", r.name)
	}
	all := make(map[objectKey]object, len(list.Items))
	for _, value := range list.Items {
		if i, ok := value.(*item); ok {
			all[i.key] = i.object
		}
	}
	return all, nil
}
