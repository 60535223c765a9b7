package e2e

import (
	"context"
	"fmt"
	"net/http"
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

// phase is what the API server is doing, as far as an asker knows: it may have changed when the answer comes.
type phase = int32

const (
	up phase = iota
	down
	back
)

// asker presents one token again and again while the API server goes and comes.
type asker struct {
	name, token string
	// expected are the outcomes that are right from one phase to another.
	expected func(from, to phase) []string

	asked   int
	got     map[string]int
	slowest time.Duration
}

func (a *asker) run(ctx context.Context, host *pullpass.Host, now *atomic.Int32, scopes []string) error {
	a.got = map[string]int{}
	for ctx.Err() == nil {
		from, start := now.Load(), time.Now()
		answer, err := host.Try(context.WithoutCancel(ctx), service, a.token, scopes...)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		a.asked++
		a.slowest = max(a.slowest, time.Since(start))
		got := outcome(answer)
		a.got[got]++
		right := false
		for _, want := range a.expected(from, now.Load()) {
			right = right || got == want
		}
		if !right {
			return fmt.Errorf("%s: %q in phase %d to %d; %s", a.name, got, from, now.Load(), answer.Audit.Message)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// The API server goes away under load and comes back. What Pullpass knows it goes on serving, about everything else it says that
// it cannot know, and never anything wrong.
func testCrash(t *testing.T, s *site) {
	const plain, asks, leaving = "crash-plain", "crash-asks", "crash-leaving"
	scopes := []string{own(plain), own(asks), own(leaving), sharedScope}
	grants := map[string]string{plain: own(plain), asks: own(asks) + " " + sharedScope, leaving: own(leaving)}
	relay := s.Relay(t)
	through := s.AccessThrough(t, relay)
	var askers []*asker
	for namespace := range grants {
		s.workload(t, namespace)
	}
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": "shared/base"}))
	always := func(outcomes ...string) func(phase, phase) []string {
		return func(phase, phase) []string { return outcomes }
	}
	for _, namespace := range []string{plain, asks} {
		for n := range 2 {
			pod := s.CreatePod(t, namespace, fmt.Sprintf("known-%d", n), puller, "node1")
			askers = append(askers, &asker{name: "known, " + namespace, token: s.podToken(t, pod), expected: always(grants[namespace])})
		}
	}
	leavingToken := s.podToken(t, s.CreatePod(t, leaving, "known", puller, "node1"))
	proxy := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Kubernetes.KubeconfigFile = through.KubeconfigFile }))
	host := proxy.Host(t, pullpass.From{})
	expect(t, "before", host.Ask(t, service, leavingToken, scopes...), grants[leaving])

	// Pullpass is cut off first, so that there are tokens of pods, and of a ServiceAccount, that it cannot know.
	relay.Cut()
	const unknown = "503 kubernetes_unavailable"
	late := func(namespace, account string) {
		pod := s.CreatePod(t, namespace, "late", account, "node1")
		askers = append(askers, &asker{
			name: "unknown, " + namespace + " " + account, token: s.podToken(t, pod),
			expected: func(_, to phase) []string {
				if to == back {
					return []string{unknown, own(namespace), grants[namespace]}
				}
				return []string{unknown}
			},
		})
	}
	s.CreateServiceAccount(t, plain, "late", nil)
	late(plain, "late")
	late(asks, puller)

	var now atomic.Int32
	now.Store(down)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, a := range askers {
		running.Go(func() {
			if err := a.run(ctx, host, &now, scopes); err != nil {
				t.Error(err)
			}
		})
	}
	crashed := time.Now()
	s.Crash(t)
	relay.Restore()
	time.Sleep(time.Second) // an outage of a second, and of the time that the API server takes to start
	now.Store(back)
	s.Recover(t)
	s.Delete(t, accountPath(leaving))
	t.Logf("the API server was away for %v", time.Since(crashed).Round(time.Millisecond))

	within(t, reconnectLimit, "what was deleted after the crash is refused", func() bool {
		got := outcome(host.Ask(t, service, leavingToken, scopes...))
		if got != grants[leaving] && got != "403 service_account_gone" {
			t.Fatalf("%q", got)
		}
		return got == "403 service_account_gone"
	})
	for _, a := range askers[len(askers)-2:] {
		within(t, reconnectLimit, a.name+": granted", func() bool { return host.Ask(t, service, a.token, scopes...).Status == http.StatusOK })
	}
	stop()
	running.Wait()
	for _, a := range askers {
		t.Logf("%s: %d times, slowest %v: %v", a.name, a.asked, a.slowest.Round(time.Millisecond), a.got)
	}
	s.Patch(t, accountPath(asks), metadata("annotations", cluster.Object{"pullpass.dev/repositories": nil}))
	turns(t, host, askers[2].token, sharedScope, sharedScope, "")
}
