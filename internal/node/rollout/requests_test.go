package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each request of an agent fails once. The agent reports it, unless it asks again at once, and the
// node gets there all the same.
func TestEachRequestFails(t *testing.T) {
	t.Parallel()
	for _, removes := range []bool{false, true} {
		for number := 1; ; number++ {
			isDone := false
			t.Run(fmt.Sprint(removes, number), func(t *testing.T) {
				root := t.TempDir()
				synctest.Test(t, func(t *testing.T) { isDone = failRequest(t, root, number, removes) })
			})
			if isDone || t.Failed() {
				break
			}
		}
	}
}

func failRequest(t *testing.T, root string, number int, removes bool) (isDone bool) {
	f := &fleet{t: t, api: kubetest.NewServer(), root: root, nodes: map[string]*simulated{}}
	f.provider.Store("registry.example.com")
	n := f.add("node-00", true)
	n.isAlone = false
	f.api.Merge("nodes", "", n.name, kubetest.Object{"metadata": kubetest.Object{"creationTimestamp": time.Now().Add(-newLimit).UTC().Format(time.RFC3339)}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.schedule(ctx); close(done) }()
	if removes {
		f.start()
		time.Sleep(10 * time.Minute)
		n.halt()
	}
	count, what, polls := 0, "", false
	n.failing = func(r *http.Request) error {
		if strings.Contains(r.URL.Path, "/events") {
			return nil
		}
		if count++; count != number {
			return nil
		}
		what = r.Method + " " + r.URL.Path
		state := n.record().State
		polls = strings.HasSuffix(r.URL.Path, "/pods") || r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/nodes/") && state != "" && state != Ready
		return errors.New("the request is lost")
	}
	if removes {
		n.start(nil)
	} else {
		f.start()
	}
	time.Sleep(15 * time.Minute)
	n.halt()
	synctest.Wait()
	if isDone = what == ""; !isDone {
		if told := n.log.String() + strings.Join(f.events(), "\n"); polls == strings.Contains(told, "the request is lost") {
			t.Errorf("%s is lost (it is repeated at once: %t), and this is said: %s", what, polls, told)
		}
	}
	if r := n.record(); n.installed() == removes || (r.State == Ready) == removes || n.tainted() || f.stopped() != nil {
		t.Errorf("%s: installed %t, %+v, tainted %t, stopped %v", what, n.installed(), r, n.tainted(), f.stopped())
	}
	if want := map[bool]int{false: 1, true: 2}[removes]; len(f.restarted()) != want {
		t.Errorf("%s: restarts %q", what, f.restarted())
	}
	// The turn expires if its end cannot be written.
	lease, _ := f.api.Object("leases", namespace, progress.LeaseName)["spec"].(kubetest.Object)
	if holder := lease["holderIdentity"]; holder != "" && !strings.Contains(n.log.String(), "cannot say that the turn of this node has ended") {
		t.Errorf("%s: the turn is still that of %q", what, holder)
	}
	stop()
	<-done
	_ = n.tree.Close()
	time.Sleep(time.Minute) // events that are on their way
	return isDone
}

func TestRequiredFields(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		whole := Config{REST: f.rest(), Namespace: namespace, Node: n.name, Tree: n.tree, Watcher: n}
		testkit.Value(New(whole))(t)
		for name, remove := range map[string]func(*Config){
			"REST": func(c *Config) { c.REST = nil }, "Namespace": func(c *Config) { c.Namespace = "" }, "Node": func(c *Config) { c.Node = "" },
			"Tree": func(c *Config) { c.Tree = nil }, "Watcher": func(c *Config) { c.Watcher = nil },
		} {
			c := whole
			remove(&c)
			if _, err := New(c); err == nil || !strings.Contains(err.Error(), "are required") {
				t.Errorf("without %s: error %v", name, err)
			}
		}
		whole.REST = &rest.Config{Host: "http://[api"}
		if _, err := New(whole); err == nil {
			t.Error("an address that is none is accepted")
		}
		if _, err := progress.List(t.Context(), whole.REST, namespace); err == nil {
			t.Error("an address that is none has Nodes")
		}
		whole.REST = &rest.Config{Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{CAFile: "missing.pem"}}
		if _, err := New(whole); err == nil || !strings.Contains(err.Error(), "missing.pem") {
			t.Errorf("a CA that is missing: %v", err)
		}
	})
}

// A time after the year 9999 has five digits in JSON, and no client can read it. Root on a node can write it into its Node.
func TestATimeThatIsNotReadable(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		at := metav1.NewTime(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))
		nodes := &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "hostile", ManagedFields: []metav1.ManagedFieldsEntry{{Time: &at}}}}, {ObjectMeta: metav1.ObjectMeta{Name: "other"}}}}
		scheme := runtime.NewScheme()
		testkit.Must(t, corev1.AddToScheme(scheme))
		f.api.Fail("list nodes", func(w http.ResponseWriter, r *http.Request) {
			content := runtime.ContentTypeJSON
			if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
				content = runtime.ContentTypeProtobuf
			}
			info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), content)
			w.Header().Set("Content-Type", content)
			nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
			testkit.Must(t, info.Serializer.Encode(nodes, w))
		})
		overview, err := progress.List(t.Context(), f.rest(), namespace)
		if err != nil || len(overview.Nodes) != 2 {
			t.Errorf("%d nodes, error %v", len(overview.Nodes), err)
		}
	})
}

// All nodes say why they wait if the API server, or its policy, refuses the Lease.
func TestALeaseThatIsRefused(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		f.api.Fail("create leases", kubetest.Status(http.StatusUnprocessableEntity, "Invalid", "leaseTransitions: must be greater than or equal to 0"))
		f.start()
		time.Sleep(5 * time.Minute)
		for _, n := range f.nodes {
			if r := n.record(); r.State != Waiting || r.Reason != "the Lease pullpass-node-install: leaseTransitions: must be greater than or equal to 0" {
				t.Errorf("%s: %+v", n.name, r)
			}
		}
		f.api.Fail("create leases", nil)
		time.Sleep(5 * time.Minute)
		if f.count(Ready) != 2 {
			t.Errorf("%d are ready", f.count(Ready))
		}
	})
}

// The agent is ready when the Node has its Record.
func TestReady(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.api.Refuse(true)
		f.start()
		time.Sleep(time.Minute)
		if err := n.agent.Ready(); err == nil {
			t.Error("it is ready without the API server")
		}
		f.api.Refuse(false)
		time.Sleep(10 * time.Minute)
		if err := n.agent.Ready(); err != nil {
			t.Errorf("error %v", err)
		}
	})
}

func TestAnAgentWithoutItsNode(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.name = "missing"
		f.api.Put("nodes", f.api.Object("nodes", "", "node-00")) // for schedule
		n.start(nil)
		time.Sleep(time.Minute)
		n.halt()
		if text := n.log.String(); !strings.Contains(text, "there is no Node missing; --node has to be the name") {
			t.Error(text)
		}
	})
}

// All nodes are listed, by pages, and an answer that is missing is an error.
func TestListFails(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		for i := range 500 + 2 {
			f.api.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": fmt.Sprintf("node-%04d", i), "uid": fmt.Sprint(i)}})
		}
		if o := testkit.Value(progress.List(t.Context(), f.rest(), namespace))(t); len(o.Nodes) != 502 {
			t.Errorf("%d nodes", len(o.Nodes))
		}
		for _, request := range []string{"list nodes", "get leases"} {
			f.api.Fail(request, kubetest.Status(http.StatusForbidden, "Forbidden", request+" is forbidden"))
			if _, err := progress.List(t.Context(), f.rest(), namespace); err == nil || !strings.Contains(err.Error(), request) {
				t.Errorf("%s: error %v", request, err)
			}
			f.api.Fail(request, nil)
		}
	})
}

// A Node that was recreated meanwhile is a different one.
func TestANodeThatIsRecreated(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.start(nil)
		n.halt()
		c := n.agent.cluster
		node := testkit.Value(c.get(t.Context(), n.name))(t)
		if fresh, err := c.again(t.Context(), node); err != nil || fresh.UID != node.UID {
			t.Errorf("%v, %v", fresh, err)
		}
		for name, change := range map[string]func(*corev1.Node){
			"recreated": func(n *corev1.Node) { n.UID = "another" }, "deleted": func(n *corev1.Node) { n.Name = "missing" },
		} {
			was := node.DeepCopy()
			change(was)
			if _, err := c.again(t.Context(), was); err == nil || !strings.Contains(err.Error(), "was deleted or recreated") {
				t.Errorf("%s: error %v", name, err)
			}
		}
		// Conflicts without end are an error, and the lost Node too.
		f.api.Fail("patch nodes", kubetest.Status(http.StatusConflict, "Conflict", "it has been modified"))
		if _, err := c.write(t.Context(), node, &Record{State: Ready}, true); err == nil || !strings.Contains(err.Error(), "was changed by others 5 times in a row") {
			t.Errorf("error %v", err)
		}
		f.api.Fail("get nodes", kubetest.Status(http.StatusForbidden, "Forbidden", "not yours"))
		if _, err := c.write(t.Context(), node, &Record{State: Ready}, true); err == nil || !strings.Contains(err.Error(), "not yours") {
			t.Errorf("error %v", err)
		}
	})
}

// The start of a state stays while the state does, and a Record that is not JSON counts as none.
func TestTheRecord(t *testing.T) {
	t.Parallel()
	then, now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC)
	before := Record{State: Waiting, Since: then}
	if r := (Record{State: Waiting}).Following(before, now); !r.Since.Equal(then) {
		t.Errorf("%+v", r)
	}
	if r := (Record{State: Ready}).Following(before, now); !r.Since.Equal(now) {
		t.Errorf("%+v", r)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{progress.Key: `{"state":"ready","since":1}`}}}
	if r := progress.RecordOf(node); r != (Record{}) {
		t.Errorf("%+v", r)
	}
	// Only what differs is written.
	r := Record{State: Ready, Since: then}
	text := string(testkit.Value(json.Marshal(r))(t))
	node.Annotations[progress.Key], node.Labels = text, map[string]string{progress.Key: string(Waiting)}
	if change := string(changeOf(node, &r, true)); strings.Contains(change, "annotations") || !strings.Contains(change, `"labels":{"`+progress.Key+`":"ready"}`) {
		t.Error(change)
	}
	node.Labels[progress.Key] = string(Ready)
	if change := changeOf(node, &r, true); change != nil {
		t.Errorf("%s", change)
	}
}

// Six repairs within a minute are a contest, which ends five minutes later.
func TestWhenRepairsAreAContest(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		apart time.Duration
		wait  time.Duration
	}{{repairWindow / (maxRepairs - 1), 0}, {repairWindow/(maxRepairs-1) - time.Nanosecond, repairInterval}} {
		k, wait := &keeper{}, time.Duration(0)
		if k.fight(start) != nil {
			t.Error("a contest without a repair")
		}
		now := start
		for i := range maxRepairs {
			now = start.Add(time.Duration(i) * test.apart)
			wait = k.repaired(make([]nodeinstall.Change, 1), now)
		}
		if wait != test.wait {
			t.Errorf("%s apart: the next one after %s", test.apart, wait)
		}
		if test.wait > 0 && (k.fight(now.Add(driftInterval-1)) == nil || k.fight(now.Add(driftInterval)) != nil) {
			t.Errorf("the contest: %v, %v", k.fight(now.Add(driftInterval-1)), k.fight(now.Add(driftInterval)))
		}
	}
}

// While an installation changes the node, a repair waits for it.
func TestRepairWhileOthersChangeTheNode(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		time.Sleep(10 * time.Minute)
		n.halt()
		testkit.Must(t, n.agent.Repair(t.Context())) // nothing to do
		if text := n.log.String(); strings.Contains(text, "another program changed") {
			t.Error(text)
		}
		unlock, _, err := n.tree.Lock("/run/pullpass-node-install.lock", true)
		testkit.Must(t, err)
		go func() {
			time.Sleep(3 * time.Second)
			testkit.Must(t, unlock())
		}()
		// It may look for the lock in the moment in which that is removed, and then once more.
		if isBack, took := n.spoil(); !isBack || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("put back: %t, after %s", isBack, took)
		}
		again, _, err := n.tree.Lock("/run/pullpass-node-install.lock", true)
		testkit.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		testkit.Must(t, n.tree.Remove(pluginFile, look(t, n, pluginFile)))
		if err := n.agent.Repair(ctx); err != nil || time.Since(start) != 10*time.Second {
			t.Errorf("error %v, after %s", err, time.Since(start))
		}
		testkit.Must(t, again())
		testkit.Must(t, n.agent.Repair(t.Context()))
	})
}
