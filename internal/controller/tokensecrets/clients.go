package tokensecrets

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// The clients know the types that are written and nothing else: those of
// k8s.io/client-go/kubernetes, its informers and its leader election link every API
// group there is.

func newCoreClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Secret{}, &corev1.Event{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	return newClient(config, scheme, corev1.SchemeGroupVersion, "/api")
}

func newLeaseClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
	return newClient(config, scheme, coordinationv1.SchemeGroupVersion, "/apis")
}

func newClient(config *rest.Config, scheme *runtime.Scheme, version schema.GroupVersion, path string) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath = path
	config.ContentConfig = rest.ContentConfig{
		ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON, GroupVersion: &version,
		NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}
	return rest.RESTClientFor(config)
}

// newInformer watches the metadata of what has opted in.
func newInformer(client metadata.Interface, resource schema.GroupVersionResource) cache.SharedIndexInformer {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = Label + "=" + Enabled
			return client.Resource(resource).List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = Label + "=" + Enabled
			return client.Resource(resource).Watch(ctx, options)
		},
	}
	return cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// eventTimeout is that of one request.
const eventTimeout = 10 * time.Second

// eventSink writes events. It implements record.EventSink.
type eventSink struct{ client rest.Interface }

func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.do(s.client.Post().Namespace(e.Namespace).Body(e))
}

func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.do(s.client.Put().Namespace(e.Namespace).Name(e.Name).Body(e))
}

func (s eventSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.do(s.client.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Name(e.Name).Body(data))
}

func (s eventSink) do(r *rest.Request) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	written := &corev1.Event{}
	return written, r.Resource("events").Do(ctx).Into(written)
}
