package kube

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

// ObjectRef names an object of the policy. The zero ObjectRef stands for any of them.
type ObjectRef struct {
	Resource        string // as in URLs
	Namespace, Name string // an AccessPolicy has no namespace
}

// PolicyObject is an object of the policy as it was last seen. The values that it points to must
// not be changed.
type PolicyObject struct {
	ObjectRef
	UID        string
	Generation int
	Policy     *policy.ObjectPolicy // of an AccessPolicy
	Request    *policy.Request      // of a RepositoryAccess
	Beyond     bool                 // it has no room in its namespace's budget, and does not count; Request is nil
	*policyobjects.Remembered
}

// withSpecOf returns o with the parsed spec of before, if both have the same generation. Then only
// the metadata or the status has changed, which does not concern decisions.
func (o object) withSpecOf(before object) (next object, isSame bool) {
	if o.spec == nil || before.spec == nil || before.beyond || o.uid != before.uid || o.spec.generation == 0 || o.spec.generation != before.spec.generation {
		return o, false
	}
	spec := *o.spec
	spec.policy, spec.request = before.spec.policy, before.spec.request
	o.spec = &spec
	return o, true
}

// notify is called with a lock of the objects.
func (o *policyObjects) notify(resource string, changed *objectKey) {
	told := o.told.Load()
	switch {
	case told == nil:
	case changed == nil:
		(*told)(ObjectRef{})
	default:
		(*told)(ObjectRef{resource, changed.namespace.Value(), changed.name})
	}
}

// OnPolicyChange sets the function that is called when the spec of an object of the policy changes.
// It is called with the zero ObjectRef when any may have changed. It must return at once, and must
// not use this package. There is one function at a time; nil removes it.
func (c *Cluster) OnPolicyChange(told func(ObjectRef)) {
	switch {
	case c.objects == nil:
	case told == nil:
		c.objects.told.Store(nil)
	default:
		c.objects.told.Store(&told)
	}
}

// PolicyObjects returns the names of all objects of the policy, AccessPolicies first. It returns an
// error if not all of them can be known.
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

// PolicyObject returns one object, if it exists.
func (c *Cluster) PolicyObject(ref ObjectRef) (PolicyObject, bool) {
	for _, r := range c.objects.resources() {
		if r.name != ref.Resource {
			continue
		}
		if found, ok := r.find(ref.Namespace, ref.Name); ok {
			return PolicyObject{ref, found.uid, int(found.spec.generation), found.spec.policy, found.spec.request, found.beyond, found.spec.status}, true
		}
	}
	return PolicyObject{}, false
}

// Policies returns the AccessPolicies in the form that decisions use. It is nil if none count.
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

// KnownAccount returns the data in memory about a ServiceAccount by its name, for people. A
// decision starts from a token. An error means that not everything is listed.
func (c *Cluster) KnownAccount(namespace, name string) (account ServiceAccount, isThere bool, err error) {
	accounts := c.accounts.Load()
	for _, r := range []*resource{accounts.resource, c.namespaces} {
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
	return ServiceAccount{Namespace: namespace, Name: name, Annotations: maps.Clone(accounts.annotations(found)), NamespaceLabels: labels.text, Objects: objects}, true, nil
}
