package kube

import (
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

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/oidc"
)

// nodeNameBytes is for the names of the nodes of 25,000 pods.
const nodeNameBytes = 6 << 20

// ClusterConfig configures a Cluster.
type ClusterConfig struct {
	Name           string       // in identities, errors, status
	REST           *rest.Config // where, and as whom; see InCluster and Kubeconfig
	AnnotationKeys []string     // no other annotation is kept
	PodChecks      bool         // the pod that a token names must be there
	NodeFallback   bool         // for a token without node, take the node of its pod's spec
	Nodes          bool         // Facts.Node is wanted, and a token bound to a node (no pod) needs it to be there
	NodeLabels     bool         // Facts.Node.Labels is wanted (node selector)
	NodeAddresses  bool         // Facts.Node.Addresses is wanted (address proof)
	// PullSecretAudience is that of the tokens that lie in Secrets; empty: none is
	// accepted.
	PullSecretAudience string
	Objects            PolicyObjects
	Logger             *slog.Logger // nil discards
	Now                func() time.Time
}

// Cluster knows the objects of one cluster, from its API server. It is safe for
// concurrent use.
//
// What Run watches is in memory, and serves also while the API server cannot be
// reached. Whatever memory does not confirm is asked for, one object at a time,
// before anybody is refused: a new pod can be faster than a watch.
type Cluster struct {
	name         string
	clients      clients
	live         *live
	reviews      *reviews
	log          *slog.Logger
	now          func() time.Time
	podChecks    bool
	nodeFallback bool

	accounts   atomic.Pointer[accountResource]
	namespaces *resource
	pods       *resource                  // nil unless the pod must be there
	nodes      *resource                  // nil unless nodes are wanted
	podSpecs   *resource                  // only asked, never watched
	objects    *policyObjects             // nil: none counts
	nodeNames  *lru.Cache[string, string] // by UID of the pod

	changing chan struct{} // one element while SetAnnotationKeys works

	mu           sync.Mutex
	running      context.Context // of Run; nil before
	stopAccounts context.CancelFunc
}

var _ exchange.Objects = (*Cluster)(nil)

// accountResource is ServiceAccounts with the annotations that are kept.
type accountResource struct {
	*resource
	keys []string
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
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
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
	return &accountResource{c.newResource("serviceaccounts", keepAnnotations(keys)), keys}
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
	// Nothing waits for the reflectors: one that found the API server down may
	// sleep for seconds before it sees that ctx ended.
	<-ctx.Done()
}

// watched returns what Run watches, ServiceAccounts first.
func (c *Cluster) watched() []*resource {
	all := append([]*resource{c.accounts.Load().resource, c.namespaces, c.pods, c.nodes}, c.objects.resources()...)
	return slices.DeleteFunc(all, func(r *resource) bool { return r == nil })
}

// Synced returns when everything was listed once, or with an error when ctx
// ends before that. Run must have been called, or about to be.
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

// start must only be called after Run was.
func (c *Cluster) start(r *resource) (stop context.CancelFunc) {
	ctx, stop := context.WithCancel(c.running)
	go r.reflect(ctx)
	return stop
}

// SetAnnotationKeys says which annotations are kept from now on. For a key that
// was not kept so far it lists the ServiceAccounts again, and returns when that
// is done, or at once if they were never listed. If ctx ends first, nothing changes.
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
	if !c.accounts.Load().status().Synced { // nothing is in memory that could be taken for all there is
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

// Lookup returns what is known of the objects that an identity names. The
// ServiceAccount must be there with the UID of the token, and so must the pod
// if it is checked, and the node of a token that is bound to a node: otherwise
// it returns a *exchange.GoneError, but never because the API server could not
// be asked. That, and an object that memory does not confirm while too many
// requests wait, is any other error. It asks at most five times, each within
// maxGetTime, and only once of an API server that hangs. A credential that lies in a
// Secret is reviewed instead of a pod: see reviews.
func (c *Cluster) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	account, remembered, err := c.confirm(ctx, c.accounts.Load().resource, exchange.KindServiceAccount, id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount)
	if err != nil {
		return exchange.Facts{}, err
	}
	if id.InSecret() {
		if err := c.reviews.ask(ctx, &id, credential); err != nil {
			return exchange.Facts{}, err
		}
	}
	if c.pods != nil && id.Kubernetes.Pod != (oidc.ObjectRef{}) {
		if _, _, err := c.confirm(ctx, c.pods, exchange.KindPod, id.Kubernetes.Namespace, id.Kubernetes.Pod); err != nil {
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
	return exchange.Facts{Confirmed: true, Annotations: account.text, NamespaceLabels: labels, Node: node, Objects: objects}, nil
}

// confirm returns the object if it has the UID, and whether memory has it so.
func (c *Cluster) confirm(ctx context.Context, r *resource, kind exchange.Kind, namespace string, ref oidc.ObjectRef) (confirmed object, remembered bool, err error) {
	if ref.UID == "" { // it would confirm any object of the name
		return object{}, false, fmt.Errorf("cluster %s: the token names the %s %s without UID", c.name, kind, join(namespace, ref.Name))
	}
	if known, ok := r.find(namespace, ref.Name); ok && known.uid == ref.UID {
		return known, true, nil
	}
	asked, found, err := c.live.ask(ctx, r, subject{r.name, namespace, ref.Name, ref.UID})
	if err != nil {
		return object{}, false, err
	}
	if !found {
		return object{}, false, &exchange.GoneError{Kind: kind, Name: join(namespace, ref.Name), UID: ref.UID, Now: asked.uid}
	}
	return asked, false, nil
}

// node returns the node that the token names, or else its pod; nil if that is
// not wanted or not there.
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
	found, _, err := c.confirm(ctx, c.nodes, exchange.KindNode, "", id.Kubernetes.Node)
	var gone *exchange.GoneError
	if errors.As(err, &gone) && id.Kubernetes.Pod != (oidc.ObjectRef{}) {
		// A Node object can be deleted and registered again while its pods run on;
		// it is the pod that their tokens are bound to.
		return nil, nil
	}
	return found.node, err
}

// nodeOfPod is for API servers that do not write the node into tokens (before
// KEP-4193).
func (c *Cluster) nodeOfPod(ctx context.Context, id *oidc.Identity) (*exchange.Node, error) {
	name, ok := c.nodeNames.Get(id.Kubernetes.Pod.UID)
	if !ok {
		pod, _, err := c.confirm(ctx, c.podSpecs, exchange.KindPod, id.Kubernetes.Namespace, id.Kubernetes.Pod)
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
		if known, ok, err = c.live.ask(ctx, c.nodes, subject{resource: c.nodes.name, name: name}); err != nil {
			return nil, err
		}
	}
	if !ok {
		return &exchange.Node{Name: name}, nil
	}
	return known.node, nil
}

// namespaceLabels answers from memory only if that has the ServiceAccount, too.
// A token does not name the UID of its namespace: a ServiceAccount that memory
// has not seen may be in a namespace that was deleted and made again since.
func (c *Cluster) namespaceLabels(ctx context.Context, namespace string, accountRemembered bool) (map[string]string, error) {
	if known, ok := c.namespaces.find("", namespace); ok && accountRemembered {
		return known.text, nil
	}
	asked, found, err := c.live.ask(ctx, c.namespaces, subject{resource: c.namespaces.name, name: namespace})
	if err != nil {
		return nil, err
	}
	if !found {
		// The ServiceAccount goes before its namespace does. To say "no labels" now
		// could step over a rule that denies by label.
		return nil, fmt.Errorf("cluster %s: the namespace %s is being deleted", c.name, namespace)
	}
	return asked.text, nil
}

// UID returns the UID of a ServiceAccount by its name, or "" when there is none.
// It is for people who ask about a name; a decision never starts from one.
func (c *Cluster) UID(ctx context.Context, namespace, name string) (string, error) {
	accounts := c.accounts.Load().resource
	asked, _, err := c.live.ask(ctx, accounts, subject{resource: accounts.name, namespace: namespace, name: name})
	return asked.uid, err
}

// Directory is the clusters by name.
type Directory map[string]exchange.Objects

var _ exchange.Objects = Directory(nil)

// Lookup asks the identity's cluster. Of one that is not there, nothing is
// known.
func (d Directory) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	objects, ok := d[id.Cluster]
	if !ok {
		return exchange.Facts{}, nil
	}
	return objects.Lookup(ctx, id, credential)
}
