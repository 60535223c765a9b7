package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// A watch that was cut for longer than etcd keeps what happened is told 410 Gone, and everything has to be read anew.
func testWatchExpires(t *testing.T, _ *site) {
	const namespace = "expired"
	s := startSite(t, cluster.Options{OldEtcd: true, NoWatchCache: true})
	s.workload(t, namespace)
	pod := s.CreatePod(t, namespace, "web", puller, "node1")
	token := s.podToken(t, pod)
	doomed := s.podToken(t, s.CreatePod(t, namespace, "doomed", puller, "node1"))
	relay := s.Relay(t)
	through := s.AccessThrough(t, relay)
	proxy := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Kubernetes.KubeconfigFile = through.KubeconfigFile }))
	host := proxy.Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, doomed, own(namespace), sharedScope), own(namespace))
	before := s.Get(t, "/api/v1/namespaces/"+namespace+"/serviceaccounts").Text("metadata", "resourceVersion")

	relay.Cut()
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"}))
	s.Delete(t, "/api/v1/namespaces/"+namespace+"/pods/doomed")
	compacted := s.Compact(t)
	expired := s.Get(t, "/api/v1/serviceaccounts?watch=true&timeoutSeconds=5&resourceVersion="+before)
	if expired.Text("type") != "ERROR" || expired.Text("object", "reason") != "Expired" {
		t.Fatalf("a watch from before the compaction at %s is not told that it has expired: %v", compacted, expired)
	}
	expect(t, "while cut, what was known", host.Ask(t, service, token, own(namespace), sharedScope), own(namespace))

	relay.Restore()
	within(t, reconnectLimit, "the change is seen", func() bool {
		return outcome(host.Ask(t, service, token, own(namespace), sharedScope)) == own(namespace)+" "+sharedScope
	})
	within(t, reconnectLimit, "so is that the pod was deleted", func() bool {
		return outcome(host.Ask(t, service, doomed, own(namespace))) == "403 pod_gone"
	})
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{"pullpass.dev/repositories": nil}))
	turns(t, host, token, sharedScope, sharedScope, "")
}

// After a restore of etcd, a watch from the last known revision would miss everything until the cluster is there again.
func testEtcdRestored(t *testing.T, _ *site) {
	const namespace = "restored"
	s := startSite(t, cluster.Options{})
	s.workload(t, namespace)
	token := s.podToken(t, s.CreatePod(t, namespace, "web", puller, "node1"))
	restore := s.Snapshot(t)
	proxy := s.pullpass(t, s.config())
	host := proxy.Host(t, pullpass.From{})
	for i := range 200 { // more than the API server and this test write afterwards
		s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{"example.com/lost": fmt.Sprint(i)}))
	}
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"}))
	within(t, reconnectLimit, "the last change before the restore is seen", func() bool {
		return outcome(host.Ask(t, service, token, own(namespace), sharedScope)) == own(namespace)+" "+sharedScope
	})

	restore()
	s.Delete(t, accountPath(namespace))
	within(t, reconnectLimit, "what was deleted after the restore is refused", func() bool {
		return outcome(host.Ask(t, service, token, own(namespace))) == "403 service_account_gone"
	})
}

// outage is a way in which an API server fails and comes back.
type outage struct {
	name       string // of the namespaces
	begin, end func(testing.TB)
}

func testCrash(t *testing.T, s *site) { testOutage(t, s, outage{"crash", s.Crash, s.Recover}) }

func testHang(t *testing.T, s *site) { testOutage(t, s, outage{"hang", s.Hang, s.Resume}) }

const (
	// answerLimit is generous for a response, also of the API server to Pullpass. Cached facts must not wait for the API server: if they
	// did, the answer would be unavailable.
	answerLimit = 20 * time.Second

	unavailable = "503 kubernetes_unavailable"
)

// testOutage lets an API server go away under load and come back. What Pullpass knows it goes on serving, of everything else it
// says that it cannot know it, and it never says anything wrong.
func testOutage(t *testing.T, s *site, o outage) {
	plain, asks, leaving := o.name+"-plain", o.name+"-asks", o.name+"-leaving"
	load := &load{scopes: []string{own(plain), own(asks), own(leaving), sharedScope}}
	grants := map[string]string{plain: own(plain), asks: own(asks) + " " + sharedScope, leaving: own(leaving)}
	for namespace := range grants {
		s.workload(t, namespace)
	}
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"}))
	pod := func(namespace, name, account string) string {
		return s.podToken(t, s.CreatePod(t, namespace, name, account, "node1"))
	}
	for _, namespace := range []string{plain, asks} {
		load.add("known, "+namespace, pod(namespace, "known", puller), grants[namespace])
	}
	leavingToken, asksToken := pod(leaving, "known", puller), pod(asks, "known-too", puller)
	relay := s.Relay(t)
	through := s.AccessThrough(t, relay)
	config := s.config(func(c *pullpass.Cluster) { c.Kubernetes.KubeconfigFile = through.KubeconfigFile })
	proxy := s.pullpass(t, config)
	host := proxy.Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, leavingToken, load.scopes...), grants[leaving])

	// Pullpass is cut off first, so that there are tokens of pods, and of a ServiceAccount, that it cannot know.
	relay.Cut()
	s.CreateServiceAccount(t, plain, "late", nil)
	late := map[string]string{plain: pod(plain, "late", "late"), asks: pod(asks, "late", puller)}
	for namespace, token := range late {
		load.add("unknown, "+namespace, token, unavailable, grants[namespace])
	}

	began := time.Now()
	stop := load.start(t, proxy)
	defer stop()
	o.begin(t)
	relay.Restore()
	meanwhile := pullpass.Start(t, s.ca, config)
	load.awaitAnswers(t)
	if answer := meanwhile.Host(t, pullpass.From{}).Ask(t, service, late[plain], load.scopes...); answer.Status != http.StatusServiceUnavailable {
		t.Errorf("started without an API server: %d", answer.Status)
	}
	if ready, report := meanwhile.Ready(t); ready {
		t.Errorf("started without an API server, but ready: %s", report)
	}
	load.back.Store(true)
	o.end(t)
	s.Delete(t, accountPath(leaving))
	t.Logf("the API server was away for %v", time.Since(began).Round(time.Millisecond))

	within(t, reconnectLimit, "what was deleted at once after that is refused", func() bool {
		got := outcome(host.Ask(t, service, leavingToken, load.scopes...))
		if got != grants[leaving] && got != "403 service_account_gone" {
			t.Fatalf("%q", got)
		}
		return got == "403 service_account_gone"
	})
	for namespace, token := range late {
		within(t, reconnectLimit, "what was not known is granted", func() bool {
			return outcome(host.Ask(t, service, token, load.scopes...)) == grants[namespace]
		})
	}
	stop()
	load.check(t)
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": nil}))
	turns(t, host, asksToken, sharedScope, sharedScope, "")
	within(t, reconnectLimit, "the one that was started meanwhile is ready", func() bool { ready, _ := meanwhile.Ready(t); return ready })
	expect(t, "started meanwhile", meanwhile.Host(t, pullpass.From{}).Ask(t, service, late[plain], load.scopes...), grants[plain])
}

// load asks for tokens all the time while an API server goes and comes.
type load struct {
	scopes []string
	askers []*asker
	back   atomic.Bool // the API server is back, or coming back
}

// asker presents one token again and again.
type asker struct {
	name, token string
	away, after string // what it must get while the API server is away; afterwards it may be the second

	asked   atomic.Int64
	slowest time.Duration
	got     map[string]int
}

// add adds askers with one token. They get the last of the outcomes, or the first one before the API server is back.
func (l *load) add(name, token string, outcomes ...string) {
	for range 4 {
		l.askers = append(l.askers, &asker{
			name: name, token: token, away: outcomes[0], after: outcomes[len(outcomes)-1], got: map[string]int{},
		})
	}
}

// start lets all ask until stop is called, which waits for their last answers.
func (l *load) start(t *testing.T, proxy *pullpass.Proxy) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, a := range l.askers {
		host := proxy.Host(t, pullpass.From{})
		running.Go(func() {
			for ctx.Err() == nil {
				if err := l.ask(host, a); err != nil {
					t.Errorf("%s: %v", a.name, err)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// awaitAnswers waits until each asker has a response to a request that it sent after the call.
func (l *load) awaitAnswers(t *testing.T) {
	t.Helper()
	before := map[*asker]int64{}
	for _, a := range l.askers {
		before[a] = a.asked.Load()
	}
	within(t, 3*answerLimit, "every asker has responses", func() bool {
		return t.Failed() || !slices.ContainsFunc(l.askers, func(a *asker) bool { return a.asked.Load() < before[a]+2 }) // one may be on its way
	})
}

func (l *load) ask(host *pullpass.Host, a *asker) error {
	start := time.Now()
	answer, err := host.Try(context.Background(), service, a.token, l.scopes...)
	if err != nil {
		return err
	}
	a.asked.Add(1)
	a.slowest = max(a.slowest, time.Since(start))
	got := outcome(answer)
	a.got[got]++
	if back := l.back.Load(); got != a.away && (!back || got != a.after) {
		return fmt.Errorf("%q (the API server is back: %t); %s", got, back, answer.Audit.Message)
	}
	return nil
}

func (l *load) check(t *testing.T) {
	t.Helper()
	for _, a := range l.askers {
		t.Logf("%s: %d times, slowest %v: %v", a.name, a.asked.Load(), a.slowest.Round(time.Millisecond), a.got)
		if a.slowest > answerLimit {
			t.Errorf("%s: an answer after %v", a.name, a.slowest)
		}
		if a.got[a.away] == 0 {
			t.Errorf("%s: never got %q", a.name, a.away)
		}
	}
}
