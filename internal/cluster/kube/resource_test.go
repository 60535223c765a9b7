package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// wantPods compares the known pods of team-a, NAME=UID, with those of which memory has digests.
func wantPods(t *testing.T, c *Cluster, pods ...string) {
	t.Helper()
	want := uids{}
	for _, pod := range pods {
		name, uid, _ := strings.Cut(pod, "=")
		want[digestOf("team-a", name)] = digestOf("", uid)
		if _, ok := c.pods.confirm("team-a", name, uid, false); !ok {
			t.Errorf("%s is not known", pod)
		}
		if _, ok := c.pods.confirm("team-b", name, uid, false); ok {
			t.Errorf("%s is known in another namespace", pod)
		}
		if _, ok := c.pods.confirm("team-a", name, uid+"x", false); ok {
			t.Errorf("%s is known with another UID", pod)
		}
	}
	c.pods.mu.RLock()
	defer c.pods.mu.RUnlock()
	if !maps.Equal(c.pods.uids, want) {
		t.Errorf("%d pods are known, want %v", len(c.pods.uids), pods)
	}
}

// podStatus leaves out the time of the last message.
func podStatus(c *Cluster) ResourceStatus {
	resources := c.Status().Resources
	pods := resources[slices.IndexFunc(resources, func(r ResourceStatus) bool { return r.Resource == "pods" })]
	pods.HeardAt = time.Time{}
	return pods
}

func podsHeardAt(c *Cluster) time.Time {
	resources := c.Status().Resources
	return resources[slices.IndexFunc(resources, func(r ResourceStatus) bool { return r.Resource == "pods" })].HeardAt
}

// restarts are the ways in which a watch can end. The changes meanwhile must be visible afterwards:
// a pod created, one deleted, one recreated.
func TestWatchRestarts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		end  func(s *apiServer, change func())
	}{
		{"by itself", func(s *apiServer, change func()) {
			time.Sleep(30 * time.Minute)
			change()
		}},
		{"compacted", func(s *apiServer, change func()) {
			s.Fail("watch pods", kubetest.Status(http.StatusInternalServerError, "InternalError", "starting"))
			s.Fail("list pods", kubetest.Status(http.StatusInternalServerError, "InternalError", "starting"))
			s.Compact()
			synctest.Wait()
			change()
			s.Compact() // so that its position is no longer available
			s.Fail("watch pods", nil)
			s.Fail("list pods", nil)
		}},
		{"refused", func(s *apiServer, change func()) {
			s.Refuse(true)
			time.Sleep(time.Minute)
			change()
			s.Refuse(false)
		}},
		{"refused and compacted", func(s *apiServer, change func()) {
			s.Refuse(true)
			time.Sleep(time.Minute)
			change()
			s.Compact()
			s.Refuse(false)
		}},
		{"restored", func(s *apiServer, change func()) {
			restore := s.Snapshot()
			for i := range 100 {
				s.put(thing{resource: "pods", namespace: "team-a", name: fmt.Sprint("lost-", i), uid: "uid-lost"})
			}
			synctest.Wait()
			s.Refuse(true)
			time.Sleep(time.Minute)
			restore()
			s.Refuse(false)
			change()
		}},
		{"hangs", func(s *apiServer, change func()) {
			s.Fail("watch pods", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})
			s.Fail("list pods", kubetest.Hang)
			s.Compact()
			change()
			time.Sleep(time.Minute) // until the next watch begins
			s.Fail("watch pods", nil)
			s.Fail("list pods", nil)
			time.Sleep(11 * time.Minute) // the longest watch and its overrun
		}},
	} {
		for name, streams := range map[string]bool{"streamed": true, "listed": false} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				testkit.Bubble(t, func(t *testing.T) {
					s := newAPIServer(team()...)
					s.Streams(streams)
					c := newTestCluster(t, s, ClusterConfig{PodChecks: true})
					run(t, c)
					wantPods(t, c, "orphan=uid-orphan", "waits=uid-waits", "web-1=uid-pod")
					before := time.Now()
					test.end(s, func() {
						s.Remove("pods", "team-a", "orphan")
						s.put(thing{resource: "pods", namespace: "team-a", name: "waits", uid: "uid-again"},
							thing{resource: "pods", namespace: "team-a", name: "new", uid: "uid-new"})
					})
					time.Sleep(30 * time.Second) // as the documentation promises
					synctest.Wait()
					wantPods(t, c, "new=uid-new", "waits=uid-again", "web-1=uid-pod")
					if got, want := podStatus(c), (ResourceStatus{Resource: "pods", Synced: true, Objects: 3}); got != want {
						t.Errorf("status %+v", got)
					}
					if heard := podsHeardAt(c); heard.Before(before) {
						t.Errorf("nothing was heard since %s", heard)
					}
				})
			})
		}
	}
}

// A resource without changes is still heard of, as long as the watch works.
func TestStatusTellsAQuietWatchFromADeadOne(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{PodChecks: true})
		if heard := podsHeardAt(c); !heard.IsZero() {
			t.Errorf("before anything was asked, heard at %s", heard)
		}
		run(t, c)
		time.Sleep(time.Hour)
		if quiet := time.Since(podsHeardAt(c)); quiet > 2*time.Minute {
			t.Errorf("nothing was heard for %s of a watch that works", quiet)
		}
		s.Refuse(true)
		time.Sleep(time.Hour)
		if quiet := time.Since(podsHeardAt(c)); quiet < time.Hour {
			t.Errorf("heard %s ago of an API server that refuses for an hour", quiet)
		}
	})
}

// Lists that are not streamed come in pages. They never come from a cache, which may be older than
// known data.
func TestPages(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Streams(false)
		for i := range 2 * pageSize {
			s.put(thing{resource: "pods", namespace: "team-b", name: fmt.Sprintf("pod-%04d", i), uid: fmt.Sprint("uid-", i)})
		}
		c := newTestCluster(t, s, ClusterConfig{PodChecks: true})
		run(t, c)
		if got := podStatus(c); got.Objects != 2*pageSize+3 {
			t.Errorf("status %+v", got)
		}
		if n := s.Count("list pods ?limit=500") + s.Count("list pods?continue=") + s.Count("list pods?limit=500"); n != 3 {
			t.Errorf("%d pages of three; others: %v", n, s.Asked())
		}
		s.Fail("list pods", kubetest.Status(http.StatusInternalServerError, "InternalError", "no"))
		s.Compact()
		s.Compact()
		s.Fail("list pods", nil)
		time.Sleep(time.Minute)
		for _, request := range s.Asked() {
			if strings.HasPrefix(request, "list") && (!strings.Contains(request, "limit=500") && !strings.HasSuffix(request, "?limit=1") || strings.Contains(request, "resourceVersion=")) {
				t.Error(request)
			}
		}
	})
}

// Readiness and logs name the fault and the remedy until it works again.
func TestStatus(t *testing.T) {
	t.Parallel()
	forbidden := func(verb string) http.HandlerFunc {
		return kubetest.Status(403, "Forbidden", `pods is forbidden: User "u" cannot `+verb+` resource "pods"`)
	}
	for _, test := range []struct {
		name   string
		spoil  func(s *apiServer)
		synced bool
		want   string
	}{
		{"neither list nor watch", func(s *apiServer) {
			s.Fail("watch pods", forbidden("watch"))
			s.Fail("list pods", forbidden("list"))
		}, false, `give the proxy's ClusterRole the verb "list" on "pods"`},
		{"no watch", func(s *apiServer) { s.Fail("watch pods", forbidden("watch")) }, true, `give the proxy's ClusterRole the verb "watch" on "pods"`},
		{"unauthorized", func(s *apiServer) {
			s.Fail("watch pods", kubetest.Status(401, "Unauthorized", "Unauthorized"))
			s.Fail("list pods", kubetest.Status(401, "Unauthorized", "Unauthorized"))
		}, false, "does not know the proxy's credentials: renew them"},
		{"refused", func(s *apiServer) { s.Refuse(true) }, false, "connection refused"},
		{"hangs", func(s *apiServer) {
			s.Fail("watch pods", kubetest.Hang)
			s.Fail("list pods", kubetest.Hang)
		}, false, "the API server did not answer in time"},
		{"watches hang", func(s *apiServer) { s.Fail("watch pods", kubetest.Hang) }, true, "the API server did not answer in time"},
		{"too many requests", func(s *apiServer) { s.Fail("watch pods", kubetest.Status(429, "TooManyRequests", "too many")) }, false, "too many"},
		{"streams break", func(s *apiServer) {
			s.Fail("watch pods", kubetest.Says(200, "application/json", ""))
			s.Fail("list pods", forbidden("list"))
		}, false, `the verb "list" on "pods"`},
		{"no list", func(s *apiServer) {
			s.Streams(false)
			s.Fail("list pods", kubetest.Says(200, "application/json", `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"x"}}]}`))
		}, false, "the API server sent one of pods without name or UID"},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				var log bytes.Buffer
				s := newAPIServer(team()...)
				test.spoil(s)
				c := newTestCluster(t, s, ClusterConfig{PodChecks: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if got := podStatus(c); got != (ResourceStatus{Resource: "pods"}) {
					t.Errorf("before: %+v", got)
				}
				go c.Run(t.Context())
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := podStatus(c); got.Synced != test.synced || !strings.Contains(got.LastFailure, test.want) {
					t.Errorf("status %+v", got)
				}
				// The log must stay readable.
				if n := strings.Count(log.String(), "resource=pods"); n == 0 || n > 2 {
					t.Errorf("%d lines in the log:\n%s", n, &log)
				}
				s.Refuse(false)
				s.Fail("watch pods", nil)
				s.Fail("list pods", nil)
				time.Sleep(15 * time.Minute)
				synctest.Wait()
				if got, want := podStatus(c), (ResourceStatus{Resource: "pods", Synced: true, Objects: 3}); got != want {
					t.Errorf("afterwards: %+v", got)
				}
				if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), `level=INFO msg="objects are watched again" cluster=one resource=pods`) {
					t.Errorf("log\n%s", &log)
				}
			})
		})
	}
}

// Before a watch goes on, the API server tells its revision. If it does not, all objects are read
// again. A missing right to list stays quiet. Every other failure is one of the watch.
func TestRevisionIsUnknown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		failure http.HandlerFunc
		quiet   bool
	}{
		{"forbidden", kubetest.Status(http.StatusForbidden, "Forbidden", "no"), true},
		{"fails", kubetest.Status(http.StatusInternalServerError, "InternalError", "no"), false},
		{"hangs", kubetest.Hang, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				var log testkit.Buffer
				s := newAPIServer(team()...)
				s.Fail("list pods", test.failure)
				c := newTestCluster(t, s, ClusterConfig{PodChecks: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				run(t, c)
				s.Count("watch pods")
				time.Sleep(time.Hour)
				synctest.Wait()
				streams, others := 0, 0
				for _, request := range s.Asked() {
					switch {
					case strings.HasPrefix(request, "watch pods") && strings.Contains(request, "sendInitialEvents=true"):
						streams++
					case strings.HasPrefix(request, "watch pods"):
						others++
					}
				}
				if streams < 5 || others > 0 || (log.String() == "") != test.quiet { // streams within an hour
					t.Errorf("%d streams, %d other watches; log\n%s", streams, others, log.String())
				}
				s.Remove("pods", "team-a", "orphan")
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				wantPods(t, c, "waits=uid-waits", "web-1=uid-pod")
			})
		})
	}
}

// An API server without streamed lists is not a fault, and neither is the end of history.
func TestNoFault(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newAPIServer(team()...)
		s.Streams(false)
		run(t, newTestCluster(t, s, ClusterConfig{PodChecks: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		time.Sleep(time.Minute)
		s.Compact()
		time.Sleep(time.Minute)
		s.Forget()
		time.Sleep(15 * time.Minute) // the watches end, and their position is no longer available
		synctest.Wait()
		if log.Len() > 0 {
			t.Errorf("log\n%s", &log)
		}
	})
}

// A limit on requests, such as one from a kubeconfig, does not apply to watches.
func TestTimeLimitOfTheConnection(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := testkit.Value(NewCluster(ClusterConfig{Name: "one", REST: &rest.Config{Host: "http://api.example.com", Transport: s, Timeout: time.Second}}))(t)
		run(t, c)
		s.Count("watch")
		time.Sleep(4 * time.Minute)
		if n := s.Count("watch"); n != 0 {
			t.Errorf("%d watches had to begin again", n)
		}
	})
}

// The end of the proxy is not a fault.
func TestShutdownIsQuiet(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newAPIServer(team()...)
		s.Streams(false)
		s.Fail("watch pods", kubetest.Hang)
		s.Fail("list namespaces", kubetest.Hang)
		c := newTestCluster(t, s, ClusterConfig{PodChecks: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.Run(ctx)
		time.Sleep(time.Minute)
		if log.Len() > 0 {
			t.Errorf("log\n%s", &log)
		}
	})
}

// Run returns when its context ends, even while the API server is down.
func TestRunEnds(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Refuse(true)
		c := newTestCluster(t, s, ClusterConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		c.Run(ctx)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %s", took)
		}
		time.Sleep(time.Minute) // for the reflectors
	})
}

// A full object: any unwanted field would be in memory for every pod.
func TestKeptIsWhatIsWanted(t *testing.T) {
	t.Parallel()
	metadata := metav1.ObjectMeta{
		Name: "NAME", Namespace: "NAMESPACE", UID: "UID", GenerateName: "x", ResourceVersion: "x", Generation: 7,
		Labels: map[string]string{"LABEL": "L"}, Annotations: map[string]string{"ANNOTATION": "A", "x": "x"},
		Finalizers: []string{"x"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "x", Kind: "x", Name: "x", UID: "x"}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1("x")}},
	}
	node := corev1.Node{ObjectMeta: metadata, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "x"}},
		Images:    []corev1.ContainerImage{{Names: []string{"x"}}}, NodeInfo: corev1.NodeSystemInfo{MachineID: "x"},
	}}
	pod := corev1.Pod{ObjectMeta: metadata, Spec: corev1.PodSpec{NodeName: "NODE", Hostname: "x"}, Status: corev1.PodStatus{PodIP: "x"}}
	id := []string{"NAME", "NAMESPACE", "UID"}
	for _, test := range []struct {
		name string
		keep func(metav1.Object) object
		from metav1.Object
		want []string
	}{
		{"ServiceAccount", keepAnnotations([]string{"ANNOTATION", "none"}), &metav1.PartialObjectMetadata{ObjectMeta: metadata}, []string{"A", "ANNOTATION"}},
		{"ServiceAccount without keys", keepAnnotations(nil), &metav1.PartialObjectMetadata{ObjectMeta: metadata}, nil},
		{"Namespace", keepLabels, &metav1.PartialObjectMetadata{ObjectMeta: metadata}, []string{"L", "LABEL"}},
		{"Pod", keepIdentity, &metav1.PartialObjectMetadata{ObjectMeta: metadata}, nil},
		{"Pod with its node", keepNodeName, &pod, []string{"NODE"}},
		{"Node", keepNode(false), &metav1.PartialObjectMetadata{ObjectMeta: metadata}, []string{"NAME", "UID"}},
		{"Node with labels", keepNode(true), &metav1.PartialObjectMetadata{ObjectMeta: metadata}, []string{"L", "LABEL", "NAME", "UID"}},
		{"Node with addresses", keepNode(false), &node, []string{"an address", "NAME", "UID"}},
	} {
		i := testkit.Value((&resource{keep: test.keep}).convert(test.from))(t)
		i.object.claim = nil // its texts are those of the object
		got := texts(reflect.ValueOf(i))
		want := append(slices.Clone(id), test.want...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v is kept, want %v", test.name, got, want)
		}
	}
}

// texts returns all texts and numbers that are reachable from v, and notes addresses.
func texts(v reflect.Value) (found []string) {
	switch v.Kind() {
	case reflect.String:
		if v.String() != "" {
			found = append(found, v.String())
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			found = texts(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			found = append(found, texts(v.Index(i))...)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			found = append(append(found, texts(key)...), texts(v.MapIndex(key))...)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[netip.Addr]() {
			return []string{"an address"}
		}
		for i := range v.NumField() { // a unique.Handle contains its text
			found = append(found, texts(v.Field(i))...)
		}
	case reflect.Int, reflect.Int64:
		if v.Int() != 0 {
			found = append(found, fmt.Sprint(v.Int()))
		}
	}
	return found
}

// An object without an identity is not stored under an empty one.
func TestConvertRefuses(t *testing.T) {
	t.Parallel()
	r := &resource{name: "pods", keep: keepIdentity, objects: map[objectKey]object{}}
	for _, bad := range []any{
		"text",
		&metav1.Status{},
		&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: types.UID("x")}},
	} {
		s := (*store)(r)
		if s.Add(bad) == nil || s.Update(bad) == nil || s.Delete(bad) == nil || s.Replace([]any{bad}, "") == nil {
			t.Errorf("%T was accepted", bad)
		}
		if _, err := s.Transformer()(bad); err == nil {
			t.Errorf("%T was converted", bad)
		}
	}
	if len(r.objects) != 0 {
		t.Errorf("objects %v", r.objects)
	}
}
