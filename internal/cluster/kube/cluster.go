package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
)

// nodeNameBytes is for the names of the nodes of 25,000 pods.
const nodeNameBytes = 6 << 20

// ClusterConfig configures a Cluster.
type ClusterConfig struct {
	Name           string       // in identities, errors and status
	REST           *rest.Config // the connection; see InCluster and Kubeconfig
	AnnotationKeys []string     // no other annotation is kept
	PodChecks      bool         // the pod that a token names must exist
	NodeFallback   bool         // for a token without a node, use the node in its pod's spec
	Nodes          bool         // Facts.Node is needed; the node of a token that is bound to a node (no pod) must exist
	NodeLabels     bool         // Facts.Node.Labels is needed (node selector)
	NodeAddresses  bool         // Facts.Node.Addresses is needed (address proof)
	// PullSecretAudience is the audience of tokens in Secrets. If it is empty, such tokens are not
	// accepted.
	PullSecretAudience string
	Objects            PolicyObjects
	Logger             *slog.Logger // nil discards
	Now                func() time.Time
}

// Cluster knows the objects of one cluster, from its API server. It is safe for concurrent use.
//
// The objects that Run watches are in memory. They remain available while the API server cannot be
// reached. Before a refusal, Cluster asks the API server about every object that memory does not
// confirm, one at a time: a new pod can be faster than a watch.
type Cluster struct {
	name         string
	clients      apiClients
	live         *live
	reviews      *reviews
	log          *slog.Logger
	now          func() time.Time
	podChecks    bool
	nodeFallback bool

	accounts   atomic.Pointer[accountResource]
	namespaces *resource
	pods       *resource                  // nil unless the pod must exist
	nodes      *resource                  // nil unless nodes are needed
	podSpecs   *resource                  // only requested, never watched
	objects    *policyObjects             // nil: no objects count
	nodeNames  *lru.Cache[string, string] // by UID of the pod

	changing chan struct{} // one element while SetAnnotationKeys runs

	mu           sync.Mutex
	running      context.Context // of Run; nil before Run
	stopAccounts context.CancelFunc
}

var _ exchange.Objects = (*Cluster)(nil)

// accountResource holds ServiceAccounts with the kept annotations.
type accountResource struct {
	*resource
	keys   []string
	beyond map[string]string // for ServiceAccounts whose own annotations have no room
}

// annotations returns the annotations of a ServiceAccount. They must not be changed.
func (r *accountResource) annotations(account object) map[string]string {
	if account.beyond {
		return r.beyond
	}
	return account.text
}

// NewCluster does not use the network.
func NewCluster(config ClusterConfig) (*Cluster, error) {
	if config.REST == nil {
		return nil, fmt.Errorf("cluster %s: no connection is given", config.Name)
	}
	connections, err := newClients(config.REST)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", config.Name, err)
	}
	config.Logger = cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	if config.Now == nil {
		config.Now = time.Now
	}
	c := &Cluster{
		name: config.Name, clients: connections, log: config.Logger.With("cluster", config.Name), now: config.Now,
		podChecks: config.PodChecks, nodeFallback: config.NodeFallback, changing: make(chan struct{}, 1),
	}
	c.live = newLive(config.Name, config.Now)
	c.reviews = newReviews(config.Name, config.PullSecretAudience, connections.reviews, config.Now)
	c.nodeNames = lru.New(nodeNameBytes, func(uid, name string) int { return lru.Bytes(len(uid)) + lru.Bytes(len(name)) })
	c.accounts.Store(c.newAccounts(config.AnnotationKeys))
	c.objects = c.newPolicyObjects(config.Objects)
	c.namespaces = c.newResource("namespaces", keepLabels)
	if config.PodChecks {
		c.pods = c.newResource("pods", keepIdentity)
		c.pods.slim = true
	}
	if config.NodeFallback {
		c.podSpecs = c.newPodSpecs()
	}
	switch {
	case config.NodeAddresses:
		c.nodes = c.newWholeNodes(keepNode(config.NodeLabels))
	case config.Nodes || config.NodeLabels:
		c.nodes = c.newResource("nodes", keepNode(config.NodeLabels))
	}
	return c, nil
}

func (c *Cluster) newAccounts(keys []string) *accountResource {
	keys = slices.Clone(keys)
	accounts, beyond := c.newResource("serviceaccounts", keepAnnotations(keys)), map[string]string{}
	accounts.budget = annotationBudget
	for _, key := range keys {
		beyond[key] = policy.AnnotationBeyond
	}
	return &accountResource{accounts, keys, beyond}
}

// Run watches until ctx ends. It is called at most once.
func (c *Cluster) Run(ctx context.Context) {
	c.mu.Lock()
	c.running = ctx
	c.stopAccounts = c.start(c.accounts.Load().resource)
	c.mu.Unlock()
	for _, r := range c.watched()[1:] {
		c.start(r)
	}
	// Do not wait for the reflectors: one that found the API server down may sleep for seconds
	// before it sees that ctx ended.
	<-ctx.Done()
}

// watched returns the resources that Run watches, ServiceAccounts first.
func (c *Cluster) watched() []*resource {
	all := append([]*resource{c.accounts.Load().resource, c.namespaces, c.pods, c.nodes}, c.objects.resources()...)
	return slices.DeleteFunc(all, func(r *resource) bool { return r == nil })
}

// Synced returns when everything was listed once. It returns an error if ctx ends before that. The
// caller must have called Run, or be about to call it.
func (c *Cluster) Synced(ctx context.Context) error {
	for _, r := range c.watched() {
		select {
		case <-r.synced:
		case <-ctx.Done():
			return fmt.Errorf("cluster %s: %s are not listed yet: %w", c.name, r.name, r.cause(ctx))
		}
	}
	return nil
}

// start must be called only after Run.
func (c *Cluster) start(r *resource) (stop context.CancelFunc) {
	ctx, stop := context.WithCancel(c.running)
	go r.reflect(ctx)
	return stop
}

// SetAnnotationKeys sets the annotations that are kept from now on. For a new key it lists the
// ServiceAccounts again, and returns when that is done. It returns at once if they were never
// listed. If ctx ends first, nothing changes.
func (c *Cluster) SetAnnotationKeys(ctx context.Context, keys []string) error {
	select {
	case c.changing <- struct{}{}:
		defer func() { <-c.changing }()
	case <-ctx.Done():
		return fmt.Errorf("cluster %s: another change of the annotations that are kept is not done yet: %w", c.name, context.Cause(ctx))
	}
	if c.KeepsAnnotations(keys) {
		return nil
	}
	fresh := c.newAccounts(keys)
	c.mu.Lock()
	if c.running == nil { // nothing was listed yet
		c.accounts.Store(fresh)
		c.mu.Unlock()
		return nil
	}
	running, stop := c.running, c.start(fresh.resource)
	if !c.accounts.Load().status().Synced { // memory has no list that could pass as complete
		c.takeAccounts(fresh, stop)
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	var ended error
	select {
	case <-fresh.synced:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.takeAccounts(fresh, stop)
		return nil
	case <-ctx.Done():
		ended = fresh.cause(ctx)
	case <-running.Done():
		ended = fresh.cause(running)
	}
	stop()
	return fmt.Errorf("cluster %s: cannot list the ServiceAccounts with the annotations of the new policy: %w", c.name, ended)
}

// takeAccounts is called with mu.
func (c *Cluster) takeAccounts(fresh *accountResource, stop context.CancelFunc) {
	c.accounts.Store(fresh)
	c.stopAccounts()
	c.stopAccounts = stop
}

// KeepsAnnotations reports whether annotations with all of these keys are kept.
func (c *Cluster) KeepsAnnotations(keys []string) bool {
	return containsAll(c.accounts.Load().keys, keys)
}

func containsAll(list, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(list, s) })
}

// Lookup returns the known facts about the objects that an identity names. The ServiceAccount must
// exist with the UID of the token. So must the pod if it is checked, and the node of a token that
// is bound to a node.
//
// Otherwise it returns a *exchange.GoneError. It never does so because the API server could not be
// asked. That case is a different error, and so is an object that memory does not confirm while too
// many requests wait.
//
// It sends at most five requests, each within maxGetTime, and only one to an API server that hangs.
// A credential from a Secret is reviewed instead of a pod: see reviews.
func (c *Cluster) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	accounts := c.accounts.Load()
	account, remembered, err := c.confirm(ctx, accounts.resource, exchange.KindServiceAccount, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount, false)
	if err != nil {
		return exchange.Facts{}, err
	}
	if id.InSecret() {
		if err := c.reviews.ask(ctx, &id, credential); err != nil {
			return exchange.Facts{}, err
		}
	}
	if c.pods != nil && id.Kubernetes.Pod != (oidc.ObjectRef{}) {
		if _, _, err := c.confirm(ctx, c.pods, exchange.KindPod, id.Kubernetes.Namespace, id.Kubernetes.Pod, false); err != nil {
			return exchange.Facts{}, err
		}
	}
	node, err := c.node(ctx, &id)
	if err != nil {
		return exchange.Facts{}, err
	}
	labels, err := c.namespaceLabels(ctx, id.Kubernetes.Namespace, remembered)
	if err != nil {
		return exchange.Facts{}, err
	}
	objects, err := c.objects.of(id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name)
	if err != nil {
		return exchange.Facts{}, fmt.Errorf("cluster %s: %w", c.name, err)
	}
	return exchange.Facts{Confirmed: true, Annotations: accounts.annotations(account), NamespaceLabels: labels, Node: node, Objects: objects}, nil
}

// confirm returns the object if it has the UID, and reports whether memory confirmed it. The tenant
// is the namespace of the ServiceAccount, and of the object unless that is a Node. A token that is
// bound to a pod does not end with the deletion of its Node, which drains for as long as a finalizer
// keeps it (the API server's ServiceAccount token validator).
func (c *Cluster) confirm(ctx context.Context, r *resource, kind exchange.Kind, tenant string, ref oidc.ObjectRef, isLasting bool) (confirmed object, remembered bool, err error) {
	namespace := tenant
	if kind == exchange.KindNode {
		namespace = ""
	}
	if ref.UID == "" { // an empty UID would confirm any object of the name
		return object{}, false, fmt.Errorf("cluster %s: the token names the %s %s without UID", c.name, kind, join(namespace, ref.Name))
	}
	if known, ok := r.confirm(namespace, ref.Name, ref.UID, isLasting); ok {
		return known, true, nil
	}
	asked, found, err := c.live.ask(ctx, r, tenant, subject{r.name, namespace, ref.Name, ref.UID, isLasting})
	if err != nil {
		return object{}, false, err
	}
	if !found {
		return object{}, false, &exchange.GoneError{Kind: kind, Name: join(namespace, ref.Name), UID: ref.UID, Now: asked.uid}
	}
	return asked, false, nil
}

// node returns the node that the token or else its pod names. It returns nil if the node is not
// needed or does not exist.
func (c *Cluster) node(ctx context.Context, id *oidc.Identity) (*exchange.Node, error) {
	switch {
	case id.Kubernetes.Node == (oidc.ObjectRef{}):
		if c.podSpecs == nil || id.Kubernetes.Pod == (oidc.ObjectRef{}) {
			return nil, nil
		}
		return c.nodeOfPod(ctx, id)
	case c.nodes == nil || id.Kubernetes.Node.UID == "":
		return nil, nil
	}
	hasPod := id.Kubernetes.Pod != (oidc.ObjectRef{})
	found, _, err := c.confirm(ctx, c.nodes, exchange.KindNode, id.Kubernetes.Namespace, id.Kubernetes.Node, hasPod)
	if _, ok := errors.AsType[*exchange.GoneError](err); ok && hasPod {
		// A Node object can be deleted and registered again while its pods continue to run. Their
		// tokens are bound to the pod.
		return nil, nil
	}
	return found.node, err
}

// nodeOfPod is for API servers that do not write the node into tokens (before KEP-4193).
func (c *Cluster) nodeOfPod(ctx context.Context, id *oidc.Identity) (*exchange.Node, error) {
	name, ok := c.nodeNames.Get(id.Kubernetes.Pod.UID)
	if !ok {
		pod, _, err := c.confirm(ctx, c.podSpecs, exchange.KindPod, id.Kubernetes.Namespace, id.Kubernetes.Pod, false)
		if err != nil || pod.node == nil {
			return nil, err
		}
		name = pod.node.Name
		c.nodeNames.Add(strings.Clone(id.Kubernetes.Pod.UID), name)
	}
	if c.nodes == nil {
		return &exchange.Node{Name: name}, nil
	}
	known, ok := c.nodes.find("", name)
	if !ok {
		var err error
		if known, ok, err = c.live.ask(ctx, c.nodes, id.Kubernetes.Namespace, subject{resource: c.nodes.name, name: name}); err != nil {
			return nil, err
		}
	}
	if !ok {
		return &exchange.Node{Name: name}, nil
	}
	return known.node, nil
}

// namespaceLabels uses memory only if memory also has the ServiceAccount. A token does not contain
// the UID of its namespace. A ServiceAccount that memory does not have may be in a namespace that
// was deleted and recreated.
func (c *Cluster) namespaceLabels(ctx context.Context, namespace string, accountRemembered bool) (map[string]string, error) {
	if known, ok := c.namespaces.find("", namespace); ok && accountRemembered {
		return known.text, nil
	}
	asked, found, err := c.live.ask(ctx, c.namespaces, namespace, subject{resource: c.namespaces.name, name: namespace})
	if err != nil {
		return nil, err
	}
	if !found {
		// The ServiceAccount is deleted before its namespace. The answer "no labels" now could skip
		// a rule that denies by label.
		return nil, fmt.Errorf("cluster %s: the namespace %s is being deleted", c.name, namespace)
	}
	return asked.text, nil
}

// UID returns the UID of a ServiceAccount by its name, or "" if it does not exist. It is for people
// who ask about a name; a decision never starts from a name.
func (c *Cluster) UID(ctx context.Context, namespace, name string) (string, error) {
	accounts := c.accounts.Load().resource
	asked, _, err := c.live.ask(ctx, accounts, namespace, subject{resource: accounts.name, namespace: namespace, name: name})
	return asked.uid, err
}

// Directory holds the clusters by name.
type Directory map[string]exchange.Objects

var _ exchange.Objects = Directory(nil)

// Lookup asks the identity's cluster. About an unknown cluster, nothing is known.
func (d Directory) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	objects, ok := d[id.Cluster]
	if !ok {
		return exchange.Facts{}, nil
	}
	return objects.Lookup(ctx, id, credential)
}
