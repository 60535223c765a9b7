package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func isGone(err error) bool {
	var gone *exchange.GoneError
	return errors.As(err, &gone)
}

// podOf is the identity of a token of team-a/web that is bound to a pod.
func podOf(name, uid string) oidc.Identity {
	id := webPod()
	id.Kubernetes.Pod = oidc.ObjectRef{Name: name, UID: uid}
	return id
}

// A new pod can be faster than the watch.
func TestFasterThanTheWatch(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{PodChecks: true})
		s.Count("")
		s.put(thing{resource: "pods", namespace: "team-a", name: "web-2", uid: "uid-2"}) // the watch has not seen it yet
		if _, err := c.Lookup(t.Context(), podOf("web-2", "uid-2"), nil); err != nil || s.Count("get pods") > 1 {
			t.Errorf("a new pod: %v", err)
		}
		synctest.Wait()
		s.Fail("watch pods", kubetest.Hang)
		s.Compact()
		synctest.Wait()
		s.put(thing{resource: "pods", namespace: "team-a", name: "web-1", uid: "uid-again"})
		if _, err := c.Lookup(t.Context(), podOf("web-1", "uid-again"), nil); err != nil || s.Count("get pods") != 1 {
			t.Errorf("a pod made again: %v", err)
		}
	})
}

// Only requests to the API server have a span.
func TestSpansOfGets(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		_, c := runTeam(t, ClusterConfig{PodChecks: true})
		recorder := tracetest.NewSpanRecorder()
		ctx, _ := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "kube")
		for _, id := range []oidc.Identity{webPod(), podOf("web-1", "uid-old")} {
			_, _ = c.Lookup(ctx, id, nil)
		}
		if ended := recorder.Ended(); len(ended) != 1 || ended[0].Name() != "get pods" || len(ended[0].Attributes()) > 0 {
			t.Errorf("spans %v", ended)
		}
	})
}

// A pod whose deletion the watch saw is requested once and refused. It is not requested again for a
// while.
func TestDeleted(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{PodChecks: true})
		refused := func(id oidc.Identity, gets int) {
			t.Helper()
			if _, err := c.Lookup(t.Context(), id, nil); !isGone(err) {
				t.Errorf("error %v", err)
			}
			if n := s.Count("get"); n != gets {
				t.Errorf("%d GETs, want %d", n, gets)
			}
		}
		s.Remove("pods", "team-a", "web-1")
		synctest.Wait()
		refused(webPod(), 1)
		for range 100 {
			refused(webPod(), 0)
		}
		refused(podOf("web-1", "uid-other"), 1) // a different token needs a new request
		time.Sleep(goneTime)
		refused(webPod(), 1)
		if got, want := c.Status().Gets, (GetCounts{Gone: 3}); got != want {
			t.Errorf("counts %+v", got)
		}

		// A pod of the same name has its own UID.
		s.put(thing{resource: "pods", namespace: "team-a", name: "web-1", uid: "uid-again"})
		if _, err := c.Lookup(t.Context(), podOf("web-1", "uid-again"), nil); err != nil {
			t.Error(err)
		}
		// The same holds for a ServiceAccount: its deletion revokes its tokens (KEP-4412).
		s.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-again"})
		synctest.Wait()
		s.Count("get")
		for _, gets := range []int{1, 0} {
			refused(podOf("web-1", "uid-again"), gets)
			want := exchange.GoneError{Kind: exchange.KindServiceAccount, Name: "team-a/web", UID: "uid-web", Now: "uid-again"}
			if _, err := c.Lookup(t.Context(), podOf("web-1", "uid-again"), nil); !reflect.DeepEqual(err, &want) {
				t.Errorf("error %#v", err)
			}
		}
	})
}

// A finalizer keeps a deleted object for as long as its owner likes, and the API server issues tokens for it. It refuses them a
// minute after the deletion, or after the end of a pod's grace period.
func TestDeletedButKeptByAFinalizer(t *testing.T) {
	t.Parallel()
	for _, deleted := range []string{"serviceaccounts/web", "pods/web-1"} {
		for _, watched := range []bool{true, false} {
			t.Run(fmt.Sprint(deleted, " ", watched), func(t *testing.T) {
				testkit.Bubble(t, func(t *testing.T) {
					s := newAPIServer(team()...)
					c := newTestCluster(t, s, ClusterConfig{PodChecks: true})
					if watched {
						run(t, c)
					}
					kind, name, _ := strings.Cut(deleted, "/")
					s.Merge(kind, "team-a", name, kubetest.Object{"metadata": kubetest.Object{"deletionTimestamp": time.Now().Add(30 * time.Second).UTC().Format(time.RFC3339)}})
					synctest.Wait()
					time.Sleep(89 * time.Second)
					if _, err := c.Lookup(t.Context(), webPod(), nil); err != nil {
						t.Errorf("a second before: %v", err)
					}
					time.Sleep(time.Second)
					if _, err := c.Lookup(t.Context(), webPod(), nil); !isGone(err) {
						t.Errorf("%v", err)
					}
					// Another object of the name counts for its own tokens.
					s.Remove(kind, "team-a", name)
					s.put(thing{resource: kind, namespace: "team-a", name: name, uid: "uid-again"})
					synctest.Wait()
					id := webPod()
					if kind == "pods" {
						id.Kubernetes.Pod.UID = "uid-again"
					} else {
						id.Kubernetes.ServiceAccount.UID = "uid-again"
					}
					if _, err := c.Lookup(t.Context(), id, nil); err != nil {
						t.Errorf("the next of the name: %v", err)
					}
					if watched {
						for _, r := range []*resource{c.pods, c.accounts.Load().resource} {
							if len(r.ending) > 0 {
								t.Errorf("%v are remembered", r.ending)
							}
						}
					}
				})
			})
		}
	}
}

// Karpenter's finalizer keeps a Node while its pods are moved, which takes hours. They pull until they are gone: the API server ends
// only the tokens that are bound to the Node itself.
func TestNodeKeptByAFinalizer(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *Cluster){"watched": run, "asked for": func(*testing.T, *Cluster) {}} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				s := newAPIServer(team()...)
				c := newTestCluster(t, s, ClusterConfig{PodChecks: true, NodeLabels: true, NodeFallback: true})
				start(t, c)
				s.Merge("nodes", "", "node-1", kubetest.Object{"metadata": kubetest.Object{"deletionTimestamp": time.Now().UTC().Format(time.RFC3339)}})
				synctest.Wait()
				time.Sleep(time.Hour)
				id := webPod()
				if facts, err := c.Lookup(t.Context(), id, nil); err != nil || facts.Node == nil || facts.Node.Labels["pool"] != "a" {
					t.Errorf("a pod whose token does not name the Node: %+v, %v", facts.Node, err)
				}
				id.Kubernetes.Node = oidc.ObjectRef{Name: "node-1", UID: "uid-node"}
				before := c.live.found.Load()
				if facts, err := c.Lookup(t.Context(), id, nil); err != nil || facts.Node == nil || facts.Node.Labels["pool"] != "a" {
					t.Errorf("a pod of the Node: %+v, %v", facts.Node, err)
				}
				if asked := c.live.found.Load() > before; asked == (name == "watched") {
					t.Errorf("the API server was asked: %t", asked)
				}
				id.Kubernetes.Pod = oidc.ObjectRef{}
				if _, err := c.Lookup(t.Context(), id, nil); !isGone(err) {
					t.Errorf("bound to the Node: %v", err)
				}
			})
		})
	}
}

func TestGoneMemoryIsBounded(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := newTestCluster(t, newAPIServer(team()...), ClusterConfig{PodChecks: true})
		for i := range 3 * goneBytes / 400 {
			c.live.gone.Add(subject{resource: "pods", namespace: "team-a", name: "dead", uid: fmt.Sprint("uid-", i)}, goneUID{})
		}
		dead := subject{resource: "pods", namespace: "team-a", name: "dead", uid: "uid-dead"}
		if _, err := c.Lookup(t.Context(), podOf(dead.name, dead.uid), nil); !isGone(err) {
			t.Fatal(err)
		}
		if _, ok := c.live.gone.Peek(dead); !ok || c.live.gone.Bytes() > goneBytes || c.live.gone.Len() < 3_000 {
			t.Errorf("%d are remembered, in %d bytes", c.live.gone.Len(), c.live.gone.Bytes())
		}
	})
}

// A flood of tokens of deleted pods does not cause a flood of GETs.
func TestGETsKeepToTheirRate(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := newTestCluster(t, newAPIServer(team()...), ClusterConfig{PodChecks: true, NodeFallback: true})
		run(t, c)
		began := time.Now()
		const gets = getBurst + 2*getsPerSecond
		for i := range gets / 2 { // by either client
			if _, err := c.Lookup(t.Context(), podOf("dead", fmt.Sprint("uid-", i)), nil); !isGone(err) {
				t.Fatal(err)
			}
			c.nodeNames.Remove(webPod().Kubernetes.Pod.UID)
			if _, err := c.Lookup(t.Context(), webPod(), nil); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began).Round(time.Second); took != 2*time.Second {
			t.Errorf("%d GETs took %s", gets, took)
		}
	})
}

// A failed request never means that the object does not exist, and is not remembered.
func TestCannotKnow(t *testing.T) {
	t.Parallel()
	notFound := `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound","details":%s}`
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   []string
	}{
		{"forbidden", kubetest.Status(403, "Forbidden", `pods "new" is forbidden`), []string{`pods "new" is forbidden: give the proxy's ClusterRole the verb "get" on "pods"`}},
		{"unauthorized", kubetest.Status(401, "Unauthorized", "Unauthorized"), []string{"the API server does not know the proxy's credentials: renew them"}},
		{"broken", kubetest.Status(500, "InternalError", "etcd is gone"), []string{"etcd is gone"}},
		{"overloaded", kubetest.Status(503, "ServiceUnavailable", "later"), []string{"later"}},
		{"too many", kubetest.Status(429, "TooManyRequests", "later"), []string{"later"}},
		{"hangs", kubetest.Hang, []string{"the API server did not answer in time"}},
		{"not found, says a load balancer", kubetest.Says(404, "text/plain", "404 page not found"), []string{"the server could not find the requested resource"}},
		{"not found, says a load balancer in HTML", kubetest.Says(404, "text/html", "<html>"), []string{"the server could not find the requested resource"}},
		{"not found, in JSON", kubetest.Says(404, "application/json", "{}"), []string{"the server could not find the requested resource"}},
		{"not found, but what?", kubetest.Says(404, "application/json", fmt.Sprintf(notFound, "null")), []string{""}},
		{"another name not found", kubetest.Says(404, "application/json", fmt.Sprintf(notFound, `{"name":"other","kind":"pods"}`)), []string{""}},
		{"another kind not found", kubetest.Says(404, "application/json", fmt.Sprintf(notFound, `{"name":"new","kind":"nodes"}`)), []string{""}},
		{"gone, in HTTP", kubetest.Says(410, "text/plain", "gone"), []string{""}},
		{"not JSON", kubetest.Says(200, "application/json", "<html>"), []string{""}},
		{"not an object", kubetest.Says(200, "application/json", "{}"), []string{""}},
		{"no object of this kind", kubetest.Says(200, "text/html", "<html>"), []string{""}},
		{"without UID", kubetest.Says(200, "application/json", `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"new"}}`),
			[]string{"the API server sent one of pods without name or UID"}},
		{"another object", kubetest.Says(200, "application/json", `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web-1","namespace":"team-a","uid":"uid-pod"}}`),
			[]string{"the API server sent team-a/web-1 when asked for team-a/new"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				s, c := runTeam(t, ClusterConfig{PodChecks: true})
				s.Fail("watch pods", kubetest.Hang)
				s.Compact()
				synctest.Wait()
				s.put(thing{resource: "pods", namespace: "team-a", name: "new", uid: "uid-new"})
				s.Fail("get pods", test.answer)
				_, err := c.Lookup(t.Context(), podOf("new", "uid-new"), nil)
				if isGone(err) || !has(err, append(test.want, "cluster one: cannot get pods team-a/new: ")...) {
					t.Errorf("error %v", err)
				}
				// Known objects are still available.
				if _, err := c.Lookup(t.Context(), webPod(), nil); err != nil {
					t.Errorf("a known pod: %v", err)
				}
				s.Fail("get pods", nil)
				if _, err := c.Lookup(t.Context(), podOf("new", "uid-new"), nil); err != nil {
					t.Errorf("once it works again: %v", err)
				}
				if got, want := c.Status().Gets, (GetCounts{Found: 1, Failed: 1}); got != want {
					t.Errorf("counts %+v", got)
				}
			})
		})
	}
}

// Without the API server, the last known objects are used. Other tokens are neither refused nor
// accepted.
func TestOutage(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true, NodeFallback: true, Nodes: true})
		if _, err := c.Lookup(t.Context(), webPod(), nil); err != nil {
			t.Fatal(err)
		}
		s.Refuse(true)
		s.Remove("pods", "team-a", "web-1")
		time.Sleep(time.Hour)
		if facts, err := c.Lookup(t.Context(), webPod(), nil); err != nil || facts.Annotations[key] != "team-a/web" || facts.Node.UID != "uid-node" || facts.NamespaceLabels["tier"] != "gold" {
			t.Errorf("a known pod: %+v, %v", facts, err)
		}
		node := webPod()
		node.Kubernetes.Node = oidc.ObjectRef{Name: "node-1", UID: "uid-again"}
		for name, id := range map[string]oidc.Identity{
			"pods team-a/none":            podOf("none", "uid-none"),
			"pods team-a/web-1":           podOf("web-1", "uid-again"),
			"pods team-a/orphan":          podOf("orphan", "uid-orphan"), // its node is not known
			"serviceaccounts team-a/none": identity("one", "team-a", "none", "uid-none"),
			"serviceaccounts team-b/web":  identity("one", "team-b", "web", "uid-web"),
			"nodes node-1":                node,
		} {
			if _, err := c.Lookup(t.Context(), id, nil); isGone(err) || !has(err, "cannot get "+name+": ", "connection refused") {
				t.Errorf("%s: %v", name, err)
			}
		}
		s.Refuse(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := c.Lookup(t.Context(), webPod(), nil); !isGone(err) {
			t.Errorf("what was deleted during the outage: %v", err)
		}
	})
}

// The other requests of Lookup can fail as well.
func TestCannotKnowNodeOrNamespace(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		forbidden := kubetest.Status(403, "Forbidden", "no")
		for _, resource := range []string{"namespaces", "nodes", "pods", "serviceaccounts"} {
			c := newTestCluster(t, s, ClusterConfig{NodeFallback: true, Nodes: true, NodeAddresses: true})
			s.Fail("get "+resource, forbidden)
			facts, err := c.Lookup(t.Context(), webPod(), nil)
			if isGone(err) || !has(err, "cannot get "+resource, `the verb "get" on "`+resource+`"`) || facts.NamespaceLabels != nil {
				t.Errorf("%s: %+v, %v", resource, facts, err)
			}
			s.Fail("get "+resource, nil)
		}
	})
}

func TestOneGETForMany(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{})
		s.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "made", uid: "uid-old"})
		release := make(chan struct{})
		s.Fail("get serviceaccounts", func(w http.ResponseWriter, r *http.Request) {
			<-release
			s.Get(w, r, "serviceaccounts", "team-a", "made")
		})
		var wg sync.WaitGroup
		lookup := func(uid string, gone bool) {
			wg.Go(func() {
				if _, err := c.Lookup(t.Context(), identity("one", "team-a", "made", uid), nil); isGone(err) != gone || (err != nil) != gone {
					t.Errorf("%s: %v", uid, err)
				}
			})
		}
		for range 100 {
			lookup("uid-old", false)
		}
		synctest.Wait()
		if n := s.Count("get"); n != 1 {
			t.Errorf("%d GETs", n)
		}
		// A token with a different UID may be newer than that GET. The response then proves nothing
		// about it.
		lookup("uid-dead", true)
		synctest.Wait()
		if n := s.Count("get"); n != 1 {
			t.Errorf("%d GETs for another UID", n)
		}
		close(release)
		wg.Wait()
	})
}

// A caller that gives up takes neither the response from others nor its place.
func TestCallerGivesUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{})
		release := make(chan struct{})
		s.Fail("get serviceaccounts", func(w http.ResponseWriter, r *http.Request) {
			<-release
			s.Get(w, r, "serviceaccounts", "team-a", "web")
		})
		reason := errors.New("the client went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		first, second := make(chan error), make(chan error)
		go func() { _, err := c.Lookup(ctx, webPod(), nil); first <- err }()
		synctest.Wait()
		go func() { _, err := c.Lookup(t.Context(), webPod(), nil); second <- err }()
		synctest.Wait()
		cancel(reason)
		if err := <-first; !errors.Is(err, reason) {
			t.Errorf("first: %v", err)
		}
		close(release)
		if err := <-second; err != nil {
			t.Errorf("second: %v", err)
		}
		if n := s.Count("get serviceaccounts"); n != 1 {
			t.Errorf("%d GETs", n)
		}
		synctest.Wait()
		if want := fair.NewShare(MaxWaiting); !reflect.DeepEqual(c.live.waiting, want) || len(c.live.flights) != 0 {
			t.Errorf("%+v wait for %d GETs", c.live.waiting, len(c.live.flights))
		}
	})
}

// A recreated namespace may have a different owner. While memory is behind, the labels of the old
// one must not count for the new one.
func TestNamespaceMadeAgainWhileWatchesAreBroken(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{})
		for _, request := range []string{"watch namespaces", "list namespaces", "watch serviceaccounts", "list serviceaccounts"} {
			s.Fail(request, kubetest.Status(http.StatusInternalServerError, "InternalError", "broken"))
		}
		s.Compact()
		synctest.Wait()
		s.put(thing{resource: "namespaces", name: "team-a", uid: "uid-ns-new", labels: map[string]string{"tier": "none"}},
			thing{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-web-new"})
		synctest.Wait()
		labels := func(uid string) string {
			t.Helper()
			facts := testkit.Value(c.Lookup(t.Context(), identity("one", "team-a", "web", uid), nil))(t)
			return facts.NamespaceLabels["tier"]
		}
		if got := labels("uid-web-new"); got != "none" {
			t.Errorf("the new namespace has the label tier=%s", got)
		}
		if got := labels("uid-web"); got != "gold" || s.Count("get namespaces") != 1 {
			t.Errorf("what was known last is not used: tier=%s", got)
		}
	})
}

// An API server that hangs must not take all places of the proxy. One namespace must not take all
// places of the waiting requests.
func TestBounds(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{})
		s.Fail("get serviceaccounts", kubetest.Hang)
		var wg sync.WaitGroup
		ask := func(namespace, name string) {
			wg.Go(func() {
				if _, err := c.Lookup(t.Context(), identity("one", namespace, name, "uid-none"), nil); err == nil || isGone(err) || errors.Is(err, errBusy) {
					t.Errorf("%s/%s: error %v", namespace, name, err)
				}
			})
			synctest.Wait()
		}
		busy := func(namespace, name string) {
			t.Helper()
			now := time.Now()
			_, err := c.Lookup(t.Context(), identity("one", namespace, name, "uid-none"), nil)
			if !errors.Is(err, errBusy) || time.Since(now) != 0 {
				t.Errorf("%s/%s after %s: %v", namespace, name, time.Since(now), err)
			}
			if _, err := c.Lookup(t.Context(), webPod(), nil); err != nil {
				t.Errorf("what is watched: %v", err)
			}
		}
		began := time.Now()
		const own = maxGets * 3 / 4
		for i := range own {
			ask("team-a", fmt.Sprint("sa-", i))
		}
		busy("team-a", "one-more")
		for i := range maxGets - own {
			ask(fmt.Sprint("team-", i), "one")
		}
		busy("team-z", "one")
		for range MaxWaiting - maxGets { // none, as it is
			ask("team-a", "sa-0")
		}
		busy("team-a", "sa-0")
		wg.Wait()
		if took := time.Since(began); took != maxGetTime {
			t.Errorf("they waited %s", took)
		}
		s.Fail("get serviceaccounts", nil)
		synctest.Wait()
		time.Sleep(time.Minute) // for the rate limit
		if _, err := c.Lookup(t.Context(), identity("one", "team-a", "one-more", "uid-none"), nil); !isGone(err) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Callers of one namespace that all wait for the same GET do not take all places either.
func TestBoundsOfCallers(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{})
		s.Fail("get serviceaccounts", kubetest.Hang)
		var busy atomic.Int64
		lookup := func(namespace string) {
			if _, err := c.Lookup(t.Context(), identity("one", namespace, "one", "uid-none"), nil); errors.Is(err, errBusy) {
				busy.Add(1)
			}
		}
		for range MaxWaiting {
			go lookup("team-a")
		}
		synctest.Wait()
		if n := busy.Load(); n != MaxWaiting/4 {
			t.Errorf("%d callers of one namespace are refused", n)
		}
		go lookup("team-b")
		synctest.Wait()
		if n := busy.Load(); n != MaxWaiting/4 {
			t.Error("a caller of another namespace is refused")
		}
		time.Sleep(maxGetTime)
	})
}

// GETs whose callers have given up count as well.
func TestBoundsOfAbandonedGETs(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{})
		s.Fail("get serviceaccounts", kubetest.Hang)
		ctx, cancel := context.WithCancel(t.Context())
		lookup := func(namespace string, i int) error {
			_, err := c.Lookup(ctx, identity("one", namespace, fmt.Sprint("sa-", i), "uid-none"), nil)
			return err
		}
		for i := range maxGets * 3 / 4 {
			go func() { _ = lookup("team-a", i) }()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := lookup("team-a", -1); !errors.Is(err, errBusy) {
			t.Errorf("one more: %v", err)
		}
		if err := lookup("team-b", -1); !errors.Is(err, context.Canceled) {
			t.Errorf("of another namespace: %v", err)
		}
		time.Sleep(maxGetTime)
		synctest.Wait()
		if !reflect.DeepEqual(c.live.gets, fair.NewShare(maxGets)) || !reflect.DeepEqual(c.live.waiting, fair.NewShare(MaxWaiting)) {
			t.Errorf("%+v GETs, %+v callers, when there are none", c.live.gets, c.live.waiting)
		}
	})
}

// A flood of invalid tokens of one namespace does not use up the rate of others.
func TestNamespacesTakeTurns(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		_, c := runTeam(t, ClusterConfig{PodChecks: true, Nodes: true})
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for i := range maxGets { // more than the limit of waiting requests
			flood.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					if _, err := c.Lookup(ctx, podOf("dead", fmt.Sprint(i, "-", k)), nil); errors.Is(err, errBusy) {
						time.Sleep(100 * time.Millisecond)
					}
				}
			})
		}
		time.Sleep(3 * time.Second) // the burst is used up
		id := identity("one", "bare", "web", "uid-bare")
		for i := range 20 {
			began := time.Now()
			id.Kubernetes.Pod = oidc.ObjectRef{Name: "dead", UID: fmt.Sprint(i)}
			if _, err := c.Lookup(t.Context(), id, nil); !isGone(err) || time.Since(began) > time.Second/4 {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
		// The result is the same if both request the same Node.
		id.Kubernetes.Pod = oidc.ObjectRef{}
		id.Kubernetes.Node = oidc.ObjectRef{Name: "node-1", UID: "uid-other"}
		first := webPod()
		first.Kubernetes.Pod, first.Kubernetes.Node = oidc.ObjectRef{}, id.Kubernetes.Node
		flood.Go(func() { _, _ = c.Lookup(ctx, first, nil) })
		synctest.Wait()
		began := time.Now()
		if _, err := c.Lookup(t.Context(), id, nil); !isGone(err) || time.Since(began) > time.Second/4 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		stop()
		flood.Wait()
		time.Sleep(maxGetTime)
	})
}

// Objects larger than any stored object fill no memory, however many are requested.
func TestBytesOfGETsAreBounded(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{})
		var active, most atomic.Int64
		s.Fail("get serviceaccounts", func(w http.ResponseWriter, _ *http.Request) {
			most.Store(max(most.Load(), active.Add(1)))
			defer active.Add(-1)
			time.Sleep(time.Second)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "`)
			_, _ = io.WriteString(w, strings.Repeat("a", maxGetBytes)+`", "uid": "u"}}`)
		})
		var wg sync.WaitGroup
		for i := range 2 * maxActiveGets {
			wg.Go(func() {
				_, err := c.Lookup(t.Context(), identity("one", "team-a", fmt.Sprint("sa-", i), "uid-none"), nil)
				if !has(err, "the answer is too long") {
					t.Errorf("error %v", err)
				}
			})
		}
		wg.Wait()
		if most.Load() != maxActiveGets {
			t.Errorf("%d GETs at a time", most.Load())
		}
	})
}
