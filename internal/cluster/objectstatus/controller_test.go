package objectstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	patchRequests = "patch repositoryaccesses/status"
	patchPolicies = "patch accesspolicies/status"
)

// rig is an API server and the replicas that write status there.
type rig struct {
	*kubetest.Server
	t *testing.T
}

func in(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		r := &rig{kubetest.NewServer(), t}
		r.Put("namespaces", object("", "team-a", "uid-ns"))
		r.Put("serviceaccounts", object("team-a", "web", "uid-web"), object("team-a", "other", "uid-other"))
		test(t, r)
	})
}

func object(namespace, name, uid string) kubetest.Object {
	return kubetest.Object{"metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": uid}}
}

func (r *rig) ask(name, account string, repositories ...string) {
	o := object("team-a", name, "uid-"+name)
	if before := r.Object("repositoryaccesses", "team-a", name); before != nil {
		o["status"] = before["status"]
	}
	var all []any
	for _, repository := range repositories {
		all = append(all, repository)
	}
	o["spec"] = map[string]any{"serviceAccounts": []any{account}, "repositories": all, "actions": []any{"pull"}}
	r.Put("repositoryaccesses", o)
}

func (r *rig) rule(name, repository string) {
	o := object("", name, "uid-"+name)
	o["spec"] = map[string]any{"rules": []any{map[string]any{"name": "r", "subjects": []any{map[string]any{"namespaces": []any{"team-a"}}}, "requests": true,
		"allow": []any{map[string]any{"repositories": []any{repository}, "actions": []any{"pull"}}}}}}
	r.Put("accesspolicies", o)
}

// replica is a serving replica.
type replica struct {
	*Controller
	stop func()
}

func (r *rig) replica(name string, shared Shared) *replica {
	r.t.Helper()
	connection := &rest.Config{Host: "http://api.example.com", Transport: r.Server}
	within := []pattern.Pattern{"**"}
	cluster, err := kube.NewCluster(kube.ClusterConfig{Name: "one", REST: connection, Objects: kube.PolicyObjects{Policies: true, Requests: true, Within: within, Status: true}})
	testkit.Must(r.t, err)
	c, err := New(Config{Cluster: "one", Objects: cluster, Within: within, REST: connection, LeaseNamespace: "pullpass", Identity: name})
	testkit.Must(r.t, err)
	p, err := policy.Parse(policy.File{Name: "p", Data: []byte(filePolicy)})
	testkit.Must(r.t, err)
	c.Use(Serving{p, []string{"x"}, shared})
	ctx, cancel := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	running.Go(func() { cluster.Run(ctx) })
	running.Go(func() { c.Run(ctx) })
	once := sync.OnceFunc(func() { cancel(); running.Wait() })
	r.t.Cleanup(once)
	return &replica{c, once}
}

func (r *rig) status(resource, namespace, name string) (s policyobjects.RepositoryAccessStatus) {
	r.t.Helper()
	text, err := json.Marshal(r.Object(resource, namespace, name)["status"])
	testkit.Must(r.t, err)
	testkit.Must(r.t, json.Unmarshal(text, &s))
	return s
}

// says returns a short form of the status of a RepositoryAccess.
func (r *rig) says(name string) string {
	r.t.Helper()
	s := r.status("repositoryaccesses", "team-a", name)
	text := fmt.Sprint(s.ObservedGeneration)
	for _, c := range s.Conditions {
		text += " " + c.Reason
	}
	for _, found := range s.Repositories {
		text += fmt.Sprintf(" %s=%s%v%s", found.Repository, found.Granted, found.Rules, found.LastUsed)
	}
	return text
}

func (r *rig) expect(when, name, want string) {
	r.t.Helper()
	if got := r.says(name); got != want {
		r.t.Errorf("%s: %s, want %s", when, got, want)
	}
}

func (r *rig) expectWrites(when string, want int) {
	r.t.Helper()
	if n := r.Count(patchRequests) + r.Count(patchPolicies); n != want {
		r.t.Errorf("%s: %d writes, want %d", when, n, want)
	}
}

// passes is long enough for a Lease and the next pass.
const passes = 2*passInterval + 15*time.Second

func TestStatusFollows(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web", "team-b/**")
		r.rule("p", "by-object/**")
		first := r.replica("first", nil)
		time.Sleep(5 * time.Second)
		r.expect("at first", "web", "1 Valid PartlyGranted team-a/web=All[ceiling] team-b/**=Part[ceiling]")
		if s := r.status("accesspolicies", "", "p"); len(s.Conditions) != 1 || s.Conditions[0].Reason != "Valid" || s.ObservedGeneration != 1 || s.Repositories != nil {
			t.Errorf("%+v", s)
		}
		r.expectWrites("at first", 2)
		if s := first.Status(); !s.Leads || s.Writes != 2 || s.Failures+s.Refused != 0 {
			t.Errorf("%+v", s)
		}
		since := r.status("repositoryaccesses", "team-a", "web").Conditions[1].LastTransitionTime
		if _, err := time.Parse(time.RFC3339, since); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Minute)
		r.expectWrites("without a change", 0)

		r.ask("web", "web", "team-a/web", "by-object/x")
		time.Sleep(3 * time.Second)
		r.expect("after a change of the object", "web", "2 Valid AllGranted team-a/web=All[ceiling] by-object/x=All[p/r]")
		if now := r.status("repositoryaccesses", "team-a", "web").Conditions[1].LastTransitionTime; now == since {
			t.Errorf("%s is when it became another status", now)
		}
		r.rule("p", "elsewhere/**")
		time.Sleep(3 * time.Second)
		r.expect("after a change of the ceiling", "web", "2 Valid PartlyGranted team-a/web=All[ceiling] by-object/x=None[]")
		o := object("", "p", "uid-p")
		o["spec"] = map[string]any{"rules": []any{map[string]any{"name": "r"}}}
		r.Put("accesspolicies", o)
		time.Sleep(3 * time.Second)
		if s := r.status("accesspolicies", "", "p"); s.Conditions[0].Reason != "Invalid" || !strings.Contains(s.Conditions[0].Message, "rules[0]") {
			t.Errorf("%+v", s)
		}
		for reason, rule := range map[string]any{"Invalid": map[string]any{"name": "r"}, "Trial": map[string]any{"name": "r", "subjects": []any{map[string]any{"namespaces": []any{"*"}}}, "allow": []any{map[string]any{"repositories": []any{"**"}, "actions": []any{"pull"}}}}} {
			o := object("", "next", "uid-next")
			o["spec"] = map[string]any{"trial": true, "rules": []any{rule}}
			r.Put("accesspolicies", o)
			time.Sleep(3 * time.Second)
			if c := r.status("accesspolicies", "", "next").Conditions[0]; c.Reason != reason || !strings.Contains(c.Message, "it decides nothing (spec.trial)") {
				t.Errorf("%+v, want %s", c, reason)
			}
		}
		p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(strings.ReplaceAll(filePolicy, "shared/*", "by-object/*"))}))(t)
		first.Use(Serving{Policy: p, Services: []string{"x"}})
		time.Sleep(3 * time.Second)
		r.expect("after a change of the policy file", "web", "2 Valid AllGranted team-a/web=All[ceiling] by-object/x=All[ceiling]")
		r.Remove("serviceaccounts", "team-a", "web")
		time.Sleep(passes)
		r.expect("without the ServiceAccount", "web", "2 Valid NotGranted team-a/web=None[] by-object/x=None[]")
		r.Count("patch ")
		time.Sleep(10 * time.Minute)
		r.expectWrites("later", 0)
	})
}

// Neither a new leader nor a restart writes a status that is already up to date.
func TestLeadersChangeNothing(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		for i := range 30 {
			r.ask(fmt.Sprint("r", i), "web", "team-a/web", "others/app")
		}
		r.rule("p", "by-object/**")
		first := r.replica("first", nil)
		time.Sleep(10 * time.Second)
		r.expectWrites("at first", 31)
		second := r.replica("second", nil)
		time.Sleep(time.Minute)
		if first.stop(); r.Count("patch ") != 0 {
			t.Error("with two replicas, more is written")
		}
		time.Sleep(passes)
		if s := second.Status(); !s.Leads || s.Writes != 0 {
			t.Errorf("%+v", s)
		}
		second.stop()
		third := r.replica("third", nil)
		time.Sleep(passes)
		if s := third.Status(); !s.Leads || s.Writes != 0 {
			t.Errorf("%+v", s)
		}
		r.Compact() // a new list of everything
		time.Sleep(passes)
		r.expectWrites("after all", 0)
		r.ask("r0", "web", "team-a/other")
		time.Sleep(3 * time.Second)
		r.expectWrites("after one change", 1)
	})
}

// The leader looks at changed objects before the others, and writes slowly.
func TestWritesAreLimited(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		const many = 600
		for i := range many {
			r.ask(fmt.Sprintf("r%03d", i), "web", "team-a/web")
		}
		r.replica("first", nil)
		time.Sleep(20 * time.Second)
		if n := r.Count(patchRequests); n < 100 || n > 20*writesPerSecond+writesPerSecond {
			t.Errorf("%d writes in 20 s", n)
		}
		r.ask("late", "web", "team-a/web")
		time.Sleep(time.Second)
		r.expect("while others wait", "late", "1 Valid AllGranted team-a/web=All[ceiling]")
		time.Sleep(2 * time.Minute)
		if n := r.Count(patchRequests); n < many-210 || n > many {
			t.Errorf("%d more writes", n)
		}
	})
}

// A failure only costs time. It is retried with growing delays.
func TestFailures(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web")
		r.ask("web2", "web", "team-a/web")
		for _, failure := range []http.HandlerFunc{
			kubetest.Status(http.StatusForbidden, "Forbidden", "no"), kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"),
			kubetest.Status(http.StatusNotFound, "NotFound", "the server could not find the requested resource"), kubetest.Hang,
		} {
			r.Fail(patchRequests, failure)
			c := r.replica("first", nil)
			time.Sleep(12 * time.Minute)
			if s := c.Status(); s.Writes != 0 || s.Failures < 5 || s.Failures > 9 || !s.Leads {
				t.Errorf("%+v", s)
			}
			if n := r.Count(patchRequests); n > 9*4 { // client-go repeats some
				t.Errorf("%d attempts", n)
			}
			c.stop()
		}
		refused := 0
		r.Fail(patchRequests, func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "web2") {
				refused++
				kubetest.Status(http.StatusUnprocessableEntity, "Invalid", "no")(w, q)
				return
			}
			kubetest.Status(http.StatusConflict, "Conflict", "another")(w, q)
		})
		c := r.replica("first", nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait() // for a request that has just begun
		if s := c.Status(); s.Writes != 0 || s.Failures != 0 || s.Refused < 2 || int(s.Refused) != refused || refused > 12 {
			t.Errorf("%+v", s)
		}
		r.Fail(patchRequests, nil)
		time.Sleep(passes)
		r.expect("when all is well", "web", "1 Valid AllGranted team-a/web=All[ceiling]")
	})
}

// failWrites lets the writes of a status fail for which fails returns true, until the end of the test.
func (r *rig) failWrites(failure http.HandlerFunc, fails func(path string) bool) {
	var handle http.HandlerFunc
	handle = func(w http.ResponseWriter, q *http.Request) {
		if fails(q.URL.Path) {
			failure(w, q)
			return
		}
		r.Fail(patchRequests, nil)
		r.ServeHTTP(w, q)
		r.Fail(patchRequests, handle)
	}
	r.Fail(patchRequests, handle)
}

func (r *rig) askIn(namespace, name string) {
	o := object(namespace, name, "uid-"+namespace+name)
	o["spec"] = map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{"team-a/web"}, "actions": []any{"pull"}}
	r.Put("repositoryaccesses", o)
}

func (r *rig) isWritten(namespace, name string) bool {
	return r.status("repositoryaccesses", namespace, name).ObservedGeneration > 0
}

// etcd refuses an object that is too large with the status 500 of the API server.
var tooLargeForEtcd = kubetest.Status(http.StatusInternalServerError, "", "etcdserver: request is too large")

// A failure that the object itself causes delays no other namespace, and its own namespace only for
// a while.
func TestAFailureDelaysItsNamespace(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		var forbidden atomic.Bool
		r.failWrites(func(w http.ResponseWriter, q *http.Request) {
			if forbidden.Load() {
				kubetest.Status(http.StatusForbidden, "Forbidden", "a webhook")(w, q)
				return
			}
			tooLargeForEtcd(w, q)
		}, func(path string) bool { return strings.Contains(path, "/crowd/repositoryaccesses/bad") })
		for i := range 5 {
			r.askIn("crowd", fmt.Sprint("bad", i))
			r.askIn("crowd", fmt.Sprint("good", i))
			r.askIn("team-a", fmt.Sprint("web", i))
		}
		c := r.replica("first", nil)
		time.Sleep(10 * time.Second)
		for i := range 5 {
			if !r.isWritten("team-a", fmt.Sprint("web", i)) {
				t.Errorf("no status of web%d", i)
			}
		}
		time.Sleep(10 * time.Minute)
		for i := range 5 {
			if !r.isWritten("crowd", fmt.Sprint("good", i)) {
				t.Errorf("no status of good%d", i)
			}
		}
		r.Count("patch ")
		before := c.Status()
		time.Sleep(time.Hour)
		if n, s := r.Count(patchRequests), c.Status(); n < 10 || n > 15 || int(s.Failures-before.Failures) != n || s.Writes != 10 {
			t.Errorf("%d attempts, %+v", n, s)
		}
		forbidden.Store(true)
		for i := range 3 {
			r.askIn("team-a", fmt.Sprint("late", i))
			time.Sleep(3 * time.Second)
			if !r.isWritten("team-a", fmt.Sprint("late", i)) {
				t.Errorf("no status of late%d", i)
			}
			time.Sleep(10 * time.Minute)
		}
		r.Fail(patchRequests, nil)
		time.Sleep(2 * maxBackoff)
		for i := range 5 {
			if !r.isWritten("crowd", fmt.Sprint("bad", i)) {
				t.Errorf("no status of bad%d, which has become writable", i)
			}
		}
	})
}

// Failures in several namespaces are a failure of the API server, which gets few requests then.
func TestFailuresOfManyNamespaces(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		var bad atomic.Int64
		bad.Store(100)
		r.failWrites(tooLargeForEtcd, func(path string) bool {
			n := int64(1000)
			_, _ = fmt.Sscanf(path[strings.Index(path, "/namespaces/"):], "/namespaces/ns-%d/", &n)
			return n < bad.Load()
		})
		for i := range 30 {
			r.askIn(fmt.Sprint("ns-", i), "web")
		}
		c := r.replica("first", nil)
		time.Sleep(12 * time.Minute)
		if n, s := r.Count(patchRequests), c.Status(); n < 10 || n > 40 || int(s.Failures) != n {
			t.Errorf("%d attempts, %+v", n, s)
		}
		bad.Store(2) // from now on, it is the objects
		time.Sleep(2 * maxBackoff)
		for i := range 10 {
			r.askIn("team-a", fmt.Sprint("late", i))
			time.Sleep(7 * time.Second)
			if !r.isWritten("team-a", fmt.Sprint("late", i)) {
				t.Errorf("no status of late%d", i)
			}
			time.Sleep(53 * time.Second)
		}
		for i := range 30 {
			if r.isWritten(fmt.Sprint("ns-", i), "web") != (i >= 2) {
				t.Errorf("the status of ns-%d", i)
			}
		}
	})
}

// The status of a deleted object is not written to the recreated one.
func TestAnotherObjectOfTheName(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web")
		r.Fail(patchRequests, func(w http.ResponseWriter, q *http.Request) {
			r.Fail(patchRequests, nil)
			o := object("team-a", "web", "uid-again")
			o["spec"] = map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{"others/app"}, "actions": []any{"pull"}}
			r.Put("repositoryaccesses", o)
			r.ServeHTTP(w, q)
		})
		r.replica("first", nil)
		time.Sleep(10 * time.Second)
		r.expect("after all", "web", "1 Valid NotGranted others/app=None[]")
	})
}

// A status that is written but not seen yet is not written again at every change.
func TestWatchIsLate(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web")
		r.Fail(patchRequests, kubetest.Says(http.StatusOK, "application/json", `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}`))
		r.replica("first", nil)
		time.Sleep(5 * time.Second)
		for i := range 10 {
			r.rule("p", fmt.Sprint("by-object/", i))
			time.Sleep(2 * time.Second)
		}
		if n := r.Count(patchRequests); n != 1 {
			t.Errorf("%d writes", n)
		}
		time.Sleep(passes)
		if n := r.Count(patchRequests); n < 1 || n > 3 {
			t.Errorf("%d writes later: it may have got lost", n)
		}
	})
}

func TestNobodyWhoMayNotLeadWrites(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web")
		r.Fail("get leases", kubetest.Status(http.StatusForbidden, "Forbidden", "no"))
		c := r.replica("first", nil)
		time.Sleep(10 * time.Minute)
		r.expectWrites("without a Lease", 0)
		if c.Status().Leads {
			t.Error("it leads")
		}
	})
}

// shared is the shared memory of all replicas.
type shared struct {
	mu      sync.Mutex
	entries [][]byte
	fails   bool
}

func (s *shared) AddUses(_ context.Context, cluster string, entries [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails || cluster != "one" {
		return fmt.Errorf("down")
	}
	s.entries = append(s.entries, entries...)
	return nil
}

func (s *shared) Uses(_ context.Context, _, after string) ([][]byte, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return nil, after, fmt.Errorf("down")
	}
	n := 0
	_, _ = fmt.Sscan(after, &n)
	return slices.Clone(s.entries[n:]), fmt.Sprint(len(s.entries)), nil
}

func used(account, scope string) *exchange.Event {
	return &exchange.Event{Cluster: "one", Namespace: "team-a", ServiceAccount: &exchange.Object{Name: account}, Granted: []string{scope}}
}

func TestLastUse(t *testing.T) {
	for _, replicas := range []string{"one replica", "two replicas"} {
		t.Run(replicas, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				time.Sleep(23*time.Hour + 40*time.Minute) // no replica exists yet, and the day ends soon
				r.ask("web", "web", "team-a/web", "team-a/**", "shared/x")
				r.ask("other", "other", "team-a/web")
				all := &shared{}
				first := r.replica("first", all)
				time.Sleep(time.Minute)
				user := first
				if replicas == "two replicas" {
					user = r.replica("second", all)
					time.Sleep(time.Minute)
				}
				r.Count("patch ")
				for range 500 {
					user.Record(used("web", "repository:team-a/web:pull"))
					user.Record(used("web", "repository:shared/x:push"))
				}
				elsewhere := used("web", "repository:shared/x:pull")
				elsewhere.Cluster = "two"
				user.Record(elsewhere)
				user.Record(used("web", "registry:catalog:*"))
				user.Record(&exchange.Event{Cluster: "one", Namespace: "team-a"})
				time.Sleep(passes)
				r.expect("used", "web", "1 Valid AllGranted team-a/web=All[ceiling]2000-01-01 team-a/**=All[ceiling]2000-01-01 shared/x=All[ceiling]")
				r.expect("not used", "other", "1 Valid AllGranted team-a/web=All[ceiling]")
				r.expectWrites("used", 1)
				all.mu.Lock()
				if all.fails = true; len(all.entries) != 2 {
					t.Errorf("%d entries for others: %q", len(all.entries), all.entries)
				}
				all.mu.Unlock()
				for range 10 {
					time.Sleep(time.Minute)
					user.Record(used("web", "repository:team-a/web:pull"))
				}
				time.Sleep(passes)
				r.expectWrites("used again on the day", 0)
				time.Sleep(10 * time.Minute)
				user.Record(used("web", "repository:team-a/web:pull"))
				time.Sleep(passes)
				all.mu.Lock()
				all.fails = false
				all.mu.Unlock()
				time.Sleep(passes)
				r.expect("the next day", "web", "1 Valid AllGranted team-a/web=All[ceiling]2000-01-02 team-a/**=All[ceiling]2000-01-02 shared/x=All[ceiling]")
				r.expectWrites("the next day", 1)
				// The next leader has not seen the use, and reads it from the object.
				first.stop()
				user.stop()
				third := r.replica("third", nil)
				time.Sleep(passes)
				r.expectWrites("another leader", 0)
				third.stop()
				// Entries of others with a future day or a very old day are ignored.
				for _, day := range []string{"2000-01-09", "1999-01-01", "x", "", "2000-1-2"} {
					entry, _ := json.Marshal(use{"uid-other", "team-a/web", day})
					all.entries = append(all.entries, entry)
				}
				all.entries = append(all.entries, []byte("{"), []byte(`{"uid":"uid-other","repository":"team-b/web","day":"2000-01-02"}`))
				fourth := r.replica("fourth", all)
				time.Sleep(passes)
				leads := fourth.Status().Leads
				if fourth.stop(); fourth.uses.last == "" || !leads {
					t.Error("no replica has read the uses")
				}
				r.expectWrites("invalid uses", 0)
			})
		})
	}
}

// A writer of the status can set a future day of use. The next look at the object corrects it, and
// later uses count.
func TestLastUseIsNotToCome(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.ask("web", "web", "team-a/web")
		o := r.Object("repositoryaccesses", "team-a", "web")
		o["status"] = map[string]any{"repositories": []any{map[string]any{"repository": "team-a/web", "granted": "All", "lastUsed": "2999-12-31"}}}
		r.Put("repositoryaccesses", o)
		first := r.replica("first", nil)
		time.Sleep(passes)
		r.expect("a day to come", "web", "1 Valid AllGranted team-a/web=All[ceiling]2000-01-01")
		r.expectWrites("a day to come", 1)
		first.stop()
		time.Sleep(24 * time.Hour)
		second := r.replica("second", nil)
		time.Sleep(passes)
		r.expectWrites("not used since", 0)
		second.Record(used("web", "repository:team-a/web:pull"))
		time.Sleep(passes)
		r.expect("used", "web", "1 Valid AllGranted team-a/web=All[ceiling]2000-01-02")
	})
}

// A flood of uses does not block, and the known uses are bounded.
func TestUsesAreBounded(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		u := newUses(Config{Cluster: "one", Now: time.Now})
		c := &Controller{cluster: "one", uses: u}
		for range 2 * maxEvents {
			c.Record(used("web", "repository:team-a/web:pull"))
		}
		for i := range maxKnown + 10 {
			u.note(use{"uid", fmt.Sprint(i), "2000-01-01"})
		}
		if len(u.events) != maxEvents || len(u.days) != maxKnown {
			t.Errorf("%d, %d", len(u.events), len(u.days))
		}
		if _, isNew := u.note(use{"uid", "0", "1999-12-31"}); isNew {
			t.Error("an earlier day is later")
		}
		time.Sleep((daysKept + 1) * 24 * time.Hour)
		if u.forgetOld(); len(u.days) != 0 {
			t.Errorf("%d", len(u.days))
		}
	})
}

// A namespace with many objects and frequent changes does not delay others. Each write takes a
// tenth of a second here, by the limit of the client.
func TestNamespacesTakeTurns(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		const many = 200
		crowd := func(repository string) {
			for i := range many {
				o := object("crowd", fmt.Sprint("r", i), fmt.Sprint("uid-crowd-", i))
				o["spec"] = map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{repository}, "actions": []any{"pull"}}
				r.Put("repositoryaccesses", o)
			}
		}
		crowd("crowd/a")
		for i := range 5 {
			r.ask(fmt.Sprint("web", i), "web", "team-a/web")
		}
		r.replica("one", nil)
		time.Sleep(5 * time.Second) // after the Lease
		for i := range 5 {
			r.expect("at first", fmt.Sprint("web", i), "1 Valid AllGranted team-a/web=All[ceiling]")
		}
		if n := r.Count(patchRequests); n < 10 || n > 100 {
			t.Errorf("%d writes: the crowd should wait, and have every second turn", n)
		}
		time.Sleep(10 * time.Second)
		crowd("crowd/b")
		r.ask("web0", "web", "team-b/web")
		time.Sleep(5 * time.Second)
		r.expect("after a change", "web0", "2 Valid NotGranted team-b/web=None[]")
		time.Sleep(30 * time.Second)
		if n := r.Count(patchRequests); n < many {
			t.Errorf("%d writes: the crowd has no turns", n)
		}
	})
}
