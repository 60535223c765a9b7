package podevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/refusal"
)

const (
	eventSource = "pullpass"

	// The rate limit for one API server. Events must not delay the requests that responses depend
	// on. The kubelet may send 50 events a second.
	eventQPS     = 5
	eventBurst   = 50
	eventTimeout = 10 * time.Second // of one request

	// Up to 2 MB of events wait for each cluster. When the queue is full, the newest event of the
	// namespace with the most events is dropped. A refused pod asks again, so nothing is lost for
	// good.
	eventQueue = 512
	// correlatedPods are remembered for each cluster, to count repeated events. They take at most
	// 20 MB.
	correlatedPods = 1024

	eventLogInterval = time.Minute // between two lines about the same cluster
)

// Config configures Events.
type Config struct {
	Clusters map[string]*rest.Config // connections by cluster name; events of other clusters are not written
	Logger   *slog.Logger            // nil discards
}

// Events writes refusals as Kubernetes Events on the pods whose tokens were refused. Container
// runtimes show their users only the status. The token of a pull secret names no pod, so its events
// are on the ServiceAccount. Events needs the verbs create and patch on events, in every namespace.
//
// It is safe for concurrent use.
type Events struct {
	clusters map[string]*sender
}

// New does not use the network. It reports all faults at once.
func New(c Config) (*Events, error) {
	logger := cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	p := &Events{clusters: make(map[string]*sender, len(c.Clusters))}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		client, err := newEventClient(c.Clusters[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("kube: events on pods of cluster %s: %w", name, err))
			continue
		}
		p.clusters[name] = &sender{
			client:     client,
			limiter:    flowcontrol.NewTokenBucketRateLimiter(eventQPS, eventBurst),
			correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{LRUCacheSize: correlatedPods}),
			wake:       make(chan struct{}, 1),
			logger:     logger.With("cluster", name),
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

func newEventClient(config *rest.Config) (rest.Interface, error) {
	if config == nil {
		return nil, errors.New("no connection is configured")
	}
	// Without a limit, because the limiter of client-go writes log lines.
	shared, err := clients.New(clients.Config{REST: config, UserAgent: eventSource, QPS: -1})
	if err != nil {
		return nil, err
	}
	return shared.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Event{})
}

// Record implements exchange.Recorder. It never blocks and does not change the
// event.
func (p *Events) Record(e *exchange.Event) {
	to := p.clusters[e.Cluster]
	if to == nil || !concernsPeople(e) {
		return
	}
	involved, ok := involvedObject(e)
	if !ok {
		return
	}
	for i, message := range messages(e) {
		to.enqueue(newPodEvent(e, i, involved, message))
	}
}

// involvedObject returns the object on which people should find the refusal. An unproven identity
// (Event.Claimed) sets neither Pod nor PullSecret: otherwise a forged token could cause events on
// any pod. Objects are named by their UIDs, because names are reused. Events of a deleted object
// would not be visible.
func involvedObject(e *exchange.Event) (corev1.ObjectReference, bool) {
	kind, o := exchange.KindPod, e.Pod
	if e.PullSecret != nil {
		kind, o = exchange.KindServiceAccount, e.ServiceAccount
	}
	if o == nil || o.UID == "" || e.Reason == string((&exchange.GoneError{Kind: kind}).Reason()) {
		return corev1.ObjectReference{}, false
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: string(kind), Namespace: e.Namespace, Name: o.Name, UID: types.UID(o.UID)}, true
}

// concernsPeople reports whether the event is a refusal that was not reported before.
func concernsPeople(e *exchange.Event) bool {
	if e.Retry {
		return false
	}
	if e.Gateway != nil {
		// The insufficient scope was reported when the token was issued.
		return e.Reason != string(refusal.InsufficientScope) && (e.Result == exchange.ResultRefused || e.Gateway.Upstream != "" && e.Result == exchange.ResultUnavailable)
	}
	return e.Result == exchange.ResultRefused || e.Result == exchange.ResultPartial || e.Result == exchange.ResultNone
}

func newPodEvent(e *exchange.Event, i int, involved corev1.ObjectReference, message string) *corev1.Event {
	seen := metav1.NewTime(e.Time)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      util.GenerateEventName(involved.Name, e.Time.UnixNano()+int64(i)),
			Namespace: e.Namespace,
		},
		InvolvedObject:      involved,
		Type:                corev1.EventTypeWarning,
		Reason:              refusal.EventReason,
		Message:             message,
		Source:              corev1.EventSource{Component: eventSource},
		ReportingController: eventSource,
		FirstTimestamp:      seen,
		LastTimestamp:       seen,
		Count:               1,
	}
}

// Run sends events until ctx ends. It then drops the waiting events.
func (p *Events) Run(ctx context.Context) {
	var senders sync.WaitGroup
	for _, to := range p.clusters {
		senders.Go(func() { to.run(ctx) })
	}
	senders.Wait()
}

// Counts are totals since the start.
type Counts struct {
	Sent   uint64 // including updates of an earlier event's count
	Failed uint64 // could not be sent, or were dropped because the queue was full
}

// Counts returns the totals by cluster, for metrics.
func (p *Events) Counts() map[string]Counts {
	counts := make(map[string]Counts, len(p.clusters))
	for name, from := range p.clusters {
		counts[name] = Counts{Sent: from.sent.Load(), Failed: from.failures.Load()}
	}
	return counts
}

// sender sends the events of one cluster one after the other. Namespaces take turns, because few
// events are sent a second. A namespace with many refusals must not delay the events of others.
//
// It uses client-go's correlator without its broadcaster. The broadcaster retries an event for two
// minutes, drops others silently, and cannot be stopped during a request.
type sender struct {
	client     rest.Interface
	limiter    flowcontrol.RateLimiter
	correlator *record.EventCorrelator
	wake       chan struct{} // holds one element when events wait
	sent       atomic.Uint64
	failures   atomic.Uint64
	logger     *slog.Logger
	logged     time.Time // time of the last logged failure

	mu      sync.Mutex
	waiting fair.Queue[*corev1.Event] // by namespace
}

func (s *sender) enqueue(event *corev1.Event) {
	s.mu.Lock()
	s.waiting.Push(event.Namespace, event)
	if s.waiting.Len() > eventQueue {
		s.waiting.Drop()
		s.failures.Add(1)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sender) next() (*corev1.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.Pop()
}

func (s *sender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for event, ok := s.next(); ok; event, ok = s.next() {
			s.send(ctx, event)
		}
	}
}

// send counts repeated refusals in one event, joins many different refusals on one pod, and drops
// events beyond the pod's share. It does not resend an event that failed: the next refusal causes a
// new one.
func (s *sender) send(ctx context.Context, event *corev1.Event) {
	result, err := s.correlator.EventCorrelate(event)
	if err == nil && result.Skip {
		return
	}
	if err == nil {
		if s.limiter.Wait(ctx) != nil {
			return // ctx has ended
		}
		err = s.write(ctx, result.Event, result.Patch)
	}
	switch {
	case err == nil:
		s.sent.Add(1)
		return
	case ctx.Err() != nil:
		return
	}
	failures := s.failures.Add(1)
	if now := time.Now(); now.Sub(s.logged) >= eventLogInterval {
		s.logged = now
		s.logger.Warn("an event on a pod could not be sent; it needs create and patch on events",
			"namespace", event.Namespace, "kind", event.InvolvedObject.Kind, "name", event.InvolvedObject.Name, "failures", failures, "error", err)
	}
}

// write ignores the response: the correlator knows the event's name and count.
func (s *sender) write(ctx context.Context, event *corev1.Event, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if event.Count > 1 {
		err := s.client.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).Body(patch).Do(ctx).Error()
		if !apierrors.IsNotFound(err) {
			return err
		}
		// API servers delete events, after an hour by default.
	}
	return s.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}
