package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// newResource is for objects of which only the metadata is needed. The API server sends nothing
// else.
func (c *Cluster) newResource(name string, keep func(metav1.Object) object) *resource {
	kind := corev1.SchemeGroupVersion.WithResource(name)
	return newResource(&resource{
		name: name, sample: &metav1.PartialObjectMetadata{}, keep: keep, log: c.log, now: c.now,
		source: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return c.clients.metadata.Resource(kind).List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return c.clients.metadata.Resource(kind).Watch(ctx, options)
			},
		},
		fetch: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return c.clients.get.Resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	})
}

// newWholeNodes is for Nodes with their addresses.
func (c *Cluster) newWholeNodes(keep func(metav1.Object) object) *resource {
	const name = "nodes"
	return newResource(&resource{
		name: name, sample: &corev1.Node{}, keep: keep, log: c.log, now: c.now,
		source: cache.NewListWatchFromClient(c.clients.nodes, name, metav1.NamespaceAll, fields.Everything()),
		fetch: func(ctx context.Context, _, object string) (metav1.Object, error) {
			node := &corev1.Node{}
			return node, c.clients.getCore.Get().Resource(name).Name(object).Do(ctx).Into(node)
		},
	})
}

// newPodSpecs is for the node that a pod is bound to. There are too many pods to watch them whole
// for the tokens that do not name a node.
func (c *Cluster) newPodSpecs() *resource {
	const name = "pods"
	return &resource{
		name: name, keep: keepNodeName, log: c.log,
		fetch: func(ctx context.Context, namespace, object string) (metav1.Object, error) {
			pod := &corev1.Pod{}
			return pod, c.clients.getCore.Get().Namespace(namespace).Resource(name).Name(object).Do(ctx).Into(pod)
		},
	}
}
