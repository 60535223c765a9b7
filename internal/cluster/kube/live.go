package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/base/lru"
)

const (
	// maxGetTime limits a live GET, including its wait for the rate limit. containerd waits longer
	// for a token endpoint.
	maxGetTime = 3 * time.Second
	// maxGets is the number of concurrent GETs. maxActiveGets of them do not wait for the turn of
	// their namespace. A response has at most maxGetBytes: API servers store objects of up to 1.5
	// MiB (etcd's max-request-bytes).
	maxGets       = 256
	maxActiveGets = 16
	maxGetBytes   = 2 << 20
	// goneTime is how long a deleted UID is remembered, and goneBytes is the memory limit for them.
	// A UID is not reused, but memory is bounded and etcd can be restored.
	goneTime  = 10 * time.Second
	goneBytes = 2 << 20 // for 3,000

	tracerName = "github.com/pullpass/pullpass/internal/cluster/kube"
)

// MaxWaiting limits the concurrent Lookups of one Cluster that wait for its API server. It must be
// well below the number of requests that the proxy handles concurrently. API servers that hang, and
// issuers, must not take all places of the proxy. Each namespace has a share of MaxWaiting.
const MaxWaiting = 256

// live asks the API server about single objects. It is safe for concurrent use.
type live struct {
	cluster string
	now     func() time.Time
	gone    *lru.Cache[subject, goneUID]

	places *fair.Places // of active GETs

	mu      sync.Mutex
	flights map[flight]*answer
	gets    *fair.Share // of maxGets
	waiting *fair.Share // of MaxWaiting

	found, absent, failed atomic.Uint64
}

// subject is the requested object: the name, if it has this UID. Without a UID, it is any object of
// the name.
type subject struct {
	resource, namespace, name, uid string
	// isLasting: the object counts for as long as it exists, also while it is being deleted.
	isLasting bool
}

// clone returns a copy that does not share memory with longer strings.
func (s subject) clone() subject {
	return subject{s.resource, strings.Clone(s.namespace), strings.Clone(s.name), strings.Clone(s.uid), s.isLasting}
}

func (s subject) String() string { return s.resource + " " + join(s.namespace, s.name) }

// join returns NAMESPACE/NAME, or only the name of an object without a namespace.
func join(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// flight is a GET that several requests wait for. Its key contains the UID, because a negative
// answer counts only for UIDs that were known before the GET began. An object that was created
// during the GET is not gone.
//
// The key contains the resource, because kept annotations differ with it. It contains the tenant,
// because a GET takes its turn with those of the requesting namespace.
type flight struct {
	resource *resource
	tenant   string
	subject
}

type answer struct {
	done   chan struct{} // closed when the rest is set
	object object
	found  bool // the object exists; else object.uid is the UID of the name's current object, if there is one
	err    error
}

type goneUID struct {
	now   string // UID of the name's current object
	until time.Time
}

func newLive(cluster string, now func() time.Time) *live {
	gone := lru.New(goneBytes, func(s subject, g goneUID) int {
		return lru.Bytes(len(s.namespace)) + lru.Bytes(len(s.name)) + lru.Bytes(len(s.uid)) + lru.Bytes(len(g.now))
	})
	return &live{
		cluster: cluster, now: now, gone: gone, places: fair.NewPlaces(maxActiveGets),
		flights: map[flight]*answer{}, gets: fair.NewShare(maxGets), waiting: fair.NewShare(MaxWaiting),
	}
}

// ask returns the object and true, or the name's current object and false. An error means that the
// answer is not known. The tenant is the namespace of the ServiceAccount that the request is for.
func (l *live) ask(ctx context.Context, r *resource, tenant string, s subject) (object, bool, error) {
	if gone, ok := l.gone.Get(s); ok && l.now().Before(gone.until) {
		return object{uid: gone.now}, false, nil
	}
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, "get "+r.name, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	a, err := l.join(flight{r, tenant, s})
	if err != nil {
		return object{}, false, l.wrap(s, err)
	}
	defer l.leave(tenant)
	select {
	case <-a.done:
	case <-ctx.Done():
		return object{}, false, l.wrap(s, context.Cause(ctx))
	}
	if a.err != nil {
		return object{}, false, l.wrap(s, a.err)
	}
	return a.object, a.found, nil
}

func (l *live) wrap(s subject, err error) error {
	return fmt.Errorf("cluster %s: cannot get %s: %w", l.cluster, s, err)
}

var errSlow = errors.New("the API server did not answer in time")

var errBusy = errors.New("too many requests of this namespace, or of all, wait for the API server: see whether it answers in time, and which tokens are of pods that are gone")

// join finds or begins the flight. Unless it returns an error, the caller must call leave.
func (l *live) join(f flight) (*answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waiting.Enter(f.tenant) {
		return nil, errBusy
	}
	a, ok := l.flights[f]
	if !ok {
		if !l.gets.Enter(f.tenant) {
			l.waiting.Leave(f.tenant)
			return nil, errBusy
		}
		a = &answer{done: make(chan struct{})}
		l.flights[f] = a
		go l.fly(f, a)
	}
	return a, nil
}

func (l *live) leave(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.Leave(tenant)
}

// fly has its own context: other requests may wait when the first caller is gone.
func (l *live) fly(f flight, a *answer) {
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), maxGetTime)
	defer cancel()
	a.object, a.found, a.err = l.get(ctx, f)
	switch {
	case a.err != nil:
		l.failed.Add(1)
	case a.found:
		l.found.Add(1)
	default:
		l.absent.Add(1)
		if f.uid != "" {
			l.gone.Add(f.subject.clone(), goneUID{a.object.uid, l.now().Add(goneTime)})
		}
	}
	l.mu.Lock()
	delete(l.flights, f)
	l.gets.Leave(f.tenant)
	l.mu.Unlock()
	close(a.done)
}

func (l *live) get(ctx context.Context, f flight) (object, bool, error) {
	// They become parts of a path.
	for _, part := range []string{f.namespace, f.name} {
		if faults := content.IsPathSegmentName(part); len(faults) > 0 {
			return object{}, false, fmt.Errorf("%.100q is not a name: it %s", part, faults[0])
		}
	}
	if l.places.Enter(ctx, f.tenant) != nil {
		return object{}, false, errSlow
	}
	defer l.places.Leave()
	found, err := f.resource.get(ctx, f.namespace, f.name)
	switch {
	case isAbsent(err, f.subject):
		return object{}, false, nil
	case err != nil:
		return object{}, false, explain(err, "get", f.resource.name)
	}
	if f.uid == found.object.uid && !f.isLasting && !found.ends.IsZero() && !l.now().Before(found.ends) {
		return object{}, false, nil
	}
	return found.object, f.uid == "" || f.uid == found.object.uid, nil
}

// isAbsent distinguishes "the object does not exist" from any other 404. A load balancer or a wrong
// path in the server's URL also causes a 404, and client-go does not distinguish them
// (apierrors.IsNotFound).
func isAbsent(err error, s subject) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == s.resource && details.Name == s.name &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// explain adds the remedy if it is known. It removes the URL, which differs between attempts.
func explain(err error, verb, resource string) error {
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errSlow
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: give the proxy's ClusterRole the verb %q on %q", err, verb, resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the API server does not know the proxy's credentials: renew them", err)
	}
	return err
}
