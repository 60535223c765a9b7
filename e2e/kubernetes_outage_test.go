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

// phase is what the API server is doing.
type phase = int32

const (
	down phase = iota
	back       // or coming back
)

// asker presents one token again and again while the API server goes and comes.
type asker struct {
	name, token string
	// expected are the outcomes that are right for an answer that comes in a phase.
	expected func(phase) []string

	asked   int
	got     map[string]int
	slowest time.Duration
}

func (a *asker) run(ctx context.Context, host *pullpass.Host, now *atomic.Int32, scopes []string) error {
	a.got = map[string]int{}
	for ctx.Err() == nil {
		start := time.Now()
		answer, err := host.Try(context.WithoutCancel(ctx), service, a.token, scopes...)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		a.asked++
		a.slowest = max(a.slowest, time.Since(start))
		got := outcome(answer)
		a.got[got]++
		if p := now.Load(); !slices.Contains(a.expected(p), got) {
			return fmt.Errorf("%s: %q in phase %d; %s", a.name, got, p, answer.Audit.Message)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// outage is a way in which an API server fails and comes back.
type outage struct {
	name       string // of the namespaces
	begin, end func(testing.TB)
}

func testCrash(t *testing.T, s *site) { testOutage(t, s, outage{"crash", s.Crash, s.Recover}) }

func testHang(t *testing.T, s *site) { testOutage(t, s, outage{"hang", s.Hang, s.Resume}) }

// outageTime is longer than Pullpass waits for one answer of an API server, whatever the way in which it does not come.
const outageTime = 4 * time.Second

// testOutage lets an API server go away under load and come back. What Pullpass knows it goes on serving, of everything else it
// says that it cannot know it, and it never says anything wrong.
func testOutage(t *testing.T, s *site, o outage) {
	plain, asks, leaving := o.name+"-plain", o.name+"-asks", o.name+"-leaving"
	scopes := []string{own(plain), own(asks), own(leaving), sharedScope}
	grants := map[string]string{plain: own(plain), asks: own(asks) + " " + sharedScope, leaving: own(leaving)}
	for namespace := range grants {
		s.workload(t, namespace)
	}
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"}))
	var askers []*asker
	for _, namespace := range []string{plain, asks} {
		for n := range 2 {
			pod := s.CreatePod(t, namespace, fmt.Sprintf("known-%d", n), puller, "node1")
			askers = append(askers, &asker{
				name: "known, " + namespace, token: s.podToken(t, pod),
				expected: func(phase) []string { return []string{grants[namespace]} },
			})
		}
	}
	leavingToken := s.podToken(t, s.CreatePod(t, leaving, "known", puller, "node1"))
	relay := s.Relay(t)
	through := s.AccessThrough(t, relay)
	proxy := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Kubernetes.KubeconfigFile = through.KubeconfigFile }))
	host := proxy.Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, leavingToken, scopes...), grants[leaving])

	// Pullpass is cut off first, so that there are tokens of pods, and of a ServiceAccount, that it cannot know.
	relay.Cut()
	s.CreateServiceAccount(t, plain, "late", nil)
	const unknown = "503 kubernetes_unavailable"
	var late []*asker
	for namespace, account := range map[string]string{plain: "late", asks: puller} {
		token := s.podToken(t, s.CreatePod(t, namespace, "late", account, "node1"))
		for range 4 {
			late = append(late, &asker{
				name: "unknown, " + namespace, token: token,
				expected: func(p phase) []string {
					if p == down {
						return []string{unknown}
					}
					// The pod is asked for by name; the annotation is what the watch last said.
					return []string{unknown, grants[namespace]}
				},
			})
		}
	}

	var now atomic.Int32
	now.Store(down)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, a := range slices.Concat(askers, late) {
		running.Go(func() {
			if err := a.run(ctx, host, &now, scopes); err != nil {
				t.Error(err)
			}
		})
	}
	began := time.Now()
	o.begin(t)
	relay.Restore()
	time.Sleep(outageTime)
	now.Store(back)
	o.end(t)
	s.Delete(t, accountPath(leaving))
	t.Logf("the API server was away for %v", time.Since(began).Round(time.Millisecond))

	within(t, reconnectLimit, "what was deleted at once after that is refused", func() bool {
		got := outcome(host.Ask(t, service, leavingToken, scopes...))
		if got != grants[leaving] && got != "403 service_account_gone" {
			t.Fatalf("%q", got)
		}
		return got == "403 service_account_gone"
	})
	for _, a := range late {
		within(t, reconnectLimit, a.name+": granted", func() bool { return host.Ask(t, service, a.token, scopes...).Status == http.StatusOK })
	}
	stop()
	running.Wait()
	for _, a := range slices.Concat(askers, late) {
		t.Logf("%s: %d times, slowest %v: %v", a.name, a.asked, a.slowest.Round(time.Millisecond), a.got)
		if a.slowest > outageTime {
			t.Errorf("%s: an answer after %v", a.name, a.slowest)
		}
		if a.name[0] == 'u' && a.got[unknown] == 0 {
			t.Errorf("%s: never asked while the API server was away", a.name)
		}
	}
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": nil}))
	turns(t, host, askers[2].token, sharedScope, sharedScope, "")
}
