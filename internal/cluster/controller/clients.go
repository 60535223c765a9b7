package controller

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
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

// NewLeaseClient returns a client for a Lease, with its own limiter.
func NewLeaseClient(from *clients.Clients) (rest.Interface, error) {
	return from.Typed(coordinationv1.SchemeGroupVersion, runtime.ContentTypeJSON, &coordinationv1.Lease{})
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
