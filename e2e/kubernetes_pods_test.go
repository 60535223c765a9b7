package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// A pod's first pull may come before the watch tells of the pod. It must never be refused for that.
func testNewPods(t *testing.T, s *site) {
	const namespace, count, workers = "new-pods", 1000, 8
	s.workload(t, namespace)
	proxy := s.pullpass(t, s.config())

	var next, refused atomic.Int64
	var running sync.WaitGroup
	for range workers {
		host := proxy.Host(t, pullpass.From{})
		running.Go(func() {
			for n := next.Add(1); n <= count; n = next.Add(1) {
				if err := s.pullFromNewPod(t.Context(), host, namespace, fmt.Sprintf("web-%d", n)); err != nil {
					t.Error(err)
					refused.Add(1)
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d of %d new pods were refused; %v live confirmations", refused.Load(), count, proxy.Metric(t, "pullpass_kubernetes_confirmations_total"))
}

func (s *site) pullFromNewPod(ctx context.Context, host *pullpass.Host, namespace, name string) error {
	pod, err := s.TryPod(ctx, namespace, name, puller, "node1")
	if err != nil {
		return err
	}
	token, err := s.TryToken(ctx, cluster.PodToken(pod, audience))
	if err != nil {
		return err
	}
	answer, err := host.Try(ctx, service, token, own(namespace))
	if err != nil {
		return err
	}
	if got := outcome(answer); got != own(namespace) {
		return fmt.Errorf("pod %s: %q; %s", name, got, answer.Audit.Message)
	}
	return nil
}

// The developer reads with "kubectl describe pod" why the pull was refused.
func testPodEvents(t *testing.T, s *site) {
	const namespace, repetitions = "events", 30
	const counted = 25 // of the same object at once; client-go drops the rest
	s.workload(t, namespace)
	host := s.pullpass(t, s.config()).Host(t, pullpass.From{})
	pod := func(name string) (cluster.Object, string) {
		object := s.CreatePod(t, namespace, name, puller, "node1")
		return object, s.podToken(t, object)
	}
	refused, refusedToken := pod("refused")
	granted, grantedToken := pod("granted")
	forged, forgedToken := pod("forged")
	const foreign = "repository:team-b/secret:pull"

	// Those of which there must be none come first: when the last one is there, they would be.
	expect(t, "granted", host.Ask(t, service, grantedToken, own(namespace)), own(namespace))
	expect(t, "forged", host.Ask(t, service, forgedToken[:len(forgedToken)-8]+"AAAAAAAA", foreign), "401 token_signature")
	for range repetitions {
		expect(t, "refused", host.Ask(t, service, refusedToken, foreign), "")
	}

	within(t, reconnectLimit, "an event that counts", func() bool {
		events := s.Events(t, refused)
		return len(events) > 0 && events[0].Count == counted
	})
	events := s.Events(t, refused)
	if len(events) != 1 {
		t.Fatalf("%d events for %d refusals, want 1: %+v", len(events), repetitions, events)
	}
	t.Logf("event: %+v", events[0])
	if e := events[0]; e.Type != "Warning" || e.Reason != "ImagePullDenied" || e.Component != "pullpass" {
		t.Errorf("event %+v", e)
	}
	// The requested scope, the allowed ones, their rule, and the remedy.
	for _, part := range []string{"team-b/secret", "pull", namespace + "/**", "own-namespace", "an administrator of Pullpass"} {
		if !strings.Contains(events[0].Message, part) {
			t.Errorf("the event does not say %q: %s", part, events[0].Message)
		}
	}
	for name, object := range map[string]cluster.Object{"granted": granted, "forged": forged} {
		if events := s.Events(t, object); len(events) > 0 {
			t.Errorf("%s: events %+v", name, events)
		}
	}
}
