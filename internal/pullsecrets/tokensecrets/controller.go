package tokensecrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/controller"
)

const (
	// 5,000 ServiceAccounts cause 2.4 renewals a second, of three requests each, and 8 probes. If
	// all of them opt in at once, people should not wait long. API servers protect themselves (API
	// Priority and Fairness).
	requestsPerSecond = 200
	requestBurst      = 400
	workers           = 16
	syncTimeout       = 30 * time.Second
	prepareInterval   = 5 * time.Second

	leaseName = "pullpass-pull-secrets"
)

// Config configures a Controller. Every field but the last two is required.
type Config struct {
	REST           *rest.Config
	Audience       string   // of the tokens: clusters[].pullSecrets.audience of the proxy
	Registries     []string // hosts of the Secrets, as in the names of images
	LeaseNamespace string   // namespace of the Lease for leader election, and of the memory
	Identity       string   // of this replica; unique, such as its pod's name
	Logger         *slog.Logger
	Now            func() time.Time
}

// Controller maintains the Secrets of one cluster while it leads.
type Controller struct {
	secrets secrets
	keys    *keyWatch
	memory  *memory
	lease   controller.Leader
	events  record.EventRecorder // set while it leads
	log     *slog.Logger
	now     func() time.Time
	counts  counts
	leads   atomic.Bool

	accounts, namespaces cache.SharedIndexInformer
	queue                workqueue.TypedRateLimitingInterface[string]
	shares               *shares

	mu    sync.Mutex
	known map[string]state // by NAMESPACE/NAME
}

// New does not use the network.
func New(c Config) (*Controller, error) {
	s, err := newSettings(c.Audience, c.Registries)
	if err != nil {
		return nil, err
	}
	if c.REST == nil || c.LeaseNamespace == "" || c.Identity == "" {
		return nil, errors.New("a connection, the namespace of the Lease and an identity are required")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	shared, err := clients.New(clients.Config{REST: c.REST, UserAgent: manager, QPS: requestsPerSecond, Burst: requestBurst})
	if err != nil {
		return nil, err
	}
	core, coreErr := newCoreClient(shared)
	metadataClient, metadataErr := shared.Metadata()
	leases, leaseErr := controller.NewLeaseClient(shared) // with its own limiter, so that a rollout does not cost the lead
	if err := errors.Join(coreErr, metadataErr, leaseErr); err != nil {
		return nil, err
	}
	ctl := &Controller{log: c.Logger, now: c.Now, known: map[string]state{}}
	ctl.keys = &keyWatch{now: c.Now, fetch: func(ctx context.Context) ([]byte, error) {
		// An API server sends the key set only to a client that accepts its own type (RFC 7517,
		// section 8.5).
		return core.Get().AbsPath("/openid/v1/jwks").SetHeader("Accept", "application/jwk-set+json").DoRaw(ctx)
	}}
	ctl.memory = &memory{client: core, namespace: c.LeaseNamespace, now: c.Now, tokens: map[types.UID]noted{}}
	ctl.secrets = secrets{settings: s, core: core, metadata: metadataClient, now: c.Now, gone: ctl.keys.gone, memory: ctl.memory, counts: &ctl.counts}
	ctl.lease = controller.Leader{Log: c.Logger, Lease: controller.Lease{
		Client: leases, Namespace: c.LeaseNamespace, Name: leaseName, Identity: c.Identity, Duration: controller.LeadDuration, Now: c.Now,
	}}
	var accountsErr, namespacesErr error
	ctl.accounts, accountsErr = newInformer(metadataClient, serviceAccounts)
	ctl.namespaces, namespacesErr = newInformer(metadataClient, namespaces)
	return ctl, errors.Join(accountsErr, namespacesErr)
}

// Run works when no other replica leads, until ctx ends. It returns an error if it loses the lead,
// and the caller must start it again. Two leaders for a moment do no harm, because every change
// names the UID of its object.
func (c *Controller) Run(ctx context.Context) error { return c.lease.Run(ctx, c.lead) }

// lead works until ctx ends.
func (c *Controller) lead(ctx context.Context) {
	c.leads.Store(true)
	defer c.leads.Store(false)
	if !c.prepare(ctx) {
		return
	}
	c.queue = newQueue()
	defer c.queue.ShutDown()
	c.shares = newShares(c.queue.Add)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(controller.EventSink{Client: c.secrets.core})
	c.events = broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: manager})
	_, accountsErr := c.accounts.AddEventHandler(handler(func(o metav1.Object) { c.queue.Add(o.GetNamespace() + "/" + o.GetName()) }))
	_, namespacesErr := c.namespaces.AddEventHandler(handler(func(o metav1.Object) { c.addNamespace(o.GetName()) }))
	if err := errors.Join(accountsErr, namespacesErr); err != nil {
		c.log.Error("nothing is watched", "error", err)
		return
	}
	var working sync.WaitGroup
	working.Go(func() { c.accounts.RunWithContext(ctx) })
	working.Go(func() { c.namespaces.RunWithContext(ctx) })
	working.Go(func() { c.watchKeys(ctx) })
	working.Go(func() { c.memory.keep(ctx, c.secrets.content(), c.log) })
	if cache.WaitForCacheSync(ctx.Done(), c.accounts.HasSynced, c.namespaces.HasSynced) {
		for range workers {
			working.Go(func() {
				for c.work(ctx) {
				}
			})
		}
	}
	<-ctx.Done()
	c.queue.ShutDown()
	working.Wait()
}

// prepare waits until the policy limits this controller, and loads the memory of the previous
// leader. It returns false when ctx has ended.
func (c *Controller) prepare(ctx context.Context) bool {
	for {
		asking, cancel := context.WithTimeout(ctx, syncTimeout)
		err := c.secrets.isBounded(asking, c.memory.namespace)
		if err == nil {
			err = c.memory.load(asking, c.secrets.content())
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || errors.Is(err, errDamaged) {
				c.log.Warn("all tokens are renewed now", "error", err)
				err = nil
			}
		}
		cancel()
		if err == nil {
			return true
		}
		c.log.Error("nothing is done yet", "error", err)
		select {
		case <-time.After(prepareInterval):
		case <-ctx.Done():
			return false
		}
	}
}

func handler(do func(metav1.Object)) cache.ResourceEventHandler {
	each := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if m, err := meta.Accessor(o); err == nil {
			do(m)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: each, UpdateFunc: func(_, o any) { each(o) }, DeleteFunc: each}
}

func (c *Controller) addNamespace(name string) {
	keys, err := c.accounts.GetIndexer().IndexKeys(cache.NamespaceIndex, name)
	if err != nil {
		c.log.Error("the ServiceAccounts of a namespace", "namespace", name, "error", err)
	}
	for _, key := range keys {
		c.queue.Add(key)
	}
}

// watchKeys queues the tokens whose signing key the cluster does not publish any more.
func (c *Controller) watchKeys(ctx context.Context) {
	ticker := time.NewTicker(keyInterval)
	defer ticker.Stop()
	for {
		reading, cancel := context.WithTimeout(ctx, syncTimeout)
		if err := c.keys.read(reading); err != nil && ctx.Err() == nil {
			c.counts.failed.Add(1)
			c.log.Warn("tokens are renewed in time all the same", "error", err)
		}
		cancel()
		c.mu.Lock()
		for key, h := range c.known {
			if h.keyID != "" && c.keys.gone(h.keyID, h.issued) {
				c.queue.Add(key)
			}
		}
		c.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Controller) work(ctx context.Context) bool {
	key, ended := c.queue.Get()
	if ended {
		return false
	}
	defer c.queue.Done(key)
	namespace, _, _ := strings.Cut(key, "/")
	if !c.shares.begin(namespace, key) {
		return true
	}
	began := time.Now()
	defer func() {
		if rest := c.shares.end(namespace, time.Since(began)); rest > 0 {
			c.log.Warn("a namespace rests, because the API server is slow for it: fewer ServiceAccounts there would help", "namespace", namespace, "rest", rest)
		}
	}()
	a, ok := c.opted(key)
	if !ok {
		c.mu.Lock()
		delete(c.known, key)
		c.mu.Unlock()
		c.queue.Forget(key)
		return true
	}
	syncing, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	c.mu.Lock()
	before := c.known[key]
	c.mu.Unlock()
	if before.of != a.uid { // a recreated ServiceAccount does not inherit the delay of the deleted one
		c.queue.Forget(key)
		before = state{of: a.uid}
	}
	now, err := c.secrets.sync(syncing, a, before.held)
	if err != nil && ctx.Err() != nil {
		return true // it was interrupted, which is not a failure that people must know
	}
	c.mu.Lock()
	c.known[key] = before.after(now, err, c.now())
	c.mu.Unlock()
	switch {
	case errors.Is(err, errForeign):
		c.counts.foreign.Add(1)
		c.report(a, err)
		c.queue.Forget(key)
		c.queue.AddAfter(key, probeInterval)
	case err != nil:
		c.counts.failed.Add(1)
		c.report(a, err)
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
		if now.uid != "" {
			c.queue.AddAfter(key, c.secrets.next(now))
		}
	}
	return true
}

// opted returns the ServiceAccount if both it and its namespace have opted in. Only such objects
// are watched.
func (c *Controller) opted(key string) (account, bool) {
	o, ok, err := c.accounts.GetIndexer().GetByKey(key)
	if !ok || err != nil {
		return account{}, false
	}
	m, err := meta.Accessor(o)
	if err != nil || m.GetDeletionTimestamp() != nil {
		return account{}, false
	}
	if _, ok, err := c.namespaces.GetIndexer().GetByKey(m.GetNamespace()); !ok || err != nil {
		return account{}, false
	}
	return account{namespace: m.GetNamespace(), name: m.GetName(), uid: m.GetUID()}, true
}

// report reports why there is no Secret, in the log and as an event on the ServiceAccount.
func (c *Controller) report(a account, err error) {
	name := reason(err)
	if name == "" {
		c.log.Info("a pull secret waits", "namespace", a.namespace, "serviceAccount", a.name, "error", err)
		return
	}
	c.log.Warn("a pull secret cannot be kept", "namespace", a.namespace, "serviceAccount", a.name, "error", err)
	c.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "ServiceAccount", Namespace: a.namespace, Name: a.name, UID: a.uid},
		corev1.EventTypeWarning, name, fmt.Sprintf("Secret %s: %v", a.secretName(), err))
}
