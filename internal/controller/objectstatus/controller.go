package objectstatus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/controller"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policyobjects"
)

const (
	leaseName = "pullpass-policy-status"

	// An API server that has 10,000 objects to write is busy for 17 minutes, and does
	// not notice.
	writesPerSecond = 10
	writeTimeout    = 10 * time.Second

	// passInterval is from the end of one look at all objects to the next: what is not
	// told of, such as a ServiceAccount that was made, is seen by then.
	passInterval = time.Minute
	// passDelay lets changes gather that come together.
	passDelay = time.Second
	// restShare of its time the leader rests: whoever it shares its processors with
	// answers nodes that wait.
	restShare = 19
	restAfter = 2 * time.Millisecond

	// A status that was written is seen within this time, or written again.
	maxUnseen = 30 * time.Second

	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute
)

// Config configures a Controller. Every field but the last two is required.
type Config struct {
	Cluster        string // its name in policies
	Issuer         string // of its tokens
	Objects        *kube.Cluster
	Within         []pattern.Pattern // how far objects may go, as Objects has it
	REST           *rest.Config
	LeaseNamespace string // where the Lease is by which one of all replicas leads
	Identity       string // of this replica, unique
	Logger         *slog.Logger
	Now            func() time.Time
}

// Controller writes the status of the objects of one cluster while it leads. It is safe
// for concurrent use.
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

	wake chan struct{} // holds one element when something has changed

	mu      sync.Mutex
	changed map[kube.ObjectRef]bool
	all     bool // any may have to be written
}

// Serving is what decides now. It must not be changed.
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
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	config := rest.CopyConfig(c.REST)
	config.UserAgent, config.QPS, config.Burst = manager, writesPerSecond, writesPerSecond
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.Timeout = 0 // each request has a limit of its own
	writes, err := metadata.NewForConfig(config)
	leases, leaseErr := controller.NewLeaseClient(config) // with a limiter of its own
	if err := errors.Join(err, leaseErr); err != nil {
		return nil, err
	}
	log := c.Logger.With("cluster", c.Cluster)
	return &Controller{
		cluster: c.Cluster, issuer: c.Issuer, objects: c.Objects, within: c.Within, metadata: writes, log: log, now: c.Now,
		leader: controller.Leader{Log: log, Lease: controller.Lease{
			Client: leases, Namespace: c.LeaseNamespace, Name: leaseName, Identity: c.Identity, Duration: controller.LeadDuration, Now: c.Now,
		}},
		uses: newUses(c), wake: make(chan struct{}, 1), changed: map[kube.ObjectRef]bool{},
	}, nil
}

// Use says what decides from now on. Before the first time, nothing is written.
func (c *Controller) Use(s Serving) {
	c.serving.Store(&s)
	c.uses.shared.Store(&s.Shared)
	c.note(kube.ObjectRef{})
}

// note is told of what has changed.
func (c *Controller) note(ref kube.ObjectRef) {
	c.mu.Lock()
	if ref.Namespace == "" { // an AccessPolicy counts for many
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

// take returns what has changed since the last time.
func (c *Controller) take() (changed map[kube.ObjectRef]bool, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, all = c.changed, c.all
	c.changed, c.all = map[kube.ObjectRef]bool{}, false
	return changed, all
}

// Run tells the other replicas what is used here, and writes status when this replica
// leads, until ctx ends.
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
	l := &leading{Controller: c, sent: map[kube.ObjectRef]sent{}}
	var next time.Time // when all are looked at
	var backoff time.Duration
	for ctx.Err() == nil {
		changed, all := c.take()
		all = all || !c.now().Before(next)
		if err := l.pass(ctx, changed, all); err != nil && ctx.Err() == nil {
			c.counts.failures.Add(1)
			backoff = min(max(2*backoff, firstBackoff), maxBackoff)
			c.log.Warn("the status of policy objects waits; what they grant does not change by that", "error", err, "again", backoff.String())
			next = time.Time{}
			idle(ctx, backoff)
			continue
		}
		backoff = 0
		if all {
			next = c.now().Add(passInterval)
		}
		select {
		case <-ctx.Done():
		case <-time.After(next.Sub(c.now())):
		case <-c.wake:
			idle(ctx, passDelay)
		}
	}
}

// leading is what is remembered while this replica leads. It is for one goroutine.
type leading struct {
	*Controller
	sent map[kube.ObjectRef]sent
	busy time.Duration // since the last rest
}

// sent is a status that was written and not seen yet.
type sent struct {
	uid  string
	said policyobjects.Digest
	at   time.Time
}

// pass looks at the objects that have changed, or at all. Those that change meanwhile
// come first: somebody waits for them.
func (l *leading) pass(ctx context.Context, changed map[kube.ObjectRef]bool, all bool) error {
	serving := l.serving.Load()
	if serving == nil {
		return nil
	}
	j, err := l.newJudge(serving)
	if err != nil {
		return err
	}
	if err := l.lookAt(ctx, j, changed); err != nil || !all {
		return err
	}
	l.uses.collect(ctx)
	refs, err := l.objects.PolicyObjects()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		changed, again := l.take()
		if err := l.lookAt(ctx, j, changed); err != nil {
			return err
		}
		if again { // by what has changed it may be another status
			l.note(kube.ObjectRef{})
			if l.serving.Load() != serving {
				return nil
			}
		}
		if err := l.look(ctx, j, ref); err != nil {
			return err
		}
	}
	return nil
}

func (l *leading) lookAt(ctx context.Context, j *judge, changed map[kube.ObjectRef]bool) error {
	for ref := range changed {
		if err := l.look(ctx, j, ref); err != nil {
			return err
		}
	}
	return nil
}

// look writes the status of an object if it should be another. An error is about more than
// this object.
func (l *leading) look(ctx context.Context, j *judge, ref kube.ObjectRef) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	o, ok := l.objects.PolicyObject(ref)
	if !ok || o.Remembered == nil {
		delete(l.sent, ref)
		return nil
	}
	began := time.Now()
	next, err := j.status(&o)
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
	l.sent[ref] = sent{o.UID, says, l.now()}
	return nil
}

// idle waits, or until ctx ends.
func idle(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
