package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policyobjects"
)

// PolicyObjects says which objects of a cluster count, and how far they may go.
type PolicyObjects struct {
	Policies bool // AccessPolicy
	Requests bool // RepositoryAccess
	Within   []pattern.Pattern
	Status   bool // what their status needs is kept, too
}

// MaxPolicyAge is how long objects count after the API server last said anything of
// them: it outlasts any outage that people sleep through, and ends what was revoked
// meanwhile. Denials count on.
const MaxPolicyAge = 24 * time.Hour

// The resources of the objects, as in URLs.
const (
	policiesResource = "accesspolicies"
	requestsResource = "repositoryaccesses"
)

// policySpec is what is kept of an object; policy or request is nil.
type policySpec struct {
	policy     *policy.ObjectPolicy
	request    *policy.Request
	generation int64
	status     *policyobjects.Remembered // nil: no status is written
}

// policyObjects is what a cluster's objects say, ready for decisions. It is safe for
// concurrent use.
type policyObjects struct {
	within   []pattern.Pattern
	watched  []*resource // those of the kinds that count
	requests *resource   // nil: they do not count
	now      func() time.Time

	compiled atomic.Pointer[policy.Policies]
	told     atomic.Pointer[func(ObjectRef)] // of changes; nil: nobody is

	mu         sync.RWMutex
	namespaces map[string]*namespaceRequests
}

// namespaceRequests are those of a namespace, sorted by name.
type namespaceRequests struct {
	names    []string
	objects  []*policy.Request
	accounts map[string]*policy.Requests // as far as they were asked for since the last change
}

func (c *Cluster) newPolicyObjects(wanted PolicyObjects) *policyObjects {
	if !wanted.Policies && !wanted.Requests {
		return nil
	}
	o := &policyObjects{within: slices.Clone(wanted.Within), now: c.now, namespaces: map[string]*namespaceRequests{}}
	o.compiled.Store(policy.NewPolicies(o.within))
	if wanted.Policies {
		policies := c.newPolicyResource(policiesResource, policy.Kind, wanted.Status, func(_, name string, spec any) policySpec {
			return policySpec{policy: policy.ParseObject(name, spec)}
		})
		policies.changed = o.compile
		o.watched = append(o.watched, policies)
	}
	if wanted.Requests {
		o.requests = c.newPolicyResource(requestsResource, policy.KindRequest, wanted.Status, func(namespace, name string, spec any) policySpec {
			return policySpec{request: policy.ParseRequest(namespace, name, spec)}
		})
		o.requests.changed = o.index
		o.watched = append(o.watched, o.requests)
	}
	return o
}

func (c *Cluster) newPolicyResource(name, kindName string, keepsStatus bool, read func(namespace, name string, spec any) policySpec) *resource {
	kind := schema.FromAPIVersionAndKind(policy.APIVersion, "").GroupVersion().WithResource(name)
	return &resource{
		name: name, sample: &unstructured.Unstructured{}, log: c.log, now: c.now, synced: make(chan struct{}), optional: true,
		keep: func(from metav1.Object) object {
			var spec, status any // no spec is a fault
			if whole, ok := from.(*unstructured.Unstructured); ok {
				spec, status = whole.Object["spec"], whole.Object["status"]
			}
			kept := read(from.GetNamespace(), from.GetName(), spec)
			kept.generation = from.GetGeneration()
			if keepsStatus {
				kept.status = policyobjects.Remember(kindName, from.GetName(), spec, status)
			}
			return object{spec: &kept}
		},
		source: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return c.clients.dynamic.Resource(kind).List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return c.clients.dynamic.Resource(kind).Watch(ctx, options)
			},
		},
	}
}

// resources returns those that are watched.
func (o *policyObjects) resources() []*resource {
	if o == nil {
		return nil
	}
	return o.watched
}

// compile puts the AccessPolicies together, sorted by name: of too many, every replica
// has to read the same.
func (o *policyObjects) compile(all map[objectKey]object, changed *objectKey) {
	defer o.tell(policiesResource, changed)
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
}

// index notes a change of one RepositoryAccess, or of all.
func (o *policyObjects) index(all map[objectKey]object, changed *objectKey) {
	defer o.tell(requestsResource, changed)
	o.mu.Lock()
	defer o.mu.Unlock()
	if changed != nil {
		found, ok := all[*changed]
		o.set(*changed, found, ok)
		return
	}
	o.namespaces = map[string]*namespaceRequests{}
	for key, found := range all {
		o.set(key, found, true)
	}
}

// set is called with mu.
func (o *policyObjects) set(key objectKey, found object, isThere bool) {
	namespace := key.namespace.Value()
	n := o.namespaces[namespace]
	if n == nil {
		n = &namespaceRequests{}
		o.namespaces[namespace] = n
	}
	n.accounts = map[string]*policy.Requests{}
	i, known := slices.BinarySearch(n.names, key.name)
	switch {
	case isThere && known:
		n.objects[i] = found.spec.request
	case isThere:
		n.names, n.objects = slices.Insert(n.names, i, key.name), slices.Insert(n.objects, i, found.spec.request)
	case known:
		n.names, n.objects = slices.Delete(n.names, i, i+1), slices.Delete(n.objects, i, i+1)
	}
	if len(n.names) == 0 {
		delete(o.namespaces, namespace)
	}
}

// of returns what the objects say of a ServiceAccount that is there. It is an error
// while they are being listed for the first time; if they cannot be listed, nothing
// is said.
func (o *policyObjects) of(namespace, account string) (policy.Objects, error) {
	if o == nil {
		return policy.Objects{}, nil
	}
	said := policy.Objects{Policies: o.compiled.Load()}
	for _, r := range o.watched {
		status := r.status()
		switch {
		case !status.Synced && status.LastFailure == "":
			return policy.Objects{}, fmt.Errorf("%s are not listed yet", r.name)
		case status.Synced && o.now().Sub(status.HeardAt) > MaxPolicyAge:
			said.Policies = said.Policies.Denials()
		}
	}
	if o.requests != nil {
		said.Requests = o.requestsOf(namespace, account)
	}
	return said, nil
}

func (o *policyObjects) requestsOf(namespace, account string) *policy.Requests {
	o.mu.RLock()
	n := o.namespaces[namespace]
	if n == nil {
		o.mu.RUnlock()
		return nil
	}
	found, ok := n.accounts[account]
	o.mu.RUnlock()
	if ok {
		return found
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n = o.namespaces[namespace]; n == nil {
		return nil
	}
	found = policy.NewRequests(account, n.objects)
	n.accounts[account] = found
	return found
}

// ListPolicyObjects reads the objects once, for who does not Run. Who does knows them, and
// a list could be older than what was watched meanwhile: what was taken away would count
// again.
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
