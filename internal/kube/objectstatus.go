package kube

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policyobjects"
)

// ObjectRef names an object of the policy. The zero ObjectRef is any of them.
type ObjectRef struct {
	Resource        string // as in URLs
	Namespace, Name string // without a namespace, it is an AccessPolicy
}

// PolicyObject is an object of the policy as it was seen last. What it points to must not
// be changed.
type PolicyObject struct {
	ObjectRef
	UID        string
	Generation int
	Policy     *policy.ObjectPolicy // of an AccessPolicy
	Request    *policy.Request      // of a RepositoryAccess
	*policyobjects.Remembered
}

// withSpecOf returns o with what was read of the spec before, if that is of the same
// generation: then only the metadata or the status has changed, and whoever decides need
// not hear of it.
func (o object) withSpecOf(before object) (next object, isSame bool) {
	if o.spec == nil || before.spec == nil || o.uid != before.uid || o.spec.generation == 0 || o.spec.generation != before.spec.generation {
		return o, false
	}
	spec := *o.spec
	spec.policy, spec.request = before.spec.policy, before.spec.request
	o.spec = &spec
	return o, true
}

// tell is called with a lock of the objects.
func (o *policyObjects) tell(resource string, changed *objectKey) {
	told := o.told.Load()
	switch {
	case told == nil:
	case changed == nil:
		(*told)(ObjectRef{})
	default:
		(*told)(ObjectRef{resource, changed.namespace.Value(), changed.name})
	}
}

// OnPolicyChange has told called when the spec of an object of the policy changes, or with
// the zero ObjectRef when any may have. It must return at once, and use nothing of this
// package. There is one at a time; nil: nobody is told.
func (c *Cluster) OnPolicyChange(told func(ObjectRef)) {
	switch {
	case c.objects == nil:
	case told == nil:
		c.objects.told.Store(nil)
	default:
		c.objects.told.Store(&told)
	}
}

// PolicyObjects returns the names of all objects of the policy, AccessPolicies first, or
// an error if they cannot all be known.
func (c *Cluster) PolicyObjects() ([]ObjectRef, error) {
	var all []ObjectRef
	for _, r := range c.objects.resources() {
		if !r.status().Synced {
			return nil, fmt.Errorf("cluster %s: %s are not listed yet", c.name, r.name)
		}
		r.mu.RLock()
		for key := range r.objects {
			all = append(all, ObjectRef{r.name, key.namespace.Value(), key.name})
		}
		r.mu.RUnlock()
	}
	return all, nil
}

// PolicyObject returns one, if it is there.
func (c *Cluster) PolicyObject(ref ObjectRef) (PolicyObject, bool) {
	for _, r := range c.objects.resources() {
		if r.name != ref.Resource {
			continue
		}
		if found, ok := r.find(ref.Namespace, ref.Name); ok {
			return PolicyObject{ref, found.uid, int(found.spec.generation), found.spec.policy, found.spec.request, found.spec.status}, true
		}
	}
	return PolicyObject{}, false
}

// Policies returns the AccessPolicies as decisions have them; nil: none count.
func (c *Cluster) Policies() *policy.Policies {
	if c.objects == nil {
		return nil
	}
	return c.objects.compiled.Load()
}

// RequestsIn returns the RepositoryAccess objects of a namespace.
func (c *Cluster) RequestsIn(namespace string) []PolicyObject {
	if c.objects == nil || c.objects.requests == nil {
		return nil
	}
	var names []string
	c.objects.mu.RLock()
	if n := c.objects.namespaces[namespace]; n != nil {
		names = slices.Clone(n.names)
	}
	c.objects.mu.RUnlock()
	var all []PolicyObject
	for _, name := range names {
		if o, ok := c.PolicyObject(ObjectRef{requestsResource, namespace, name}); ok {
			all = append(all, o)
		}
	}
	return all
}

// KnownAccount returns what memory has of a ServiceAccount by its name, for people: a
// decision starts from a token. An error says that not everything is listed.
func (c *Cluster) KnownAccount(namespace, name string) (account ServiceAccount, isThere bool, err error) {
	accounts := c.accounts.Load().resource
	for _, r := range []*resource{accounts, c.namespaces} {
		if !r.status().Synced {
			return ServiceAccount{}, false, fmt.Errorf("cluster %s: %s are not listed yet", c.name, r.name)
		}
	}
	found, ok := accounts.find(namespace, name)
	if !ok {
		return ServiceAccount{}, false, nil
	}
	labels, _ := c.namespaces.find("", namespace)
	objects, err := c.objects.of(namespace, name)
	if err != nil {
		return ServiceAccount{}, false, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return ServiceAccount{Namespace: namespace, Name: name, Annotations: maps.Clone(found.text), NamespaceLabels: labels.text, Objects: objects}, true, nil
}
