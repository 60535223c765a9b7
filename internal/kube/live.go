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

	"github.com/pullpass/pullpass/internal/lru"
)

const (
	// maxGetTime is how long a live GET may take, with its wait for the rate
	// limit. containerd waits for a token endpoint longer than that.
	maxGetTime = 3 * time.Second
	maxGets    = 256 // at a time
	// goneTime is how long it is remembered that a UID is gone, and goneBytes how
	// much memory that may take. A UID does not come back, but memory is bounded and etcd
	// can be restored.
	goneTime  = 10 * time.Second
	goneBytes = 2 << 20 // for 3,000

	tracerName = "github.com/pullpass/pullpass/internal/kube"
)

// MaxWaiting bounds the Lookups of one Cluster that wait for its API server at a
// time. It has to be well below the number of requests that are worked on at a
// time: API servers that hang, and issuers, must not take all of the proxy's places.
const MaxWaiting = 256

// live asks the API server about single objects. It is safe for concurrent use.
type live struct {
	cluster string
	now     func() time.Time
	gone    *lru.Cache[subject, goneUID]

	mu      sync.Mutex
	flights map[flight]*answer
	waiting int

	found, absent, failed atomic.Uint64
}

// subject is what is asked for: the object of this name if it has this UID.
// Without UID it is whatever object has the name.
type subject struct{ resource, namespace, name, uid string }

// clone returns the same, without what its strings are parts of.
func (s subject) clone() subject {
	return subject{s.resource, strings.Clone(s.namespace), strings.Clone(s.name), strings.Clone(s.uid)}
}

func (s subject) String() string { return s.resource + " " + join(s.namespace, s.name) }

// join returns NAMESPACE/NAME, or the name of what is in no namespace.
func join(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// flight is a GET that several requests wait for. Its key holds the UID,
// because a negative answer counts only for those UIDs that were known to
// somebody before the GET began: an object that was made while it was under way
// is not gone. It holds the resource too, because annotations differ with it.
type flight struct {
	resource *resource
	subject
}

type answer struct {
	done   chan struct{} // closed when the rest is set
	object object
	found  bool // there is such an object; else object.uid is the UID of the name's object, if there is one
	err    error
}

type goneUID struct {
	now   string // UID of the object that has the name now
	until time.Time
}

func newLive(cluster string, now func() time.Time) *live {
	gone := lru.New(goneBytes, func(s subject, g goneUID) int {
		return lru.Bytes(len(s.namespace)) + lru.Bytes(len(s.name)) + lru.Bytes(len(s.uid)) + lru.Bytes(len(g.now))
	})
	return &live{cluster: cluster, now: now, gone: gone, flights: map[flight]*answer{}}
}

// ask returns the object and true, or what has its name now and false. An error
// means that it cannot be known.
func (l *live) ask(ctx context.Context, r *resource, s subject) (object, bool, error) {
	if gone, ok := l.gone.Get(s); ok && l.now().Before(gone.until) {
		return object{uid: gone.now}, false, nil
	}
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, "get "+r.name, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	a, err := l.join(flight{r, s})
	if err != nil {
		return object{}, false, l.wrap(s, err)
	}
	defer l.leave()
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

var errBusy = errors.New("too many requests wait for the API server: see whether it answers in time")

// join finds the flight, or begins it. Unless there is an error, leave must be
// called.
func (l *live) join(f flight) (*answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == MaxWaiting {
		return nil, errBusy
	}
	a, ok := l.flights[f]
	if !ok {
		if len(l.flights) == maxGets {
			return nil, errBusy
		}
		a = &answer{done: make(chan struct{})}
		l.flights[f] = a
		go l.fly(f, a)
	}
	l.waiting++
	return a, nil
}

func (l *live) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
}

// fly has a context of its own: others may wait when the first caller is gone.
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
	l.mu.Unlock()
	close(a.done)
}

func (l *live) get(ctx context.Context, f flight) (object, bool, error) {
	// They become parts of a path.
	for _, part := range []string{f.namespace, f.name} {
		if faults := content.IsPathSegmentName(part); len(faults) > 0 {
			return object{}, false, fmt.Errorf("%.100q is no name: it %s", part, faults[0])
		}
	}
	found, err := f.resource.get(ctx, f.namespace, f.name)
	switch {
	case isAbsent(err, f.subject):
		return object{}, false, nil
	case err != nil:
		return object{}, false, explain(err, "get", f.resource.name)
	}
	return found, f.uid == "" || f.uid == found.uid, nil
}

// isAbsent tells "there is no such object" from any other 404: a load balancer
// or a wrong path in the server's URL says that too, and client-go takes it for
// the same (apierrors.IsNotFound).
func isAbsent(err error, s subject) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == s.resource && details.Name == s.name &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// explain adds what to do, where that is known. It leaves out the URL, which
// differs from try to try.
func explain(err error, verb, resource string) error {
	var request *url.Error
	if errors.As(err, &request) {
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
