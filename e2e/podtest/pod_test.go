package podtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestPods runs on one node, whose kubelet is ended once: that renews the tokens of all pods.
func TestPods(t *testing.T) {
	s := startSite(t, "")
	own := s.push(t, team, "web:rc", node.Image(t, "web"))
	other := s.push(t, otherTeam, "web:v1", node.Image(t, "other"))
	drivers := s.startDrivers(t)
	clients := s.startClients(t)
	volumes := s.startVolumes(t, drivers, own)

	s.testClient(t, clients.documented, own, other)
	for _, v := range volumes {
		s.testVolume(t, v)
	}
	s.testRefusedVolumes(t, drivers, own, other)
	s.testRenewal(t, clients, volumes, own)
	s.checkReplays(t)
	s.testProof(t, clients.documented, volumes[0], own)
	t.Logf("what was seen\n%s%s in all", s.table.String(), time.Since(s.begin).Round(time.Second/10))
}

// checkReplays shows that nothing that a pod, a driver or the node does is a replay: each has tokens of its own. The node is known
// by its certificate, and the others by an address, which is the same for all here.
func (s *site) checkReplays(t *testing.T) {
	t.Helper()
	for _, e := range s.proxy.Replays(t) {
		t.Errorf("a replay: %+v, %+v", e, e.Replay)
	}
	callers := map[string]int{}
	for _, e := range s.proxy.Audit(t) {
		if e.Replay != nil {
			kind, _, _ := strings.Cut(e.Replay.Caller, "/")
			callers[kind]++
		}
	}
	if callers["node"] == 0 || callers["address"] == 0 {
		t.Errorf("callers by kind: %v, want some of both", callers)
	}
	s.saw("tokens that count for their first caller alone", "presented by %v, and none by another", callers)
}

// The kubelet renews the tokens, and clients and drivers use the new ones while their pods run on.
func (s *site) testRenewal(t *testing.T, c clients, volumes []volume, own string) {
	t.Helper()
	before := s.pushAs(t, c.documented, own)
	if file := s.tokenID(t, c.documented.pod); before != file {
		t.Errorf("the client pushed with %s, and the file holds %s", before, file)
	}
	copied := s.pushAs(t, c.copied, own)
	drivers := map[string]string{}
	for _, v := range volumes {
		drivers[v.driver] = s.lastID(t, v.pod)
	}
	s.saw("before the renewal", "the client in the pod pushes with %s", before)

	s.node.RestartKubelet(t)
	var after string
	testenv.Await(t, podLimit, "the kubelet replaces the token", func() bool { after = s.tokenID(t, c.documented.pod); return after != before })
	s.saw("the kubelet was ended and runs again", "the file holds %s", after)
	if used := s.pushAs(t, c.documented, own); used != after {
		t.Errorf("the client pushed with %s after the renewal; before it was %s, and the file holds %s", used, before, after)
	}
	s.saw("the next push", "with %s", after)
	testenv.Await(t, podLimit, "the kubelet replaces the token of the pod with subPath, too", func() bool { return s.tokenID(t, c.copied.pod) != copied })
	if used := s.pushAs(t, c.copied, own); used != copied {
		t.Errorf("a client whose token is mounted with subPath pushed with %s, want that of before, %s", used, copied)
	}
	s.saw("the next push where the token is mounted with subPath", "with the token of before")
	for _, v := range volumes {
		testenv.Await(t, podLimit, "the driver gets a new token", func() bool { return s.lastID(t, v.pod) != drivers[v.driver] })
		s.saw("republished, "+v.what, "%s after %s", s.lastID(t, v.pod), drivers[v.driver])
	}
	for _, pod := range []string{c.documented.pod.Name(), c.copied.pod.Name(), volumes[0].pod.Name()} {
		if restarts := container(s.awaitRunning(t, pod))["restartCount"]; fmt.Sprint(restarts) != "0" {
			t.Errorf("pod %s was restarted %v times", pod, restarts)
		}
	}
}

// Where callers have to prove that they are the node, neither a client in a pod nor a driver can.
func (s *site) testProof(t *testing.T, c client, v volume, own string) {
	t.Helper()
	s.config.Clusters[0].Node.Proof.Mode = "enforce"
	strict := pullpass.StartReady(t, s.ca, s.config)
	s.relay.To(strict.Address())
	s.relay.Break()
	err := c.ask("/pull", own)
	if err == nil {
		t.Error("a client without a certificate pulled")
	}
	s.saw("proof demanded: the client", "%v", err)
	strict.AwaitAudit(t, 0, "caller_not_node", func(e pullpass.Event) bool { return about(e, c.pod, clientAgent) && e.Reason == "caller_not_node" })
	strict.AwaitAudit(t, 0, "caller_not_node", func(e pullpass.Event) bool { return about(e, v.pod, driverAgent) && e.Reason == "caller_not_node" })
	var last published
	testenv.Await(t, podLimit, "the driver is refused", func() bool { last = v.published(t)[len(v.published(t))-1]; return last.Error != "" })
	s.saw("proof demanded: the driver", "%s", last.Error)
	s.manifest(t, v)
	s.awaitRunning(t, v.pod.Name())
	s.saw("proof demanded: a volume of before", "is there, and its pod runs")
}
