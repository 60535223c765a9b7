package controller

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/kube"
)

// Connect returns the connection of a kubeconfig. If kubeconfig is empty, it returns that of the
// pod's ServiceAccount.
func Connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return kube.InCluster()
	}
	return kube.Kubeconfig(kubeconfig)
}

// NewLeaseClient returns a client for a Lease.
func NewLeaseClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{})
	return NewClient(config, scheme, coordinationv1.SchemeGroupVersion, "/apis")
}

// NewClient returns a client for the types of a scheme, to which it adds the types common to every
// group.
func NewClient(config *rest.Config, scheme *runtime.Scheme, version schema.GroupVersion, path string) (rest.Interface, error) {
	metav1.AddToGroupVersion(scheme, version)
	config = rest.CopyConfig(config)
	config.APIPath = path
	config.ContentConfig = rest.ContentConfig{
		ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON, GroupVersion: &version,
		NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}
	return rest.RESTClientFor(config)
}

// eventTimeout is the time limit of one request.
const eventTimeout = 10 * time.Second

// EventSink writes events. It implements record.EventSink.
type EventSink struct{ Client rest.Interface }

func (s EventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.do(s.Client.Post().Namespace(e.Namespace).Body(e))
}

func (s EventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.do(s.Client.Put().Namespace(e.Namespace).Name(e.Name).Body(e))
}

func (s EventSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.do(s.Client.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Name(e.Name).Body(data))
}

func (s EventSink) do(r *rest.Request) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	written := &corev1.Event{}
	return written, r.Resource("events").Do(ctx).Into(written)
}
