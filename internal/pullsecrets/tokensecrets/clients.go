package tokensecrets

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/cluster/pages"
)

func newCoreClient(from *clients.Clients) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Event{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	return from.Schemed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, scheme)
}

// newInformer watches the metadata of objects that have opted in. It keeps only their names and
// UIDs: authors of objects choose the length of the rest.
func newInformer(client metadata.Interface, resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	every := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.Resource(resource).List(ctx, options)
	}
	listed := &pages.Lister{List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = Label + "=" + Enabled
		return every(ctx, options)
	}}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return list(ctx, listed) },
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if err := pages.CheckRevision(ctx, every, options); err != nil {
				return nil, err
			}
			options.LabelSelector = Label + "=" + Enabled
			return client.Resource(resource).Watch(ctx, options)
		},
	}
	informer := cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	return informer, informer.SetTransform(keep)
}

// list reads all objects, one page after the other. The informer would keep the whole objects until
// it has the last page.
func list(ctx context.Context, from *pages.Lister) (*metav1.PartialObjectMetadataList, error) {
	all := &metav1.PartialObjectMetadataList{}
	for {
		page, err := from.Page(ctx, metav1.ListOptions{Continue: all.Continue})
		if err != nil {
			return nil, err
		}
		some, ok := page.(*metav1.PartialObjectMetadataList)
		if !ok {
			return nil, fmt.Errorf("the API server sent a %T", page)
		}
		for i := range some.Items {
			all.Items = append(all.Items, *kept(&some.Items[i]))
		}
		if all.ListMeta = some.ListMeta; all.Continue == "" {
			return all, nil
		}
	}
}

func keep(value any) (any, error) {
	if o, ok := value.(*metav1.PartialObjectMetadata); ok {
		return kept(o), nil
	}
	return value, nil
}

func kept(o *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp,
	}}
}

// newQueue returns a queue in which namespaces take turns. So a namespace with very many
// ServiceAccounts does not delay the others. Its keys are NAMESPACE/NAME.
func newQueue() workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Second, 5*time.Minute),
		workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
				Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: &turns{}}),
			}),
		})
}

// turns implements workqueue.Queue.
type turns struct{ fair.Queue[string] }

func (t *turns) Touch(string) {}

func (t *turns) Push(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	t.Queue.Push(namespace, key)
}

// Pop is called only if the queue is not empty.
func (t *turns) Pop() string {
	key, _ := t.Queue.Pop()
	return key
}
