package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// pageSize is how many objects one answer of a list has. Full objects are in
	// memory a page at a time: see resource.
	pageSize = 500
	// maxPageTime is how long one page may take, and maxOpenTime how long a watch
	// may take to begin: a proxy may hold its head back until the first event, and
	// API servers send a bookmark every minute.
	maxPageTime = time.Minute
	maxOpenTime = 2 * time.Minute
	// maxWatchOverrun is how long after the end that was agreed on a watch may
	// last. A middlebox that swallows everything must not keep what was deleted
	// alive.
	maxWatchOverrun = 30 * time.Second
)

// resource holds what is wanted of all objects of a resource, as a reflector
// keeps it up to date. It is safe for concurrent use.
//
// There is no informer between the reflector and the store: it would keep each
// object as the API server sends it, or at least as a pointer to something of
// that size. What is kept is a fraction of it.
//
// While everything is listed, memory holds the old objects and the new, both as
// they are kept. As the API server sends them there is one at a time where it
// streams lists (KEP-3157), and a page elsewhere.
type resource struct {
	name   string        // in URLs and ClusterRoles
	sample metav1.Object // of the type that a list or watch yields
	source cache.ListerWatcherWithContext
	fetch  func(ctx context.Context, namespace, name string) (metav1.Object, error)
	keep   func(metav1.Object) object
	log    *slog.Logger
	now    func() time.Time
	// changed is told of a change of one object, or with nil of all, while the objects
	// are locked; nil: nobody is told.
	changed func(objects map[objectKey]object, key *objectKey)
	// optional is what a cluster may lack: without it, others serve.
	optional bool

	synced chan struct{} // closed when everything was listed once

	mu        sync.RWMutex
	objects   map[objectKey]object // nil until synced
	streaming bool                 // the current list is a stream
	failure   string               // of the latest list or watch; empty: none
	heard     time.Time            // when the API server last said anything about it
}

// objectKey names an object. The name of a namespace is in memory once, however
// many objects are in it.
type objectKey struct {
	namespace unique.Handle[string]
	name      string
}

// find returns an object as it was last seen.
func (r *resource) find(namespace, name string) (object, bool) {
	key := objectKey{unique.Make(namespace), name}
	r.mu.RLock()
	defer r.mu.RUnlock()
	found, ok := r.objects[key]
	return found, ok
}

// get asks the API server. Without a resourceVersion it reads from a quorum of
// etcd, so what it does not find is not there.
func (r *resource) get(ctx context.Context, namespace, name string) (object, error) {
	found, err := r.fetch(ctx, namespace, name)
	if err != nil {
		return object{}, err
	}
	i, err := r.convert(found)
	if err != nil {
		return object{}, err
	}
	if asked := (objectKey{unique.Make(namespace), name}); i.key != asked {
		return object{}, fmt.Errorf("the API server sent %s when asked for %s", join(found.GetNamespace(), found.GetName()), join(namespace, name))
	}
	return i.object, nil
}

// reflect keeps the objects up to date until ctx ends.
func (r *resource) reflect(ctx context.Context) {
	// Lists and watches report their own failures, so what client-go says of
	// them is dropped.
	silent := klog.Logger{}
	reflector := cache.NewReflectorWithOptions((*lister)(r), r.sample, (*store)(r), cache.ReflectorOptions{
		Name:   r.name,
		Logger: &silent,
		// As client-go's own, but for the cap of 30 seconds: until the watch is
		// back, nobody notices what is deleted.
		Backoff: &wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second},
	})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(klog.NewContext(ctx, silent))
}

// failed notes that a list or watch failed. That ctx ended is no fault, and that
// history did is none: a resourceVersion was compacted, and a new list follows.
func (r *resource) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	message := explain(err, verb, r.name).Error()
	r.mu.Lock()
	changed := r.failure != message
	r.failure = message
	r.mu.Unlock()
	if changed {
		r.log.Warn("cannot "+verb+" objects; what was known last is used, and the rest is asked for one by one", "resource", r.name, "error", message)
	}
}

func (r *resource) recovered() {
	r.mu.Lock()
	changed := r.failure != ""
	r.failure = ""
	r.mu.Unlock()
	if changed {
		r.log.Info("objects are watched again", "resource", r.name)
	}
}

func (r *resource) status() ResourceStatus {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return ResourceStatus{Resource: r.name, Optional: r.optional, Synced: r.objects != nil, Objects: len(r.objects), HeardAt: r.heard, LastFailure: r.failure}
}

// cause says why ctx ended before the objects were there.
func (r *resource) cause(ctx context.Context) error {
	if failure := r.status().LastFailure; failure != "" {
		return fmt.Errorf("%w: %s", context.Cause(ctx), failure)
	}
	return context.Cause(ctx)
}

// item is an object on its way into the store. It is immutable.
type item struct {
	key    objectKey
	object object
}

func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

func (i *item) DeepCopyObject() runtime.Object { return i }

// convert drops all that is not wanted.
func (r *resource) convert(value any) (*item, error) {
	from, ok := value.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T for %s", value, r.name)
	}
	key, err := keyOf(from)
	if err != nil {
		return nil, fmt.Errorf("the API server sent one of %s %w", r.name, err)
	}
	kept := r.keep(from)
	kept.uid = string(from.GetUID())
	return &item{key, kept}, nil
}

// keyOf refuses what has no identity: no object of an API server is like that,
// but an answer of something else could be.
func keyOf(from metav1.Object) (objectKey, error) {
	if from.GetName() == "" || from.GetUID() == "" {
		return objectKey{}, fmt.Errorf("without name or UID")
	}
	return objectKey{unique.Make(from.GetNamespace()), from.GetName()}, nil
}

// lister is what the reflector asks for a resource.
type lister resource

var _ cache.ListerWatcherWithContext = (*lister)(nil)

// ListWithContext returns a page. The items are converted here, because the
// reflector gathers those of all pages.
func (l *lister) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	r := (*resource)(l)
	r.mu.Lock()
	r.streaming = false
	r.mu.Unlock()
	// The reflector asks for 0, which is whatever the API server has in its cache.
	// That may be older than what was known before a restart, so that the deleted
	// live again, and it comes in one piece. This is the latest, in pages.
	options.ResourceVersion = ""
	page, err := r.page(ctx, options)
	if err != nil {
		r.failed(ctx, "list", err)
		return nil, err
	}
	return page, nil
}

// listOnce reads all objects, as reflect does at first.
func (r *resource) listOnce(ctx context.Context) error {
	var items []any
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := r.page(ctx, options)
		if err != nil {
			r.failed(ctx, "list", err)
			return explain(err, "list", r.name)
		}
		for _, i := range list.Items {
			items = append(items, i)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return (*store)(r).Replace(items, "")
		}
	}
}

func (r *resource) page(ctx context.Context, options metav1.ListOptions) (*internalversion.List, error) {
	ctx, cancel := context.WithTimeout(ctx, maxPageTime)
	defer cancel()
	page, err := r.source.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	from, err := meta.ListAccessor(page)
	if err != nil {
		return nil, err
	}
	converted := &internalversion.List{}
	converted.ResourceVersion = from.GetResourceVersion()
	converted.Continue = from.GetContinue()
	err = meta.EachListItem(page, func(value runtime.Object) error {
		i, err := r.convert(value)
		if err != nil {
			return err
		}
		converted.Items = append(converted.Items, i)
		return nil
	})
	return converted, err
}

func (l *lister) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	r := (*resource)(l)
	streaming := options.SendInitialEvents != nil
	r.mu.Lock()
	r.streaming = streaming
	r.mu.Unlock()
	watched, err := r.watch(ctx, options)
	if err != nil {
		// A stream that fails is no fault yet: the reflector lists next, as it must
		// where lists cannot be streamed. It does not after these two.
		if !streaming || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
			r.failed(ctx, "watch", err)
		}
		return nil, err
	}
	if !streaming { // else store.Replace
		r.recovered()
	}
	return watched, nil
}

func (r *resource) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*options.TimeoutSeconds)*time.Second+maxWatchOverrun)
	opens := time.AfterFunc(maxOpenTime, cancel)
	watched, err := r.source.WatchWithContext(ctx, options)
	if !opens.Stop() {
		if err == nil {
			watched.Stop()
		}
		err = errSlow
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{watched, cancel}, nil
}

// List is not called: there is ListWithContext.
func (l *lister) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch is not called: there is WatchWithContext.
func (l *lister) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// stream is a watch with a time limit.
type stream struct {
	watch.Interface
	cancel context.CancelFunc
}

func (s *stream) Stop() {
	s.Interface.Stop()
	s.cancel()
}

// store is what the reflector fills for a resource.
type store resource

var (
	_ cache.TransformingStore      = (*store)(nil)
	_ cache.ReflectorBookmarkStore = (*store)(nil)
)

// Transformer converts what a stream brings before the rest of it is there.
func (s *store) Transformer() cache.TransformFunc {
	return func(value any) (any, error) { return (*resource)(s).convert(value) }
}

func (s *store) Add(value any) error {
	i, err := (*resource)(s).convert(value)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next, isSame := i.object.withSpecOf(s.objects[i.key])
	s.objects[i.key] = next
	s.heard = s.now()
	if !isSame {
		(*resource)(s).tell(&i.key)
	}
	return nil
}

func (s *store) Update(value any) error { return s.Add(value) }

func (s *store) Delete(value any) error {
	from, ok := value.(metav1.Object)
	if !ok {
		return fmt.Errorf("the API server sent a %T for %s", value, s.name)
	}
	key, err := keyOf(from)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
	s.heard = s.now()
	(*resource)(s).tell(&key)
	return nil
}

// tell is called with mu.
func (r *resource) tell(key *objectKey) {
	if r.changed != nil {
		r.changed(r.objects, key)
	}
}

// Bookmark is told that nothing has changed: API servers say so about once a
// minute. It tells a quiet resource from a watch that hangs.
func (s *store) Bookmark(string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = s.now()
	return nil
}

// Replace takes all objects of a list, which are converted already.
func (s *store) Replace(values []any, _ string) error {
	objects := make(map[objectKey]object, len(values))
	for _, value := range values {
		i, ok := value.(*item)
		if !ok {
			return fmt.Errorf("a %T is among %s", value, s.name)
		}
		objects[i.key] = i.object
	}
	s.mu.Lock()
	first := s.objects == nil
	s.objects = objects
	s.heard = s.now()
	(*resource)(s).tell(nil)
	streaming := s.streaming
	s.mu.Unlock()
	if first {
		close(s.synced)
	}
	if streaming { // the same stream goes on as a watch
		(*resource)(s).recovered()
	}
	return nil
}

// Resync has nothing to do: nobody is told of changes.
func (s *store) Resync() error { return nil }
