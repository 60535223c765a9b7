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

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/cluster/pages"
)

const (
	// maxPageTime is the time limit of one page, and maxOpenTime the limit until a watch begins. A
	// proxy in between may delay the header of a watch until the first event, and API servers send
	// a bookmark every minute.
	maxPageTime = time.Minute
	maxOpenTime = 2 * time.Minute
	// maxWatchOverrun is how long a watch may last after its agreed end. A middlebox that drops all
	// packets must not keep deleted objects alive.
	maxWatchOverrun = 30 * time.Second
	// deletionLeeway is how long after its deletionTimestamp the API server still accepts the tokens
	// of an object that a finalizer keeps (DefaultLeeway in k8s.io/kubernetes/pkg/serviceaccount).
	deletionLeeway = time.Minute
	// refusalTime is how long an API server whose /readyz is closed to the proxy must refuse a list
	// until it is believed. It has usually loaded RBAC within seconds, and a cluster without the CRDs
	// serves nothing meanwhile.
	refusalTime = 30 * time.Second
	// maxFirstList is how long a start waits for the first list of an optional resource.
	maxFirstList = 30 * time.Second
)

// resource holds the kept data of all objects of a resource. A reflector keeps it up to date. It is
// safe for concurrent use.
//
// The reflector writes to the store without an informer. An informer would keep each object as
// the API server sends it, or at least as a pointer to a value of that size. The kept data is a
// fraction of it.
//
// During a list, memory holds the kept data of the old and the new objects. Of the objects as the
// API server sends them, memory holds one at a time if the API server streams lists (KEP-3157), and
// otherwise a page.
type resource struct {
	name   string        // in URLs and ClusterRoles
	sample metav1.Object // of the type in a list or watch
	source cache.ListerWatcherWithContext
	pages  pages.Lister // of source
	fetch  func(ctx context.Context, namespace, name string) (metav1.Object, error)
	keep   func(metav1.Object) object
	log    *slog.Logger
	now    func() time.Time
	// changed is called after a change of one object, or with nil after a change of all, while the
	// objects are locked. It may be nil.
	changed func(objects map[objectKey]object, key *objectKey)
	// budget is the limit for the kept data of the objects of one namespace, see claim. 0 means no
	// limit.
	budget int
	// optional means that the cluster may lack the resource and still serve.
	optional bool
	// slim keeps uids instead of objects.
	slim bool
	// denies means that objects can refuse what would be granted without them. Until they are listed,
	// only the API server's word that there are none, or that the proxy may not list them, lets the
	// cluster serve.
	denies bool
	// ready asks whether the API server has loaded everything. It is nil unless denies.
	ready func(context.Context) error

	synced chan struct{} // closed when everything was listed once

	mu        sync.RWMutex
	objects   map[objectKey]object // nil until synced, empty if slim
	uids      uids
	ending    ending
	ledgers   ledgers            // of objects
	missing   fair.Queue[*claim] // within the budget again after their data was dropped
	streaming bool               // the current list is a stream
	failure   string             // of the latest list or watch; empty: none
	lacking   bool               // it is certain that the API server has no such resource, or none for the proxy
	refused   time.Time          // since when it says so while its /readyz is closed to the proxy; zero: it does not
	heard     time.Time          // of the last message of the API server about it
	began     time.Time          // of reflect; zero: not yet

	refill chan struct{} // holds one element when something is missing
	stream *sieve        // of the list that is being streamed; used only by the reflector
}

// newResource completes a resource, which is filled from source.
func newResource(r *resource) *resource {
	r.synced, r.refill, r.ending = make(chan struct{}), make(chan struct{}, 1), ending{}
	r.pages.List = r.source.ListWithContext
	return r
}

// objectKey names an object. The name of a namespace is in memory once, however many objects it
// has.
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

// confirm returns an object as it was last seen, if it has the UID. See subject for isLasting.
func (r *resource) confirm(namespace, name, uid string, isLasting bool) (object, bool) {
	if r.slim {
		key, want := digestOf(namespace, name), digestOf("", uid)
		r.mu.RLock()
		defer r.mu.RUnlock()
		return object{uid: uid}, r.uids[key] == want && !r.ending.ended(uid, r.now) // of a pod, which does not last
	}
	key := objectKey{unique.Make(namespace), name}
	r.mu.RLock()
	defer r.mu.RUnlock()
	found := r.objects[key]
	return found, found.uid == uid && (isLasting || !r.ending.ended(uid, r.now))
}

// ending holds the objects that are being deleted: UIDs, and when their tokens end. A finalizer may
// keep such an object forever.
type ending map[string]time.Time

// put notes an object; zero: it is not being deleted.
func (e ending) put(uid string, at time.Time) {
	if !at.IsZero() {
		e[uid] = at
	}
}

func (e ending) ended(uid string, now func() time.Time) bool {
	at, ok := e[uid]
	return ok && !now().Before(at)
}

// get asks the API server. Without a resourceVersion, the API server reads from a quorum of etcd.
// So an object that is not found does not exist.
func (r *resource) get(ctx context.Context, namespace, name string) (*item, error) {
	found, err := r.fetch(pages.Bound(ctx, maxGetBytes), namespace, name)
	if err != nil {
		return nil, err
	}
	i, err := r.convert(found)
	if err != nil {
		return nil, err
	}
	if asked := (objectKey{unique.Make(namespace), name}); i.key != asked {
		return nil, fmt.Errorf("the API server sent %s when asked for %s", join(found.GetNamespace(), found.GetName()), join(namespace, name))
	}
	return i, nil
}

// reflect keeps the objects up to date until ctx ends.
func (r *resource) reflect(ctx context.Context) {
	// Lists and watches report their own failures, so the messages of client-go are dropped.
	silent := klog.Logger{}
	reflector := cache.NewReflectorWithOptions((*lister)(r), r.sample, (*store)(r), cache.ReflectorOptions{
		Name:   r.name,
		Logger: &silent,
		// As client-go's own backoff, except for its cap of 30 seconds: until the watch is back,
		// deletions are not noticed.
		Backoff: &wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second},
	})
	if r.budget > 0 {
		go r.refillAll(ctx)
	}
	r.mu.Lock()
	r.began = r.now()
	r.mu.Unlock()
	reflector.RunWithContext(klog.NewContext(ctx, silent))
}

// failed notes that a list or watch failed. The end of ctx is not a failure. An expired history is
// not one either: a resourceVersion was compacted, or etcd was restored, and a new list follows.
func (r *resource) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	message := explain(err, verb, r.name).Error()
	r.mu.Lock()
	changed := r.failure != message
	if r.failure = message; !isLack(err) {
		r.refused = time.Time{}
	}
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
	return ResourceStatus{
		Resource: r.name, Optional: r.optional && (r.lacking || !r.denies), Synced: r.objects != nil,
		Overdue: r.objects == nil && !r.began.IsZero() && r.now().Sub(r.began) >= maxFirstList,
		Objects: len(r.objects) + len(r.uids), HeardAt: r.heard, LastFailure: r.failure,
	}
}

// cause returns why ctx ended before the objects were listed.
func (r *resource) cause(ctx context.Context) error {
	if failure := r.status().LastFailure; failure != "" {
		return fmt.Errorf("%w: %s", context.Cause(ctx), failure)
	}
	return context.Cause(ctx)
}

// item is an object on its way into the store, where it must be immutable.
type item struct {
	key    objectKey
	object object
	ends   time.Time // when tokens of the object end; zero: it is not being deleted
}

func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

func (i *item) DeepCopyObject() runtime.Object { return i }

// convert keeps only the wanted data.
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
	i := &item{key: key, object: kept}
	if deleted := from.GetDeletionTimestamp(); deleted != nil {
		i.ends = deleted.Add(deletionLeeway)
	}
	return i, nil
}

// keyOf rejects an object without an identity. API servers do not send such objects, but a
// different server could.
func keyOf(from metav1.Object) (objectKey, error) {
	if from.GetName() == "" || from.GetUID() == "" {
		return objectKey{}, fmt.Errorf("without name or UID")
	}
	return objectKey{unique.Make(from.GetNamespace()), from.GetName()}, nil
}

// lister is the interface of the reflector to a resource.
type lister resource

var _ cache.ListerWatcherWithContext = (*lister)(nil)

// ListWithContext returns all objects, converted. The reflector would gather them as they are sent.
// If its pages expire, the reflector requests all objects in one response.
func (l *lister) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	r := (*resource)(l)
	r.mu.Lock()
	r.streaming = false
	r.mu.Unlock()
	list, err := r.list(ctx)
	if status := r.status(); isLack(err) && r.denies && !status.Synced && !status.Optional {
		list, err = r.doubt(ctx, err)
	}
	if err != nil {
		r.failed(ctx, "list", err)
		return nil, err
	}
	return list, nil
}

// isLack reports whether the API server says that it has no such resource, or none for the proxy.
func isLack(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// doubt finds out whether err, of a list, is certain. An API server that has just begun refuses all
// requests until it has loaded RBAC, and knows no CRDs until it has loaded those. Then its /readyz
// succeeds, so a list after that is certain.
//
// /readyz is refused before RBAC is loaded, but it can also be closed to the proxy for good. Then
// the refusals of the list are certain once they last.
func (r *resource) doubt(ctx context.Context, err error) (list *internalversion.List, _ error) {
	unready := r.ready(ctx)
	if unready == nil {
		list, err = r.list(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case unready == nil:
		r.lacking = isLack(err)
	case !isLack(unready):
		r.refused = time.Time{}
	case r.refused.IsZero():
		r.refused = r.now()
	default:
		r.lacking = r.now().Sub(r.refused) >= refusalTime
	}
	return list, err
}

// listOnce reads all objects, like the first list of reflect.
func (r *resource) listOnce(ctx context.Context) error {
	list, err := r.list(ctx)
	if err != nil {
		r.failed(ctx, "list", err)
		r.mu.Lock()
		r.lacking = isLack(err) // the caller tells people, and serves no requests
		r.mu.Unlock()
		return explain(err, "list", r.name)
	}
	items := make([]any, len(list.Items))
	for i, value := range list.Items {
		items[i] = value
	}
	return (*store)(r).Replace(items, "")
}

// list requests all objects, one page after the other, and keeps the wanted data of each.
func (r *resource) list(ctx context.Context) (*internalversion.List, error) {
	all, listed := &internalversion.List{}, newSieve(r.budget)
	var options metav1.ListOptions
	for {
		if err := r.page(ctx, options, all, listed); err != nil {
			return nil, err
		}
		if options.Continue = all.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

func (r *resource) page(ctx context.Context, options metav1.ListOptions, all *internalversion.List, listed *sieve) error {
	ctx, cancel := context.WithTimeout(ctx, maxPageTime)
	defer cancel()
	page, err := r.pages.Page(ctx, options)
	if err != nil {
		return err
	}
	from, err := meta.ListAccessor(page)
	if err != nil {
		return err
	}
	all.ResourceVersion, all.Continue = from.GetResourceVersion(), from.GetContinue()
	return meta.EachListItem(page, func(value runtime.Object) error {
		i, err := r.convert(value)
		if err != nil {
			return err
		}
		listed.add(i)
		all.Items = append(all.Items, i)
		return nil
	})
}

func (l *lister) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	r := (*resource)(l)
	streaming := options.SendInitialEvents != nil
	r.mu.Lock()
	r.streaming = streaming
	r.mu.Unlock()
	if streaming {
		r.stream = newSieve(r.budget)
	}
	watched, err := r.watch(ctx, options)
	if err != nil {
		// A failed stream is not a fault yet. The reflector lists next, as it does for API servers
		// that do not stream lists. After these two errors, it does not.
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
	if err := pages.CheckRevision(ctx, r.source.ListWithContext, options); err != nil {
		return nil, err
	}
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

// List is not called, because ListWithContext exists.
func (l *lister) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch is not called, because WatchWithContext exists.
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

// store is the target of the reflector for a resource.
type store resource

var (
	_ cache.TransformingStore      = (*store)(nil)
	_ cache.ReflectorBookmarkStore = (*store)(nil)
)

// Transformer converts each object of a stream before the next ones arrive.
func (s *store) Transformer() cache.TransformFunc {
	return func(value any) (any, error) {
		i, err := (*resource)(s).convert(value)
		if err == nil {
			s.stream.add(i)
		}
		return i, err
	}
}

func (s *store) Add(value any) error {
	i, err := (*resource)(s).convert(value)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := (*resource)(s)
	r.ending.put(i.object.uid, i.ends)
	if r.heard = r.now(); r.slim {
		r.uids.put(i.key, i.object.uid)
		return nil
	}
	next, isSame := i.object.withSpecOf(r.objects[i.key])
	r.put(i.key, next, true)
	if !isSame {
		r.notify(&i.key)
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
	r := (*resource)(s)
	delete(r.ending, string(from.GetUID()))
	if r.heard = r.now(); r.slim {
		r.uids.remove(key)
		return nil
	}
	r.put(key, object{}, false)
	r.notify(&key)
	return nil
}

// notify is called with mu.
func (r *resource) notify(key *objectKey) {
	if r.changed != nil {
		r.changed(r.objects, key)
	}
}

// Bookmark is called when nothing has changed. API servers send a bookmark about once a minute. It
// distinguishes a quiet resource from a watch that hangs.
func (s *store) Bookmark(string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = s.now()
	return nil
}

// Replace stores all objects of a list, which are already converted.
func (s *store) Replace(values []any, _ string) error {
	objects, known, ends := map[objectKey]object{}, uids{}, ending{}
	if s.slim {
		known = make(uids, len(values))
	} else {
		objects = make(map[objectKey]object, len(values))
	}
	for _, value := range values {
		i, ok := value.(*item)
		if !ok {
			return fmt.Errorf("a %T is among %s", value, s.name)
		}
		if ends.put(i.object.uid, i.ends); s.slim {
			known.put(i.key, i.object.uid)
		} else {
			objects[i.key] = i.object
		}
	}
	s.mu.Lock()
	first := s.objects == nil
	s.objects, s.uids, s.ending, s.stream = objects, known, ends, nil
	(*resource)(s).settleAll()
	s.heard = s.now()
	(*resource)(s).notify(nil)
	streaming := s.streaming
	s.mu.Unlock()
	if first {
		close(s.synced)
	}
	if streaming { // the same stream continues as a watch
		(*resource)(s).recovered()
	}
	return nil
}

// Resync does nothing: there are no handlers of changes.
func (s *store) Resync() error { return nil }
