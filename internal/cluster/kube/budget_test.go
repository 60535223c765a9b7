package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The oldest claims, up to the first without room, are within the budget. The order of changes does
// not matter, and a list has the same result.
func TestLedger(t *testing.T) {
	t.Parallel()
	const budget = 100
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		l, all := ledger{}, map[string]*claim{}
		within := map[string]bool{} // according to moved
		for i := range 60 {
			var moved []*claim
			if len(all) > 0 && random.IntN(3) == 0 {
				name := slices.Sorted(maps.Keys(all))[random.IntN(len(all))]
				moved = l.remove(all[name], budget)
				delete(all, name)
				delete(within, name)
			} else {
				name := fmt.Sprint("o", i)
				all[name] = &claim{created: int64(random.IntN(9)), uid: name, key: objectKey{unique.Make("n"), name}, cost: 1 + random.IntN(40)}
				moved = l.insert(all[name], budget)
			}
			for _, c := range moved {
				within[c.uid] = l.holds(c)
			}
			spent, isFull := 0, false
			listed := newSieve(budget)
			items := map[string]*item{}
			for _, c := range slices.SortedFunc(maps.Values(all), (*claim).compare) {
				isFull = isFull || spent+c.cost > budget
				if !isFull {
					spent += c.cost
				}
				if l.holds(c) == isFull || within[c.uid] == isFull {
					t.Fatalf("%+v is within the budget: %v, moved %v, want %v", c, l.holds(c), within[c.uid], !isFull)
				}
				items[c.uid] = &item{key: c.key, object: object{uid: c.uid, claim: c}}
			}
			for _, i := range items { // in no order
				listed.add(i)
			}
			for _, i := range items {
				if i.object.beyond == l.holds(i.object.claim) {
					t.Fatalf("a list keeps %+v: %v", i.object.claim, !i.object.beyond)
				}
			}
		}
	}
}

// An object that has room again is requested. It is kept only if the claim is for this version.
func TestRefillOne(t *testing.T) {
	t.Parallel()
	made := func(uid string, size int) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: "sa", Namespace: "n", UID: types.UID(uid), Annotations: map[string]string{key: strings.Repeat("x", size)},
		}}
	}
	absent := errors.New("it cannot be asked")
	for name, test := range map[string]struct {
		answer    *metav1.PartialObjectMetadata  // nil: absent
		before    func(r *resource, k objectKey) // runs before the request
		meanwhile func(r *resource, k objectKey)
		isDone    bool
		want      string // what is kept
	}{
		"it is there":             {answer: made("uid", 10), isDone: true, want: "xxxxxxxxxx"},
		"it was recreated":        {answer: made("other", 10)},
		"it has grown":            {answer: made("uid", 20)},
		"it asks for nothing now": {answer: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sa", Namespace: "n", UID: "uid"}}},
		"it cannot be asked":      {},
		"it has changed before":   {before: func(r *resource, k objectKey) { r.objects[k] = object{uid: "other"} }, isDone: true},
		"it has changed meanwhile": {
			answer: made("uid", 10), meanwhile: func(r *resource, k objectKey) { r.objects[k] = object{uid: "other"} }, isDone: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &resource{budget: 1000, keep: keepAnnotations([]string{key}), ledgers: ledgers{}, objects: map[objectKey]object{}, refill: make(chan struct{}, 1)}
			first := testkit.Value(r.convert(made("uid", 10)))(t)
			r.put(first.key, first.object.stripped(), true)
			isAsked := false
			r.fetch = func(context.Context, string, string) (metav1.Object, error) {
				isAsked = true
				if test.meanwhile != nil {
					test.meanwhile(r, first.key)
				}
				if test.answer == nil {
					return nil, absent
				}
				return test.answer, nil
			}
			if test.before != nil {
				test.before(r, first.key)
			}
			if isDone := r.refillOne(t.Context(), first.object.claim); isDone != test.isDone || isAsked != (test.before == nil) {
				t.Errorf("it is done: %v, asked: %v", isDone, isAsked)
			}
			if kept := r.objects[first.key]; kept.text[key] != test.want || kept.beyond != (test.want == "" && kept.uid == "uid") {
				t.Errorf("kept %+v", kept)
			}
		})
	}
}

// The claim of a changed object has no effect on it. A missing object is requested once.
func TestSettle(t *testing.T) {
	t.Parallel()
	r := &resource{budget: 1000, ledgers: ledgers{}, objects: map[objectKey]object{}, refill: make(chan struct{}, 1)}
	k := objectKey{unique.Make("n"), "sa"}
	old := &claim{uid: "old", key: k, cost: 10}
	r.put(k, object{uid: "old", claim: old, beyond: true}, true)
	r.settle(old)
	if n := r.missing.Len(); n != 1 {
		t.Errorf("%d are missing", n)
	}
	r.put(k, object{uid: "new", claim: &claim{uid: "new", key: k, cost: 10}, text: map[string]string{key: "x"}}, true)
	if r.settle(old) || r.objects[k].beyond {
		t.Errorf("the claim of the old one changed it to %+v", r.objects[k])
	}
	r.put(k, object{}, false)
	if len(r.objects) != 0 || len(r.ledgers) != 0 {
		t.Errorf("%d objects, %d namespaces, when there is none", len(r.objects), len(r.ledgers))
	}
}

// asking returns a ServiceAccount with an annotation of size bytes that requests a repository.
func asking(namespace, name string, created time.Time, size int) kubetest.Object {
	return kubetest.Object{"metadata": kubetest.Object{
		"name": name, "namespace": namespace, "uid": "uid-" + name, "creationTimestamp": created.UTC().Format(time.RFC3339),
		"annotations": map[string]string{key: namespace + "/" + name + strings.Repeat(" ", size)},
	}}
}

// listedOrStreamed runs a test with an API server that streams lists, and with one that does not.
func listedOrStreamed(t *testing.T, test func(t *testing.T, s *apiServer)) {
	t.Parallel()
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				s := newAPIServer(team()...)
				s.Streams(streams)
				test(t, s)
			})
		})
	}
}

var then = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// Only the part of an annotation is kept that shows that it is too long.
func TestLongAnnotationIsCut(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("serviceaccounts", asking("bare", "long", then, 255<<10))
		c := newTestCluster(t, s, ClusterConfig{AnnotationKeys: []string{key}})
		run(t, c)
		for _, ask := range []string{"from memory", "live"} {
			facts, err := c.Lookup(t.Context(), identity("one", "bare", "long", "uid-long"), nil)
			if n := len(facts.Annotations[key]); err != nil || n != policy.MaxAnnotationBytes+1 {
				t.Errorf("%s: %d bytes are kept, %v", ask, n, err)
			}
			c = newTestCluster(t, s, ClusterConfig{AnnotationKeys: []string{key}})
		}
	})
}

// Too many labels count as unknown: a denial that reads them refuses.
func TestTooManyLabels(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		labels := map[string]string{"tier": "gold"}
		for i := range 1000 {
			labels[fmt.Sprint("example.com/", i)] = strings.Repeat("x", 63)
		}
		s := newAPIServer(team()...)
		s.put(thing{resource: "namespaces", name: "bare", uid: "uid-ns-bare", labels: labels})
		c := newTestCluster(t, s, ClusterConfig{})
		run(t, c)
		facts, err := c.Lookup(t.Context(), identity("one", "bare", "web", "uid-bare"), nil)
		if err != nil || facts.NamespaceLabels != nil {
			t.Errorf("%d labels, %v", len(facts.NamespaceLabels), err)
		}
		const text = `{apiVersion: pullpass.dev/v1beta1, kind: AccessPolicy, rules: [{name: r, anonymous: true, allow: [{repositories: [a], actions: [pull]}]}], deny: [{name: d, subjects: [{namespaceSelector: {matchLabels: {quarantine: "yes"}}}]}]}`
		p, err := policy.Parse(policy.File{Name: "p", Data: []byte(text)})
		testkit.Must(t, err)
		id := identity("one", "bare", "web", "uid-bare")
		if d := p.Decide(policy.Subject{Identity: &id, NamespaceLabels: facts.NamespaceLabels}, "", nil); d.DeniedBy != "d" {
			t.Errorf("not denied: %+v", d)
		}
	})
}

// The annotations of one namespace are bounded. The oldest ServiceAccounts keep theirs, the others
// get a message, and other namespaces are not affected.
func TestBudgetOfAnnotations(t *testing.T) {
	listedOrStreamed(t, func(t *testing.T, s *apiServer) {
		const size = 8000
		const room = annotationBudget / (size + annotationsCost + textCost + len("bare/sa-999"))
		const all = room + 20
		for i := range all { // the last names are the oldest
			s.Put("serviceaccounts", asking("bare", fmt.Sprintf("sa-%03d", i), then.Add(-time.Duration(i)*time.Hour), size))
		}
		c := newTestCluster(t, s, ClusterConfig{AnnotationKeys: []string{key}})
		run(t, c)
		expect := func(when string, i int, want string) {
			t.Helper()
			name := fmt.Sprintf("sa-%03d", i)
			facts, err := c.Lookup(t.Context(), identity("one", "bare", name, "uid-"+name), nil)
			if got := strings.TrimSpace(facts.Annotations[key]); err != nil || got != want {
				t.Errorf("%s: %s has %q, %v; want %q", when, name, got, err, want)
			}
		}
		first := all - room // the first name that has room
		expect("at first", all-1, fmt.Sprintf("bare/sa-%03d", all-1))
		expect("at first", first, fmt.Sprintf("bare/sa-%03d", first))
		expect("at first", first-1, policy.AnnotationBeyond)
		expect("at first", 0, policy.AnnotationBeyond)
		if facts, err := c.Lookup(t.Context(), webPod(), nil); err != nil || facts.Annotations[key] != "team-a/web" {
			t.Errorf("another namespace: %v, %v", facts.Annotations, err)
		}
		listed, err := c.List(t.Context())
		if i := slices.IndexFunc(listed.ServiceAccounts, func(a ServiceAccount) bool { return a.Name == "sa-000" }); err != nil || listed.ServiceAccounts[i].Annotations[key] != policy.AnnotationBeyond {
			t.Errorf("not told in a list: %v", err)
		}

		// A newer object does not affect older ones.
		s.Put("serviceaccounts", asking("bare", "sa-new", then.Add(time.Hour), size))
		synctest.Wait()
		expect("with a newer one", first, fmt.Sprintf("bare/sa-%03d", first))
		// An older object that grows takes room from the newest.
		s.Put("serviceaccounts", asking("bare", fmt.Sprintf("sa-%03d", all-1), then.Add(-time.Duration(all-1)*time.Hour), size+192))
		synctest.Wait()
		expect("when an old one has grown", all-1, fmt.Sprintf("bare/sa-%03d", all-1))
		// A deleted object leaves room for the oldest one without room.
		s.Remove("serviceaccounts", "bare", fmt.Sprintf("sa-%03d", all-1))
		s.Remove("serviceaccounts", "bare", fmt.Sprintf("sa-%03d", all-2))
		time.Sleep(5 * time.Second)
		expect("after two have gone", first-1, fmt.Sprintf("bare/sa-%03d", first-1))
		expect("after two have gone", first-2, fmt.Sprintf("bare/sa-%03d", first-2))
		expect("after two have gone", first-3, policy.AnnotationBeyond)
		// While the API server cannot be asked, nothing changes. The requests are made up for
		// later.
		s.Fail("get serviceaccounts", kubetest.Status(500, "InternalError", "starting"))
		s.Remove("serviceaccounts", "bare", fmt.Sprintf("sa-%03d", all-3))
		time.Sleep(5 * time.Second)
		expect("while it cannot be asked", first-3, policy.AnnotationBeyond)
		s.Fail("get serviceaccounts", nil)
		time.Sleep(10 * time.Second)
		expect("when it can be asked again", first-3, fmt.Sprintf("bare/sa-%03d", first-3))
		// A new list has the same result.
		s.Compact()
		time.Sleep(10 * time.Second)
		expect("after a list", first-3, fmt.Sprintf("bare/sa-%03d", first-3))
		expect("after a list", first-4, policy.AnnotationBeyond)
	})
}

// largest is a RepositoryAccess as large as its schema allows.
func largest(namespace string, i int) kubetest.Object {
	name := fmt.Sprintf("ra-%05d", i)
	accounts, repositories := []any{"web"}, []any{}
	for k := range 63 {
		accounts = append(accounts, fmt.Sprintf("%02d%s", k, strings.Repeat("a", 251)))
	}
	for k := range 127 {
		repository := fmt.Sprintf("%s/%03d", namespace, k)
		repositories = append(repositories, repository+strings.Repeat("a", 255-len(repository)))
	}
	repositories = append(repositories, namespace+"/"+name)
	return kubetest.Object{
		"metadata": kubetest.Object{"name": name, "namespace": namespace, "uid": "uid-" + name, "generation": 1, "creationTimestamp": then.Add(time.Duration(i) * time.Second).Format(time.RFC3339)},
		"spec":     map[string]any{"serviceAccounts": accounts, "repositories": repositories, "actions": []any{"pull"}},
	}
}

// Any number of RepositoryAccess objects in one namespace fills no memory and does not affect other
// namespaces. Their status says that they do not count.
func TestBudgetOfRequests(t *testing.T) {
	listedOrStreamed(t, func(t *testing.T, s *apiServer) {
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		const all = 90
		for i := range all {
			s.Put("repositoryaccesses", largest("bare", i))
		}
		objects := bothObjects
		objects.Within, objects.Status = append(slices.Clone(objects.Within), "bare/**"), true
		c := newTestCluster(t, s, ClusterConfig{Objects: objects})
		run(t, c)
		room := len(c.RequestsIn("bare"))
		kept := 0
		for _, o := range c.objects.requests.objects {
			if !o.beyond {
				kept += o.claim.cost
			}
		}
		if room < 10 || room > all/2 || kept > requestBudget+2000 {
			t.Fatalf("%d objects have room, with %d bytes", room, kept)
		}
		bare := identity("one", "bare", "web", "uid-bare")
		expect := func(when, repository, want string) {
			t.Helper()
			synctest.Wait()
			if got := gets(t, c, bare, repository); got != want {
				t.Errorf("%s: %s: %s, want %s", when, repository, got, want)
			}
			if got := gets(t, c, webPod(), "team-a/web"); got != "[ceiling]" {
				t.Errorf("%s: another namespace: %s", when, got)
			}
		}
		nth := func(i int) string { return fmt.Sprintf("bare/ra-%05d", i) }
		expect("at first", nth(0), "[ceiling]")
		expect("at first", nth(room), "[]")
		last, _ := c.PolicyObject(ObjectRef{requestsResource, "bare", fmt.Sprintf("ra-%05d", room)})
		if !last.Beyond || last.Request != nil || last.Remembered == nil || last.Asks.Repositories != nil {
			t.Errorf("%+v", last)
		}
		facts, err := c.Lookup(t.Context(), bare, nil)
		if err != nil || facts.Objects.Beyond != all-room {
			t.Errorf("%d are beyond, %v", facts.Objects.Beyond, err)
		}
		p, err := policy.Parse(policy.File{Name: "p", Data: []byte(filePolicy)})
		testkit.Must(t, err)
		scope := registryauth.Scope{Type: "repository", Name: nth(room), Actions: []string{"pull"}}
		d := p.Decide(policy.Subject{Identity: &bare, NamespaceLabels: facts.NamespaceLabels, Objects: facts.Objects}, "", []registryauth.Scope{scope})
		if want := fmt.Sprintf("%d RepositoryAccess objects of the namespace count for nothing: older ones take all that is kept of one namespace", all-room); !strings.Contains(d.Scopes[0].Reason, want) {
			t.Errorf("the reason is %q", d.Scopes[0].Reason)
		}
		if facts, err := c.Lookup(t.Context(), webPod(), nil); err != nil || facts.Objects.Beyond != 0 {
			t.Errorf("another namespace: %d are beyond, %v", facts.Objects.Beyond, err)
		}

		for i := range 8 { // so that one more has room after the first 512 patterns
			s.Remove("repositoryaccesses", "bare", fmt.Sprintf("ra-%05d", i))
		}
		time.Sleep(20 * time.Second)
		if got := len(c.RequestsIn("bare")); got != room {
			t.Errorf("%d have room after others have gone, want %d", got, room)
		}
		for i := 8; i < room; i++ {
			s.Remove("repositoryaccesses", "bare", fmt.Sprintf("ra-%05d", i))
		}
		time.Sleep(20 * time.Second)
		expect("after others have gone", nth(room), "[ceiling]")
	})
}

// A call that gathers the requests of a namespace does not block other namespaces.
func TestRequestsAreGatheredOutsideOfLocks(t *testing.T) {
	t.Parallel()
	o := &policyObjects{namespaces: map[string]*namespaceRequests{"busy": {}, "other": {}}}
	inside, done := make(chan struct{}), make(chan struct{})
	go o.namespaces["busy"].gather.Do(func() {
		close(inside)
		<-done
	})
	<-inside
	defer close(done)
	if said, err := o.of("other", "web"); err != nil || said.Requests != nil {
		t.Error(said, err)
	}
}
