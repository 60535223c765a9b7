package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestMain(m *testing.M) {
	// One of the handlers sleeps by the clock of the last failure anywhere, which may be the clock
	// of a different test.
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// team is a small cluster.
func team() []thing {
	return []thing{
		{resource: "namespaces", name: "team-a", uid: "uid-ns", labels: map[string]string{"tier": "gold"}},
		{resource: "namespaces", name: "bare", uid: "uid-ns-bare"},
		{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-web", annotations: map[string]string{key: "team-a/web", "other": "x"}},
		{resource: "serviceaccounts", namespace: "bare", name: "web", uid: "uid-bare"},
		{resource: "pods", namespace: "team-a", name: "web-1", uid: "uid-pod", nodeName: "node-1"},
		{resource: "pods", namespace: "team-a", name: "waits", uid: "uid-waits"},
		{resource: "pods", namespace: "team-a", name: "orphan", uid: "uid-orphan", nodeName: "node-9"},
		{resource: "nodes", name: "node-1", uid: "uid-node", labels: map[string]string{"pool": "a"}, addresses: [][2]string{
			{"InternalIP", "10.0.0.1"}, {"ExternalIP", "::ffff:192.0.2.1"}, {"Hostname", "10.9.9.9"}, {"InternalIP", "fe80::1%eth0"}, {"InternalIP", "x"},
		}},
	}
}

// webPod is the identity of a token of team-a/web that is bound to its pod.
func webPod() oidc.Identity {
	id := identity("one", "team-a", "web", "uid-web")
	id.Kubernetes.Pod = oidc.ObjectRef{Name: "web-1", UID: "uid-pod"}
	return id
}

// run starts Run and waits until everything is listed.
func run(t *testing.T, c *Cluster) {
	t.Helper()
	go c.Run(t.Context())
	synctest.Wait()
	for _, r := range c.Status().Resources {
		if !r.Synced || r.LastFailure != "" {
			t.Fatalf("not synced: %+v", r)
		}
	}
}

// runTeam watches the objects of a team.
func runTeam(t *testing.T, config ClusterConfig) (*apiServer, *Cluster) {
	t.Helper()
	s := newAPIServer(team()...)
	c := newTestCluster(t, s, config)
	run(t, c)
	return s, c
}

func has(err error, parts ...string) bool {
	return err != nil && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(err.Error(), part) })
}

// The facts and the refusals must be the same for watched and for requested objects.
func TestLookup(t *testing.T) {
	t.Parallel()
	all := ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true, NodeFallback: true, Nodes: true, NodeLabels: true, NodeAddresses: true}
	with := func(change func(*oidc.Identity)) oidc.Identity {
		id := webPod()
		id.Kubernetes.Node = oidc.ObjectRef{Name: "node-1", UID: "uid-node"}
		change(&id)
		return id
	}
	facts := exchange.Facts{Confirmed: true, Annotations: map[string]string{key: "team-a/web"}, NamespaceLabels: map[string]string{"tier": "gold"}}
	node := exchange.Node{Name: "node-1", UID: "uid-node"}
	whole := node
	whole.Labels = map[string]string{"pool": "a"}
	whole.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")}
	withNode := func(node *exchange.Node) exchange.Facts {
		f := facts
		f.Node = node
		return f
	}
	gone := func(kind exchange.Kind, name, uid, now string) error {
		return &exchange.GoneError{Kind: kind, Name: name, UID: uid, Now: now}
	}
	for _, test := range []struct {
		name   string
		config ClusterConfig
		id     oidc.Identity
		want   exchange.Facts
		err    error
	}{
		{"everything", all, with(func(*oidc.Identity) {}), withNode(&whole), nil},
		{"nothing that is optional", ClusterConfig{}, with(func(id *oidc.Identity) { id.Kubernetes.Pod.UID = "uid-none" }), exchange.Facts{Confirmed: true, NamespaceLabels: facts.NamespaceLabels}, nil},
		{"no annotations, no labels", all, identity("one", "bare", "web", "uid-bare"), exchange.Facts{Confirmed: true, NamespaceLabels: map[string]string{}}, nil},
		{"nodes without details", ClusterConfig{AnnotationKeys: []string{key}, Nodes: true}, with(func(*oidc.Identity) {}), withNode(&node), nil},
		{"nodes with labels", ClusterConfig{AnnotationKeys: []string{key}, NodeLabels: true}, with(func(*oidc.Identity) {}),
			withNode(&exchange.Node{Name: "node-1", UID: "uid-node", Labels: whole.Labels}), nil},
		{"nodes with addresses", ClusterConfig{AnnotationKeys: []string{key}, NodeAddresses: true}, with(func(*oidc.Identity) {}),
			withNode(&exchange.Node{Name: "node-1", UID: "uid-node", Addresses: whole.Addresses}), nil},

		{"no such account", all, with(func(id *oidc.Identity) { id.Kubernetes.ServiceAccount.Name = "none" }), exchange.Facts{}, gone("ServiceAccount", "team-a/none", "uid-web", "")},
		{"account made again", all, with(func(id *oidc.Identity) { id.Kubernetes.ServiceAccount.UID = "uid-old" }), exchange.Facts{}, gone("ServiceAccount", "team-a/web", "uid-old", "uid-web")},
		{"account of another namespace", all, with(func(id *oidc.Identity) { id.Kubernetes.Namespace = "bare" }), exchange.Facts{}, gone("ServiceAccount", "bare/web", "uid-web", "uid-bare")},
		{"no such pod", all, with(func(id *oidc.Identity) { id.Kubernetes.Pod.Name = "none" }), exchange.Facts{}, gone("Pod", "team-a/none", "uid-pod", "")},
		{"pod made again", all, with(func(id *oidc.Identity) { id.Kubernetes.Pod.UID = "uid-old" }), exchange.Facts{}, gone("Pod", "team-a/web-1", "uid-old", "uid-pod")},

		{"pod's node not there", all, with(func(id *oidc.Identity) { id.Kubernetes.Node.Name = "none" }), facts, nil},
		{"pod's node registered again", all, with(func(id *oidc.Identity) { id.Kubernetes.Node.UID = "uid-old" }), facts, nil},
		{"node without UID", all, with(func(id *oidc.Identity) { id.Kubernetes.Node.UID = "" }), facts, nil},
		{"bound to a node", all, with(func(id *oidc.Identity) { id.Kubernetes.Pod = oidc.ObjectRef{} }), withNode(&whole), nil},
		{"bound to a node that is not there", all, with(func(id *oidc.Identity) { id.Kubernetes.Pod, id.Kubernetes.Node.Name = oidc.ObjectRef{}, "none" }), exchange.Facts{}, gone("Node", "none", "uid-node", "")},
		{"bound to a node registered again", all, with(func(id *oidc.Identity) { id.Kubernetes.Pod, id.Kubernetes.Node.UID = oidc.ObjectRef{}, "uid-old" }), exchange.Facts{}, gone("Node", "node-1", "uid-old", "uid-node")},
		{"bound to a node that is not checked", ClusterConfig{}, with(func(id *oidc.Identity) { id.Kubernetes.Pod, id.Kubernetes.Node.UID = oidc.ObjectRef{}, "uid-old" }), exchange.Facts{Confirmed: true, NamespaceLabels: facts.NamespaceLabels}, nil},

		{"fallback", all, webPod(), withNode(&whole), nil},
		{"fallback is not asked for", ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true, Nodes: true}, webPod(), facts, nil},
		{"fallback without nodes", ClusterConfig{AnnotationKeys: []string{key}, NodeFallback: true}, webPod(), withNode(&exchange.Node{Name: "node-1"}), nil},
		{"fallback without pod", all, identity("one", "team-a", "web", "uid-web"), facts, nil},
		{"fallback to no such node", all, with(func(id *oidc.Identity) {
			id.Kubernetes.Pod, id.Kubernetes.Node = oidc.ObjectRef{Name: "orphan", UID: "uid-orphan"}, oidc.ObjectRef{}
		}), withNode(&exchange.Node{Name: "node-9"}), nil},
		{"fallback before a node is chosen", all, with(func(id *oidc.Identity) {
			id.Kubernetes.Pod, id.Kubernetes.Node = oidc.ObjectRef{Name: "waits", UID: "uid-waits"}, oidc.ObjectRef{}
		}), facts, nil},
		{"fallback to a pod made again", ClusterConfig{NodeFallback: true}, with(func(id *oidc.Identity) { id.Kubernetes.Pod.UID, id.Kubernetes.Node = "uid-old", oidc.ObjectRef{} }),
			exchange.Facts{}, gone("Pod", "team-a/web-1", "uid-old", "uid-pod")},
	} {
		for mode, watched := range map[string]bool{"asked": false, "watched": true} {
			t.Run(test.name+" "+mode, func(t *testing.T) {
				testkit.Bubble(t, func(t *testing.T) {
					c := newTestCluster(t, newAPIServer(team()...), test.config)
					if watched {
						run(t, c)
					}
					got, err := c.Lookup(t.Context(), test.id, nil)
					if !reflect.DeepEqual(got, test.want) || !reflect.DeepEqual(err, test.err) {
						t.Errorf("got %+v, %v\nwant %+v, %v", got, err, test.want, test.err)
					}
				})
			})
		}
	}
}

// Watched objects are not requested, and resources that no check needs are not watched.
func TestRequests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		config ClusterConfig
		want   []string
	}{
		{"least", ClusterConfig{NodeFallback: true}, []string{"serviceaccounts", "namespaces"}},
		{"pods", ClusterConfig{PodChecks: true}, []string{"serviceaccounts", "namespaces", "pods"}},
		{"nodes", ClusterConfig{Nodes: true}, []string{"serviceaccounts", "namespaces", "nodes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				s, c := runTeam(t, test.config)
				id := webPod()
				id.Kubernetes.Node = oidc.ObjectRef{Name: "node-1", UID: "uid-node"}
				if _, err := c.Lookup(t.Context(), id, nil); err != nil {
					t.Fatal(err)
				}
				for _, r := range test.want {
					if n := s.Count("watch " + r); n != 1 {
						t.Errorf("%d watches of %s", n, r)
					}
				}
				if len(s.Asked()) > 0 || s.UserAgent() != "pullpass" {
					t.Errorf("user agent %s, also asked: %v", s.UserAgent(), s.Asked())
				}
			})
		})
	}
}

// A token with an empty UID would match any object of the name.
func TestNoUID(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := newTestCluster(t, newAPIServer(team()...), ClusterConfig{PodChecks: true})
		id := webPod()
		id.Kubernetes.Pod.UID = ""
		if _, err := c.Lookup(t.Context(), id, nil); !has(err, "cluster one: the token names the Pod team-a/web-1 without UID") {
			t.Errorf("pod: %v", err)
		}
		if _, err := c.Lookup(t.Context(), identity("one", "team-a", "web", ""), nil); !has(err, "names the ServiceAccount team-a/web without UID") {
			t.Errorf("ServiceAccount: %v", err)
		}
	})
}

// Names become parts of a URL.
func TestNamesStayNames(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{})
		for _, id := range []oidc.Identity{
			identity("one", "team-a", "..", "uid-web"),
			identity("one", "team-a", "../pods/web-1", "uid-pod"),
			identity("one", "..", "web", "uid-web"),
			identity("one", "team-a", "web%2f", "uid-web"),
		} {
			if _, err := c.Lookup(t.Context(), id, nil); !has(err, "is not a name") {
				t.Errorf("%v: %v", id, err)
			}
		}
		if len(s.Asked()) > 0 {
			t.Errorf("requests %v", s.Asked())
		}
	})
}

func TestNamespaceBeingDeleted(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Remove("namespaces", "", "team-a")
		_, err := newTestCluster(t, s, ClusterConfig{}).Lookup(t.Context(), webPod(), nil)
		var gone *exchange.GoneError
		if errors.As(err, &gone) || !has(err, "cluster one: the namespace team-a is being deleted") {
			t.Errorf("error %v", err)
		}
	})
}

// The fallback sends one request for each pod, even when the name of a pod is reused.
func TestFallbackIsRemembered(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := runTeam(t, ClusterConfig{NodeFallback: true})
		lookup := func(id oidc.Identity, node string, gets int) {
			t.Helper()
			facts := testkit.Value(c.Lookup(t.Context(), id, nil))(t)
			got := ""
			if facts.Node != nil {
				got = facts.Node.Name
			}
			if n := s.Count("get pods"); got != node || n != gets {
				t.Errorf("node %q with %d GETs, want %q with %d", got, n, node, gets)
			}
		}
		lookup(webPod(), "node-1", 1)
		lookup(webPod(), "node-1", 0)
		again := webPod()
		again.Kubernetes.Pod.UID = "uid-again"
		s.put(thing{resource: "pods", namespace: "team-a", name: "web-1", uid: "uid-again"})
		lookup(again, "", 1) // no node is chosen yet, and that can change
		s.put(thing{resource: "pods", namespace: "team-a", name: "web-1", uid: "uid-again", nodeName: "node-2"})
		lookup(again, "node-2", 1)
		lookup(again, "node-2", 0)
	})
}

// Two clusters may have equal names, and after a restore from a backup equal
// UIDs.
func TestClustersAreKeptApart(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		other := newAPIServer(team()...)
		other.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-web", annotations: map[string]string{key: "of two"}})
		other.Remove("pods", "team-a", "web-1")
		one := newTestCluster(t, newAPIServer(team()...), ClusterConfig{AnnotationKeys: []string{key}, PodChecks: true})
		two := newTestCluster(t, other, ClusterConfig{Name: "two", AnnotationKeys: []string{key}, PodChecks: true})
		run(t, one)
		run(t, two)
		directory := Directory{"one": one, "two": two}
		id := webPod()
		if facts, err := directory.Lookup(t.Context(), id, nil); err != nil || facts.Annotations[key] != "team-a/web" {
			t.Errorf("one: %+v, %v", facts, err)
		}
		id.Cluster = "two"
		var gone *exchange.GoneError
		if _, err := directory.Lookup(t.Context(), id, nil); !errors.As(err, &gone) || gone.Kind != exchange.KindPod {
			t.Errorf("the pod of two: %v", err)
		}
		id.Kubernetes.Pod = oidc.ObjectRef{}
		if facts, err := directory.Lookup(t.Context(), id, nil); err != nil || facts.Annotations[key] != "of two" {
			t.Errorf("two: %+v, %v", facts, err)
		}
		id.Cluster = "three"
		if facts, err := directory.Lookup(t.Context(), id, nil); err != nil || !reflect.DeepEqual(facts, exchange.Facts{}) {
			t.Errorf("three: %+v, %v", facts, err)
		}
	})
}

func TestUID(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{})
		if uid, err := c.UID(t.Context(), "team-a", "web"); uid != "uid-web" || err != nil {
			t.Errorf("UID %q, %v", uid, err)
		}
		if uid, err := c.UID(t.Context(), "team-a", "none"); uid != "" || err != nil {
			t.Errorf("UID %q, %v", uid, err)
		}
		s.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "none", uid: "uid-new"})
		if uid, err := c.UID(t.Context(), "team-a", "none"); uid != "uid-new" || err != nil {
			t.Errorf("UID %q, %v", uid, err)
		}
		s.Refuse(true)
		if uid, err := c.UID(t.Context(), "team-a", "web"); uid != "" || !has(err, "cluster one: cannot get serviceaccounts team-a/web", "connection refused") {
			t.Errorf("UID %q, %v", uid, err)
		}
	})
}

const pageSize = 500 // of package pages

// All ServiceAccounts are the same from memory and page by page from the API server.
func TestList(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		for i := range 2 * pageSize {
			s.put(thing{resource: "serviceaccounts", namespace: "bare", name: fmt.Sprintf("sa-%d", i), uid: fmt.Sprintf("uid-%d", i)})
		}
		want := ServiceAccount{Namespace: "team-a", Name: "web", Annotations: map[string]string{key: "team-a/web"}, NamespaceLabels: map[string]string{"tier": "gold"}}
		check := func(c *Cluster) {
			t.Helper()
			listed, err := c.List(t.Context())
			all := listed.ServiceAccounts
			if i := slices.IndexFunc(all, func(a ServiceAccount) bool { return a.Name == "web" && a.Namespace == "team-a" }); err != nil || len(all) != 2*pageSize+2 || !reflect.DeepEqual(all[i], want) {
				t.Errorf("%d of them, %v", len(all), err)
			}
		}
		c := newTestCluster(t, s, ClusterConfig{AnnotationKeys: []string{key}})
		check(c)
		if n := s.Count("list serviceaccounts"); n != 3 {
			t.Errorf("listed in %d pages", n)
		}
		run(t, c)
		s.Count("list")
		check(c)
		if n := s.Count("list"); n != 0 {
			t.Errorf("what is in memory was listed again: %d requests", n)
		}
		s.Refuse(true)
		check(c)
		if _, err := newTestCluster(t, s, ClusterConfig{}).List(t.Context()); !has(err, "cluster one: ", "connection refused") {
			t.Errorf("of an API server that is down: %v", err)
		}
	})
}

func TestAnnotationKeys(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{AnnotationKeys: []string{key}})
		want := func(want map[string]string) {
			t.Helper()
			facts, err := c.Lookup(t.Context(), webPod(), nil)
			if err != nil || !maps.Equal(facts.Annotations, want) {
				t.Errorf("annotations %v, %v; want %v", facts.Annotations, err, want)
			}
		}
		set := func(keys ...string) error { return c.SetAnnotationKeys(t.Context(), keys) }
		// Before the first watch, nothing can be listed.
		if err := set("other"); err != nil || len(s.Asked()) > 0 {
			t.Fatalf("%v, %v", err, s.Asked())
		}
		want(map[string]string{"other": "x"})
		run(t, c)
		s.Count("")
		if err := set(key, "other"); err != nil || s.Count("watch serviceaccounts") != 1 {
			t.Fatal(err)
		}
		want(map[string]string{key: "team-a/web", "other": "x"})
		if n := s.Count("get"); n != 0 {
			t.Errorf("%d GETs: the new store is not filled", n)
		}
		// The new store is the only one, and it is kept up to date.
		s.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-web", annotations: map[string]string{"other": "y"}})
		synctest.Wait()
		want(map[string]string{"other": "y"})
		if n := s.Open("serviceaccounts"); n != 1 {
			t.Errorf("%d watches", n)
		}
		s.Refuse(true)
		if err := set("other"); err != nil {
			t.Errorf("a key that is dropped: %v", err)
		}
		for range 2 { // the second attempt must not treat the failure as a success
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := c.SetAnnotationKeys(ctx, []string{"other", "new"})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !has(err, "cluster one: cannot list the ServiceAccounts", "connection refused") {
				t.Errorf("during an outage: %v", err)
			}
		}
		want(map[string]string{"other": "y"})
		s.Refuse(false)
		time.Sleep(time.Minute)
		if n := s.Open("serviceaccounts"); n != 1 {
			t.Errorf("%d watches after changes that failed", n)
		}
		if err := set("other", "third"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := s.Open("serviceaccounts"); n != 1 {
			t.Errorf("%d watches after another change", n)
		}
		s.put(thing{resource: "serviceaccounts", namespace: "team-a", name: "web", uid: "uid-web", annotations: map[string]string{"other": "z", "new": "n"}})
		synctest.Wait()
		want(map[string]string{"other": "z"})
	})
}

// The replacement of a connection waits until the new one knows everything.
func TestSynced(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		for _, resource := range []string{"serviceaccounts", "namespaces", "pods", "nodes"} {
			s := newAPIServer(team()...)
			c := newTestCluster(t, s, ClusterConfig{PodChecks: true, Nodes: true, AnnotationKeys: []string{key}})
			s.Fail("watch "+resource, kubetest.Hang)
			go c.Run(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			err := c.Synced(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !has(err, "cluster one: "+resource+" are not listed yet") {
				t.Errorf("%s hang: %v", resource, err)
			}
			if !c.KeepsAnnotations([]string{key}) || c.KeepsAnnotations([]string{key, "other"}) {
				t.Error("not the annotations that are kept")
			}
		}
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{PodChecks: true, Nodes: true})
		s.Refuse(true)
		go c.Run(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := c.Synced(ctx); !has(err, "connection refused") {
			t.Errorf("during an outage: %v", err)
		}
		s.Refuse(false)
		if err := c.Synced(t.Context()); err != nil {
			t.Error(err)
		}
		for _, r := range c.Status().Resources {
			if !r.Synced {
				t.Errorf("%s are not synced", r.Resource)
			}
		}
	})
}

// An API server that was down from the start does not delay a policy, because memory has none of
// its ServiceAccounts.
func TestAnnotationKeysOfAClusterThatIsDown(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Refuse(true)
		c := newTestCluster(t, s, ClusterConfig{})
		go c.Run(t.Context())
		synctest.Wait()
		testkit.Must(t, c.SetAnnotationKeys(t.Context(), []string{key}))
		s.Refuse(false)
		testkit.Must(t, c.Synced(t.Context()))
		facts, err := c.Lookup(t.Context(), webPod(), nil)
		if err != nil || facts.Annotations[key] == "" {
			t.Errorf("annotations %v, %v", facts.Annotations, err)
		}
		time.Sleep(time.Minute) // the stopped reflector sleeps
		if n := s.Open("serviceaccounts"); n != 1 {
			t.Errorf("%d watches", n)
		}
	})
}

// Lists have no rate limit, because they follow one another.
func TestListsAreNotLimited(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Streams(false)
		c := newTestCluster(t, s, ClusterConfig{})
		run(t, c)
		began := time.Now()
		for i := range 50 {
			testkit.Must(t, c.SetAnnotationKeys(t.Context(), []string{fmt.Sprint("key-", i)}))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("50 lists took %s", took)
		}
	})
}

// A waiting caller can give up, even behind another change and at the end.
func TestAnnotationKeysWait(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		c := newTestCluster(t, s, ClusterConfig{})
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); c.Run(ctx) }()
		synctest.Wait()
		s.Fail("watch serviceaccounts", kubetest.Hang)
		first := make(chan error)
		go func() { first <- c.SetAnnotationKeys(t.Context(), []string{key}) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.SetAnnotationKeys(short, []string{key}); !errors.Is(err, context.DeadlineExceeded) || !has(err, "another change") {
			t.Errorf("second: %v", err)
		}
		stop()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("first: %v", err)
		}
		<-stopped
	})
}
