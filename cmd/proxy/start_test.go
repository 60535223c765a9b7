package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var startPods = flag.Int("start-pods", 2_000, "how many pods there are to list when the proxy starts; 150,000 are as many as Kubernetes supports")

// largeCluster is an API server that has pods, ServiceAccounts and namespaces, and sends
// their metadata as real ones do: in protobuf, streamed, or where it cannot, in pages.
// team-a/web and its pod are the last.
type largeCluster struct {
	counts  map[string]int // by resource
	streams bool
	hold    chan struct{} // closed when pods may be listed
	gets    atomic.Int64
	encoder *protobuf.Serializer
	events  *protobuf.RawSerializer
}

func newLargeCluster(pods int, streams bool) *largeCluster {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	_ = metav1.AddMetaToScheme(scheme)
	return &largeCluster{
		counts: map[string]int{"pods": pods, "serviceaccounts": max(1, pods/30), "namespaces": max(1, pods/100)}, streams: streams, hold: make(chan struct{}),
		encoder: protobuf.NewSerializer(scheme, scheme), events: protobuf.NewRawSerializer(scheme, scheme),
	}
}

// object is one of a resource, with all that is usual there, and as long.
func (c *largeCluster) object(resource string, i int) *metav1.PartialObjectMetadata {
	is := c.counts[resource] - 1 - i // 0: that of team-a/web
	namespace := fmt.Sprintf("team-%04d-production", i%5000)
	name := map[string]string{"pods": fmt.Sprintf("payment-service-worker-%03d-7d9c8b6f5d-%05x", i%500, i), "serviceaccounts": fmt.Sprintf("payment-service-worker-%05d", i), "namespaces": namespace}[resource]
	uid := fmt.Sprintf("%08x-89ab-4cde-8f01-%012x", i, i)
	if is == 0 {
		namespace = "team-a"
		name = map[string]string{"pods": "web-0", "serviceaccounts": "web", "namespaces": "team-a"}[resource]
		uid = map[string]string{"pods": "uid-2", "serviceaccounts": "uid-1", "namespaces": "uid-4"}[resource]
	}
	if resource == "namespaces" {
		namespace = ""
	}
	now := metav1.NewTime(time.Unix(1_772_600_000, 0))
	managed := func(manager string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{` + strings.Repeat(`"f:x":{},`, 70) + `"f:y":{}}}}`)}
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID(uid), ResourceVersion: fmt.Sprint(1_000_000 + i), CreationTimestamp: now,
			Labels:        map[string]string{"app.kubernetes.io/name": "payment-service", "pod-template-hash": "7d9c8b6f5d"},
			Annotations:   map[string]string{"cni.example.com/addresses": fmt.Sprint("10.0.0.", i), "kubectl.kubernetes.io/restartedAt": "2026-03-04T05:06:07Z"},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kube-controller-manager"), managed("kubelet")},
		},
	}
}

func (c *largeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	query := r.URL.Query()
	resource := parts[len(parts)-1]
	if c.counts[resource] == 0 || parts[0] == "namespaces" && len(parts) == 2 { // a GET
		c.gets.Add(1)
		if parts[0] == "namespaces" && len(parts) == 4 {
			resource = parts[2]
		} else {
			resource = parts[0]
		}
		c.write(w, c.object(resource, c.counts[resource]-1)) // no client requests another page
		return
	}
	if query.Get("watch") == "true" || query.Get("watch") == "1" {
		c.watch(w, r, resource)
		return
	}
	c.await(r, resource)
	from, limit := 0, 0
	_, _ = fmt.Sscan(query.Get("continue"), &from)
	_, _ = fmt.Sscan(query.Get("limit"), &limit)
	list := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "2000000"},
	}
	to := min(from+limit, c.counts[resource])
	for i := from; i < to; i++ {
		list.Items = append(list.Items, *c.object(resource, i))
	}
	if to < c.counts[resource] {
		list.Continue = fmt.Sprint(to)
	}
	c.write(w, list)
}

// await waits until pods may be listed.
func (c *largeCluster) await(r *http.Request, resource string) {
	if resource == "pods" {
		select {
		case <-c.hold:
		case <-r.Context().Done():
		}
	}
}

func (c *largeCluster) write(w http.ResponseWriter, o runtime.Object) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = c.encoder.Encode(o, w) // else the client is told by what it lacks
}

func (c *largeCluster) watch(w http.ResponseWriter, r *http.Request, resource string) {
	streamed := r.URL.Query().Get("sendInitialEvents") == "true"
	if streamed && !c.streams {
		kubetest.Status(http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")(w, r)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	w.WriteHeader(http.StatusOK)
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	send := func(kind string, o runtime.Object) {
		var raw strings.Builder
		_ = c.encoder.Encode(o, &raw)
		event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: []byte(raw.String())}}
		_ = c.events.Encode(event, frames)
	}
	if streamed {
		c.await(r, resource)
		for i := range c.counts[resource] {
			send("ADDED", c.object(resource, i))
		}
		end := c.object(resource, 0)
		end.ObjectMeta = metav1.ObjectMeta{ResourceVersion: "2000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
		send("BOOKMARK", end)
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// A proxy answers before it has listed a cluster, by asking for what it needs to know of
// one pod, and is ready when it has. To measure it beside a large one:
//
//	go test ./cmd/proxy -run TestStart -v -start-pods 150000
func TestStart(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			cluster := newLargeCluster(*startPods, streams)
			api := httptest.NewTLSServer(cluster)
			t.Cleanup(api.Close)
			t.Cleanup(api.CloseClientConnections) // watches
			p := proxytest.New(t, "  kubernetes: {kubeconfigFile: prod.kubeconfig, podEvents: false}\n", map[string]string{"prod.kubeconfig": kubetest.Kubeconfig(api)})
			begin := time.Now()
			serve, _ := startProcess(t, p, fmt.Sprintf("GOMEMLIMIT=%dMiB", chartMemory/10*9))
			testkit.Eventually(t, "an answer", func() bool { return answers(t, p) })
			answered := time.Since(begin)
			if p.Ready(t) {
				t.Error("it is ready, and pods are not listed")
			}
			if cluster.gets.Load() == 0 {
				t.Error("it answered without a look at the pod")
			}
			begin = time.Now()
			close(cluster.hold)
			testkit.Eventually(t, "it is ready", func() bool { return p.Ready(t) })
			ready, gets := time.Since(begin), cluster.gets.Load()
			if !answers(t, p) || cluster.gets.Load() != gets {
				t.Errorf("%d objects were asked for that are in memory", cluster.gets.Load()-gets)
			}
			peak := peakMemory(t, serve.Process.Pid)
			t.Logf("%d pods, %s: first answer after %s, ready %s after pods could be listed, %d MiB at most", *startPods, name, answered.Round(time.Millisecond), ready.Round(time.Millisecond), peak)
			if peak > chartMemory && *startPods > 100_000 { // what the race detector takes is none of it
				t.Errorf("the chart allows %d MiB", chartMemory)
			}
		})
	}
}

const chartMemory = 256 // MiB

// answers requests a token; it returns false while no server listens.
func answers(t *testing.T, p *proxytest.Proxy) bool {
	t.Helper()
	response, err := p.Client.Do(p.Post(t, kubetest.Token(t, "https://issuer.example.com")))
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// peakMemory returns how much a process had in memory at most, in MiB.
func peakMemory(t *testing.T, pid int) (mib int) {
	t.Helper()
	status := testkit.Read(t, fmt.Sprintf("/proc/%d/status", pid))
	_, peak, _ := strings.Cut(status, "VmHWM:")
	if _, err := fmt.Sscan(peak, &mib); err != nil {
		t.Fatal(err)
	}
	return mib / 1024
}
