package objectstatus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

const (
	// LeaseName is that of the Lease which elects the writer of the status.
	LeaseName = "pullpass-policy-status"

	// 10,000 writes take 17 minutes. An API server does not notice this load.
	writesPerSecond = 10
	writeTimeout    = 10 * time.Second

	// passInterval is the interval between looks at all objects. It finds changes without a
	// notification, such as a new ServiceAccount.
	passInterval = time.Minute
	// passDelay collects changes that arrive together.
	passDelay = time.Second
	// restShare is how many times longer the leader rests than it works. Its processors are shared
	// with programs that answer waiting nodes.
	restShare = 19
	restAfter = 2 * time.Millisecond

	// A written status is seen within this time, or written again.
	maxUnseen = 30 * time.Second

	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute
)

// Config configures a Controller. Every field but the last two is required.
type Config struct {
	Cluster        string // name of the cluster in policies
	Issuer         string // of the cluster's tokens
	Objects        *kube.Cluster
	Within         []pattern.Pattern // limit for grants by objects, as in Objects
	REST           *rest.Config
	LeaseNamespace string // namespace of the Lease for leader election
	Identity       string // of this replica, unique
	Logger         *slog.Logger
	Now            func() time.Time
}

// Controller writes the status of the objects of one cluster while it leads. It is safe for
// concurrent use.
type Controller struct {
	cluster, issuer string
	objects         *kube.Cluster
	within          []pattern.Pattern
	metadata        metadata.Interface
	leader          controller.Leader
	log             *slog.Logger
	now             func() time.Time
	uses            *uses
	serving         atomic.Pointer[Serving]
	counts          counts

	wake chan struct{} // holds one element after a change

	mu      sync.Mutex
	changed map[kube.ObjectRef]bool
	all     bool // every status may have to be written
}

// Serving is the configuration that decides now. It must not be changed.
type Serving struct {
	Policy   *policy.Policy
	Services []string // the registries
	Shared   Shared   // nil: there is one replica
}

// New does not use the network.
func New(c Config) (*Controller, error) {
	if c.Objects == nil || c.REST == nil || c.LeaseNamespace == "" || c.Identity == "" {
		return nil, errors.New("objects, a connection, the namespace of the Lease and an identity are required")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	shared, err := clients.New(clients.Config{REST: c.REST, UserAgent: manager, QPS: writesPerSecond, Burst: writesPerSecond})
	if err != nil {
		return nil, err
	}
	writes, err := shared.Metadata()
	leases, leaseErr := controller.NewLeaseClient(shared)
	if err := errors.Join(err, leaseErr); err != nil {
		return nil, err
	}
	log := c.Logger.With("cluster", c.Cluster)
	return &Controller{
		cluster: c.Cluster, issuer: c.Issuer, objects: c.Objects, within: c.Within, metadata: writes, log: log, now: c.Now,
		leader: controller.Leader{Log: log, Lease: controller.Lease{
			Client: leases, Namespace: c.LeaseNamespace, Name: LeaseName, Identity: c.Identity, Duration: controller.LeadDuration, Now: c.Now,
		}},
		uses: newUses(c), wake: make(chan struct{}, 1), changed: map[kube.ObjectRef]bool{},
	}, nil
}

// Use sets the configuration that decides from now on. Nothing is written before the first call.
func (c *Controller) Use(s Serving) {
	c.serving.Store(&s)
	c.uses.shared.Store(&s.Shared)
	c.note(kube.ObjectRef{})
}

// note records a changed object.
func (c *Controller) note(ref kube.ObjectRef) {
	c.mu.Lock()
	if ref.Namespace == "" { // an AccessPolicy affects many objects
		c.all = true
	}
	if ref != (kube.ObjectRef{}) {
		c.changed[ref] = true
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the changes since the last call.
func (c *Controller) take() (changed map[kube.ObjectRef]bool, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, all = c.changed, c.all
	c.changed, c.all = map[kube.ObjectRef]bool{}, false
	return changed, all
}

// Run reports uses to the other replicas, and writes status when this replica leads, until ctx
// ends.
func (c *Controller) Run(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { c.uses.run(ctx, c.objects.RequestsIn) })
	for ctx.Err() == nil {
		if err := c.leader.Run(ctx, c.lead); err != nil {
			c.log.Warn("another replica may write the status of policy objects", "error", err)
		}
	}
}

// lead works until ctx ends.
func (c *Controller) lead(ctx context.Context) {
	c.counts.leads.Store(true)
	defer c.counts.leads.Store(false)
	c.objects.OnPolicyChange(c.note)
	defer c.objects.OnPolicyChange(nil)
	if c.objects.Synced(ctx) != nil {
		return
	}
	l := &leading{Controller: c, sent: map[kube.ObjectRef]sent{}, failing: map[string]*failing{}}
	var backoff time.Duration
	for ctx.Err() == nil {
		writes := c.counts.writes.Load()
		if err := l.pass(ctx); err != nil && ctx.Err() == nil {
			c.counts.failures.Add(1)
			if c.counts.writes.Load() > writes {
				backoff = 0
			}
			backoff = longer(backoff)
			if errors.Is(err, errNamespaces) { // it may be the objects, which wait longer
				backoff = min(backoff, passInterval)
			}
			c.log.Warn("the status of policy objects waits; their grants do not change by that", "error", err, "again", backoff.String())
			l.next = time.Time{}
			idle(ctx, backoff)
			continue
		}
		backoff = 0
		select {
		case <-ctx.Done():
		case <-time.After(l.due().Sub(c.now())):
		case <-c.wake:
			idle(ctx, passDelay)
		}
	}
}

// leading is the state of a leader. It is for one goroutine.
type leading struct {
	*Controller
	sent map[kube.ObjectRef]sent
	busy time.Duration // since the last rest
	next time.Time     // of the next look at all objects

	changed, all, again turns // objects to look at; again: after a failure in their namespace

	failing  map[string]*failing // by namespace
	failedIn *string             // namespace of the pass's last write if that failed
}

// failing is a namespace after a failed write. The cause may be the object itself, so that other
// namespaces must not wait.
type failing struct {
	backoff time.Duration
	until   time.Time
	waiting map[kube.ObjectRef]bool // true: its write failed
}

var errNamespaces = errors.New("writes fail in more than one namespace")

func longer(backoff time.Duration) time.Duration {
	return min(max(2*backoff, firstBackoff), maxBackoff)
}

// fail lets the object's namespace wait. An error concerns more than this namespace.
func (l *leading) fail(ref kube.ObjectRef, err error) error {
	if concernsServer(err) {
		return err
	}
	f := l.failing[ref.Namespace]
	if f == nil {
		f = &failing{waiting: map[kube.ObjectRef]bool{}}
		l.failing[ref.Namespace] = f
	}
	f.backoff = longer(f.backoff)
	f.until = l.now().Add(f.backoff)
	f.waiting[ref] = true
	before := l.failedIn
	l.failedIn = &ref.Namespace
	if before != nil && *before != ref.Namespace {
		return fmt.Errorf("%w: %w", errNamespaces, err)
	}
	l.counts.failures.Add(1)
	l.log.Warn("the status of an object waits; what the object grants does not change by that",
		"resource", ref.Resource, "namespace", ref.Namespace, "name", ref.Name, "error", err, "again", f.backoff.String())
	return nil
}

// due returns the time of the next pass.
func (l *leading) due() time.Time {
	next := l.next
	for _, f := range l.failing {
		if f.until.Before(next) {
			next = f.until
		}
	}
	return next
}

// retry adds the objects of namespaces that have waited long enough. Objects whose write failed come
// last, because it may fail again.
func (l *leading) retry() {
	for namespace, f := range l.failing {
		switch {
		case l.now().Before(f.until):
			continue
		case len(f.waiting) == 0:
			delete(l.failing, namespace)
		}
		for _, failed := range []bool{false, true} {
			for ref, hasFailed := range f.waiting {
				if hasFailed == failed {
					l.again.add(ref)
				}
			}
		}
	}
}

// turns holds objects in the order of their namespaces' turns. The zero turns is empty.
type turns struct {
	queue fair.Queue[kube.ObjectRef]
	has   map[kube.ObjectRef]bool
}

func (t *turns) add(ref kube.ObjectRef) {
	if t.has == nil {
		t.has = map[kube.ObjectRef]bool{}
	}
	if !t.has[ref] {
		t.has[ref] = true
		t.queue.Push(ref.Namespace, ref)
	}
}

func (t *turns) next() (kube.ObjectRef, bool) {
	ref, ok := t.queue.Pop()
	delete(t.has, ref)
	return ref, ok
}

// sent is a written status that the watch has not confirmed yet.
type sent struct {
	uid  string
	said policyobjects.Digest
	at   time.Time
}

// pass looks at the changed objects, and at all objects when that is due. The namespaces take
// turns. So a namespace with many objects or frequent changes delays the others by one object only.
// Objects that change during the pass come first, because their authors wait for them. They take
// half of the turns.
func (l *leading) pass(ctx context.Context) error {
	serving := l.serving.Load()
	if serving == nil {
		l.next = l.now().Add(passInterval)
		return nil
	}
	j, err := l.newJudge(serving)
	if err != nil {
		return err
	}
	l.failedIn = nil
	l.retry()
	if l.gather() || !l.now().Before(l.next) {
		l.uses.collect(ctx)
		refs, err := l.objects.PolicyObjects()
		if err != nil {
			return err
		}
		for _, ref := range refs { // after those left from the last time
			if f := l.failing[ref.Namespace]; f == nil || !f.waiting[ref] {
				l.all.add(ref)
			}
		}
		l.next = l.now().Add(passInterval)
	}
	for {
		isDone := true
		for _, t := range [...]*turns{&l.changed, &l.all, &l.again} {
			ref, ok := t.next()
			if !ok {
				continue
			}
			isDone = false
			if err := l.look(ctx, j, ref); err != nil {
				return err
			}
		}
		if l.gather() { // the change may lead to a different status
			l.next = time.Time{}
		}
		if isDone && l.changed.queue.Len() == 0 || !l.now().Before(l.next) {
			return nil
		}
	}
}

// gather takes the changes since the last call, and reports whether every status may have to be
// written.
func (l *leading) gather() (all bool) {
	changed, all := l.take()
	for ref := range changed {
		l.changed.add(ref)
	}
	return all
}

// look updates the status of an object unless its namespace waits. An error concerns more than this
// namespace.
func (l *leading) look(ctx context.Context, j *judge, ref kube.ObjectRef) error {
	f := l.failing[ref.Namespace]
	if f != nil && l.now().Before(f.until) {
		if !f.waiting[ref] {
			f.waiting[ref] = false
		}
		return nil
	}
	if err := l.update(ctx, j, ref); err != nil {
		return l.fail(ref, err)
	}
	if f != nil {
		delete(f.waiting, ref)
	}
	return nil
}

// update writes the status of an object if it differs from what it should be.
func (l *leading) update(ctx context.Context, j *judge, ref kube.ObjectRef) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	o, ok := l.objects.PolicyObject(ref)
	if !ok || o.Remembered == nil {
		delete(l.sent, ref)
		return nil
	}
	began := time.Now()
	next, err := j.status(ctx, &o)
	if err != nil {
		return err
	}
	if l.busy += time.Since(began); l.busy > restAfter {
		idle(ctx, min(restShare*l.busy, passInterval))
		l.busy = 0
	}
	l.uses.fill(o.UID, next.Repositories)
	says, differs := o.Complete(next, l.now())
	if !differs {
		delete(l.sent, ref)
		return nil
	}
	if s := l.sent[ref]; s.uid == o.UID && s.said == says && l.now().Sub(s.at) < maxUnseen {
		return nil
	}
	if err := l.write(ctx, &o, next); err != nil {
		return err
	}
	l.failedIn = nil
	if f := l.failing[ref.Namespace]; f != nil {
		f.backoff = 0
	}
	l.sent[ref] = sent{o.UID, says, l.now()}
	return nil
}

// idle waits for d, or until ctx ends.
func idle(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
