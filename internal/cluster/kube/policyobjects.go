package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

// PolicyObjects says which objects of a cluster count, and their limits.
type PolicyObjects struct {
	Policies bool // AccessPolicy
	Requests bool // RepositoryAccess
	Within   []pattern.Pattern
	Status   bool // also keep the data that their status needs
}

// MaxPolicyAge is how long objects count after the last message of the API server about them. It
// outlasts an overnight outage, and ends grants that were revoked meanwhile. Denials continue to
// count.
const MaxPolicyAge = 24 * time.Hour

// The resources of the objects, as in URLs.
const (
	policiesResource = "accesspolicies"
	requestsResource = "repositoryaccesses"
)

// policySpec is the kept data of an object; policy or request is nil.
type policySpec struct {
	policy     *policy.ObjectPolicy
	request    *policy.Request
	generation int64
	status     *policyobjects.Remembered // nil: no status is written
}

// policyObjects holds the content of a cluster's objects, ready for decisions. It is safe for
// concurrent use.
type policyObjects struct {
	within   []pattern.Pattern
	watched  []*resource // of the kinds that count
	requests *resource   // nil: RepositoryAccess objects do not count
	now      func() time.Time

	compiled atomic.Pointer[policy.Policies]
	trial    atomic.Pointer[policy.Policies] // with the objects that are only tried; nil: there are none
	told     atomic.Pointer[func(ObjectRef)] // called after changes; nil: no call

	mu         sync.RWMutex
	namespaces map[string]*namespaceRequests
}

// namespaceRequests are the requests of a namespace that count, sorted by name. They are immutable.
type namespaceRequests struct {
	names   []string
	objects []*policy.Request
	beyond  int // number of further requests, which have no room

	gather   sync.Once // accounts is filled at the first use
	accounts map[string]*policy.Requests
}

func (c *Cluster) newPolicyObjects(wanted PolicyObjects) *policyObjects {
	if !wanted.Policies && !wanted.Requests {
		return nil
	}
	o := &policyObjects{within: slices.Clone(wanted.Within), now: c.now, namespaces: map[string]*namespaceRequests{}}
	o.compiled.Store(policy.NewPolicies(o.within))
	if wanted.Policies {
		policies := c.newPolicyResource(policiesResource, policy.Kind, wanted.Status, 0, func(_, name string, spec any) policySpec {
			return policySpec{policy: policy.ParseObject(name, spec)}
		})
		policies.changed, policies.denies, policies.ready = o.compile, true, c.clients.ready
		o.watched = append(o.watched, policies)
	}
	if wanted.Requests {
		o.requests = c.newPolicyResource(requestsResource, policy.KindRequest, wanted.Status, requestBudget, func(namespace, name string, spec any) policySpec {
			return policySpec{request: policy.ParseRequest(namespace, name, spec)}
		})
		o.requests.changed = o.index
		o.watched = append(o.watched, o.requests)
	}
	return o
}

func (c *Cluster) newPolicyResource(name, kindName string, keepsStatus bool, budget int, read func(namespace, name string, spec any) policySpec) *resource {
	kind := schema.FromAPIVersionAndKind(policy.APIVersion, "").GroupVersion().WithResource(name)
	return newResource(&resource{
		name: name, sample: &unstructured.Unstructured{}, log: c.log, now: c.now, optional: true, budget: budget,
		keep: func(from metav1.Object) object {
			var spec, status any // a missing spec is a fault
			if whole, ok := from.(*unstructured.Unstructured); ok {
				spec, status = whole.Object["spec"], whole.Object["status"]
			}
			kept := read(from.GetNamespace(), from.GetName(), spec)
			kept.generation = from.GetGeneration()
			if keepsStatus {
				kept.status = policyobjects.Remember(kindName, from.GetName(), spec, status)
			}
			o := object{spec: &kept}
			if budget > 0 {
				o.claim = newClaim(from, requestCost+costOf(spec))
			}
			return o
		},
		// The proxy has the right to list them, but not to get one.
		fetch: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			found, err := c.clients.dynamic.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err != nil || len(found.Items) == 0 {
				return nil, cmp.Or(err, errNotListed)
			}
			return &found.Items[0], nil
		},
		source: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return c.clients.dynamic.Resource(kind).List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return c.clients.dynamic.Resource(kind).Watch(ctx, options)
			},
		},
	})
}

var errNotListed = errors.New("it is not there")

// resources returns the watched resources.
func (o *policyObjects) resources() []*resource {
	if o == nil {
		return nil
	}
	return o.watched
}

// compile combines the AccessPolicies, sorted by name: if there are too many, every replica must
// read the same ones.
func (o *policyObjects) compile(all map[objectKey]object, changed *objectKey) {
	defer o.notify(policiesResource, changed)
	keys := make([]string, 0, len(all))
	byName := make(map[string]*policy.ObjectPolicy, len(all))
	for key, found := range all {
		keys, byName[key.name] = append(keys, key.name), found.spec.policy
	}
	slices.Sort(keys)
	list := make([]*policy.ObjectPolicy, len(keys))
	for i, name := range keys {
		list[i] = byName[name]
	}
	o.compiled.Store(policy.NewPolicies(o.within, list...))
	o.trial.Store(policy.NewTrial(o.within, list...))
}

// index notes a change of one RepositoryAccess, or of all.
func (o *policyObjects) index(all map[objectKey]object, changed *objectKey) {
	defer o.notify(requestsResource, changed)
	if changed != nil {
		found, isThere := all[*changed]
		beyond := o.requests.ledgers.beyond(changed.namespace)
		o.mu.Lock()
		defer o.mu.Unlock()
		next := o.namespaces[changed.namespace.Value()].with(changed.name, found, isThere && !found.beyond)
		o.set(changed.namespace.Value(), next, beyond)
		return
	}
	sorted := map[unique.Handle[string]]*namespaceRequests{}
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b objectKey) int { return strings.Compare(a.name, b.name) }) {
		n := sorted[key.namespace]
		if n == nil {
			n = &namespaceRequests{}
			sorted[key.namespace] = n
		}
		if found := all[key]; !found.beyond {
			n.names, n.objects = append(n.names, key.name), append(n.objects, found.spec.request)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.namespaces = map[string]*namespaceRequests{}
	for namespace, n := range sorted {
		o.set(namespace.Value(), n, o.requests.ledgers.beyond(namespace))
	}
}

// set is called with mu.
func (o *policyObjects) set(namespace string, n *namespaceRequests, beyond int) {
	n.beyond = beyond
	if len(n.names) == 0 && beyond == 0 {
		delete(o.namespaces, namespace)
		return
	}
	o.namespaces[namespace] = n
}

// with returns a copy that includes or excludes an object.
func (n *namespaceRequests) with(name string, found object, isThere bool) *namespaceRequests {
	next := &namespaceRequests{}
	if n != nil {
		next.names, next.objects = slices.Clone(n.names), slices.Clone(n.objects)
	}
	i, known := slices.BinarySearch(next.names, name)
	switch {
	case isThere && known:
		next.objects[i] = found.spec.request
	case isThere:
		next.names, next.objects = slices.Insert(next.names, i, name), slices.Insert(next.objects, i, found.spec.request)
	case known:
		next.names, next.objects = slices.Delete(next.names, i, i+1), slices.Delete(next.objects, i, i+1)
	}
	return next
}

// of returns the requests for a ServiceAccount; nil: none. The first call gathers those of all
// ServiceAccounts, and later calls gather nothing.
func (n *namespaceRequests) of(account string) *policy.Requests {
	n.gather.Do(func() {
		asking := map[string][]*policy.Request{}
		for _, r := range n.objects {
			for _, name := range r.ServiceAccounts() {
				if list := asking[name]; len(list) == 0 || list[len(list)-1] != r {
					asking[name] = append(list, r)
				}
			}
		}
		n.accounts = make(map[string]*policy.Requests, len(asking))
		for name, objects := range asking {
			n.accounts[name] = policy.NewRequests(name, objects)
		}
	})
	return n.accounts[account]
}

// of returns the content of the objects about an existing ServiceAccount. It is an error until
// AccessPolicies, which may have denials, are listed. If there are none for the proxy, the result
// has none. RepositoryAccesses only grant: the users of one namespace can make their list slow, and
// other pods do not wait for it.
func (o *policyObjects) of(namespace, account string) (policy.Objects, error) {
	if o == nil {
		return policy.Objects{}, nil
	}
	said := policy.Objects{Policies: o.compiled.Load(), Trial: o.trial.Load()}
	for _, r := range o.watched {
		status := r.status()
		switch {
		case !status.Synced && !status.Optional:
			return policy.Objects{}, fmt.Errorf("%s are not listed yet", r.name)
		case status.Synced && o.now().Sub(status.HeardAt) > MaxPolicyAge:
			said.Policies = said.Policies.Denials()
			said.Trial = nil
		}
	}
	o.mu.RLock()
	n := o.namespaces[namespace]
	o.mu.RUnlock()
	if n != nil {
		said.Requests, said.Beyond = n.of(account), n.beyond
	}
	return said, nil
}

// ListPolicyObjects reads the objects once, for callers that do not call Run. After Run, a list
// could be older than the watched objects: revoked grants would count again.
func (c *Cluster) ListPolicyObjects(ctx context.Context) error {
	c.mu.Lock()
	runs := c.running != nil
	c.mu.Unlock()
	if runs {
		return nil
	}
	for _, r := range c.objects.resources() {
		if err := r.listOnce(ctx); err != nil {
			return fmt.Errorf("cluster %s: %s: %w", c.name, r.name, err)
		}
	}
	return nil
}

// ObjectsOf returns the content of the objects about an existing ServiceAccount, after
// ListPolicyObjects.
func (c *Cluster) ObjectsOf(namespace, account string) (policy.Objects, error) {
	return c.objects.of(namespace, account)
}
