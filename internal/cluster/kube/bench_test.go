package kube

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/pullpass/pullpass/internal/oidc"
)

// A large cluster.
const (
	manyNamespaces = 5_000
	manyAccounts   = 20_000
	manyPods       = 150_000
)

func uuid(i int) string { return fmt.Sprintf("%08x-89ab-4cde-8f01-%012x", i*2654435761%(1<<32), i) }

func namespaceName(i int) string { return fmt.Sprintf("team-%04d-production", i%manyNamespaces) }

func podName(i int) string {
	return fmt.Sprintf("payment-service-worker-%03d-7d9c8b6f5d-%05x", i%500, i)
}

func accountName(i int) string { return fmt.Sprintf("payment-service-worker-%05d", i) }

// metadataOf returns the metadata that the API server sends for an object.
func metadataOf(i int, namespace, name string) metav1.ObjectMeta {
	now := metav1.NewTime(time.Unix(1_772_600_000, 0))
	field := func(manager string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 700))}
	}
	return metav1.ObjectMeta{
		Name: name, GenerateName: "payment-service-worker-7d9c8b6f5d-", Namespace: namespace, UID: types.UID(uuid(i)),
		ResourceVersion: fmt.Sprint(1_000_000 + i), CreationTimestamp: now,
		Labels: map[string]string{"app.kubernetes.io/name": "payment-service", "app.kubernetes.io/instance": fmt.Sprint("payment-", i), "pod-template-hash": "7d9c8b6f5d"},
		Annotations: map[string]string{key: "team-a/web team-a/worker:pull,push shared/**", "cni.example.com/addresses": fmt.Sprint("10.0.0.", i),
			"kubectl.kubernetes.io/restartedAt": "2026-03-04T05:06:07Z"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "payment-service-worker-7d9c8b6f5d", UID: types.UID(uuid(i))}},
		ManagedFields:   []metav1.ManagedFieldsEntry{field("kube-controller-manager"), field("kubelet")},
	}
}

// crowd generates a resource with many objects, as a stream or in pages. Each object exists only
// while it is sent.
type crowd struct {
	count  int
	object func(int) metav1.ObjectMeta
	stream bool
}

func (c *crowd) source() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (k8sruntime.Object, error) {
			from := 0
			fmt.Sscan(options.Continue, &from)
			list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "2000000"}}
			to := min(from+int(options.Limit), c.count)
			for i := from; i < to; i++ {
				list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: c.object(i)})
			}
			if to < c.count {
				list.Continue = fmt.Sprint(to)
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil && !c.stream {
				return nil, fmt.Errorf("lists are not streamed")
			}
			events := make(chan watch.Event)
			go func() {
				defer close(events)
				send := func(kind watch.EventType, metadata metav1.ObjectMeta) {
					select {
					case events <- watch.Event{Type: kind, Object: &metav1.PartialObjectMetadata{ObjectMeta: metadata}}:
					case <-ctx.Done():
					}
				}
				if options.SendInitialEvents != nil {
					for i := range c.count {
						send(watch.Added, c.object(i))
					}
					send(watch.Bookmark, metav1.ObjectMeta{ResourceVersion: "2000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}})
				}
				<-ctx.Done()
			}()
			return watch.NewProxyWatcher(events), nil
		},
	}
}

// fill generates a large cluster, and waits until it is known.
func fill(b *testing.B, c *Cluster, stream bool) {
	b.Helper()
	account := func(i int) metav1.ObjectMeta { return metadataOf(i, namespaceName(i), accountName(i)) }
	pod := func(i int) metav1.ObjectMeta { return metadataOf(i, namespaceName(i), podName(i)) }
	namespace := func(i int) metav1.ObjectMeta { return metadataOf(i, "", namespaceName(i)) }
	crowds := map[*resource]*crowd{
		c.accounts.Load().resource: {manyAccounts, account, stream},
		c.pods:                     {manyPods, pod, stream},
		c.namespaces:               {manyNamespaces, namespace, stream},
	}
	for r, crowd := range crowds {
		r.source = crowd.source()
		r.pages.List = r.source.ListWithContext
	}
	go c.Run(b.Context())
	for r := range crowds {
		<-r.synced
	}
}

func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkStore measures the memory for a large cluster. live-MiB is the memory when everything is
// known. peak-MiB is the sampled maximum during the list, including garbage that is not collected
// yet.
func BenchmarkStore(b *testing.B) {
	for name, stream := range map[string]bool{"streamed": true, "listed": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := liveHeap()
				c := newTestCluster(b, newAPIServer(), ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true})
				done := make(chan struct{})
				peak := make(chan float64)
				go func() {
					most := 0.0
					ticker := time.NewTicker(5 * time.Millisecond)
					defer ticker.Stop()
					for {
						select {
						case <-ticker.C:
							var m runtime.MemStats
							runtime.ReadMemStats(&m)
							most = max(most, float64(m.HeapAlloc)/(1<<20))
						case <-done:
							peak <- most
							return
						}
					}
				}()
				fill(b, c, stream)
				close(done)
				b.ReportMetric(<-peak-before, "peak-MiB")
				b.ReportMetric(liveHeap()-before, "live-MiB")
				if n := len(c.pods.uids); n != manyPods {
					b.Fatalf("%d pods", n)
				}
				runtime.KeepAlive(c)
			}
		})
	}
}

// BenchmarkPods measures the memory for the pods of 50 large clusters.
func BenchmarkPods(b *testing.B) {
	const clusters, pods = 50, 60_000
	pod := func(i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: podName(i), Namespace: namespaceName(i), UID: types.UID(uuid(i))}
	}
	for b.Loop() {
		before := liveHeap()
		var all []*resource
		for range clusters {
			r := newTestCluster(b, newAPIServer(), ClusterConfig{PodChecks: true}).pods
			r.source = (&crowd{pods, pod, true}).source()
			go r.reflect(b.Context())
			<-r.synced
			all = append(all, r)
		}
		b.ReportMetric((liveHeap()-before)*(1<<20)/(clusters*pods), "bytes/pod")
		runtime.KeepAlive(all)
	}
}

// BenchmarkLookup measures the path of nearly every request, for which everything is known.
func BenchmarkLookup(b *testing.B) {
	c := newTestCluster(b, newAPIServer(), ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true})
	fill(b, c, true)
	ids := make([]oidc.Identity, 1000)
	for n := range ids {
		i := n * (manyAccounts / len(ids))
		ids[n] = identity("one", namespaceName(i), accountName(i), uuid(i))
		ids[n].Kubernetes.Pod = oidc.ObjectRef{Name: podName(i), UID: uuid(i)}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; b.Loop(); n++ {
		if _, err := c.Lookup(b.Context(), ids[n%len(ids)], nil); err != nil {
			b.Fatal(err)
		}
	}
}
