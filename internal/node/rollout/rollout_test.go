package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/progress"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// One node after the other, from the first installation on, and again after a change.
func TestOneAtATime(t *testing.T) {
	in(t, 20, func(t *testing.T, f *fleet) {
		f.start()
		for round, registry := range []string{"registry.example.com", "other.example.com"} {
			f.provider.Store(registry)
			time.Sleep(30 * time.Minute)
			if ready, most := f.count(Ready), f.most.Load(); ready != 20 || most != 1 || len(f.restarted()) != 20*(round+1) {
				t.Fatalf("%s: %d nodes are ready, %d restarted at once, in all %d", registry, ready, most, len(f.restarted()))
			}
		}
		f.api.Count("")
		time.Sleep(20 * time.Minute)
		if writes := f.api.Count("patch") + f.api.Count("put") + f.api.Count("create"); writes != 0 {
			t.Errorf("%d writes where nothing changed", writes)
		}
		if reads := f.api.Count(""); reads > 20*5 {
			t.Errorf("%d reads in 20 minutes", reads)
		}
		if len(f.restarted()) != 40 || f.stopped() != nil {
			t.Errorf("%d restarts, stopped: %v", len(f.restarted()), f.stopped())
		}
	})
}

// The kubelet is healthy with any hosts.toml and CA. So one node tries them first, and the others get at once
// what has worked there.
func TestOneNodePullsFirst(t *testing.T) {
	in(t, 20, func(t *testing.T, f *fleet) {
		f.hosts.Store("# good")
		f.start()
		time.Sleep(30 * time.Minute)
		f.hosts.Store("# bad")
		time.Sleep(30 * time.Minute)
		s := f.stopped()
		if s == nil || !strings.Contains(s.Reason, "ErrImagePull: 401 Unauthorized") || f.count(Waiting) != 19 {
			t.Fatalf("stopped: %v, %d wait", s, f.count(Waiting))
		}
		for _, n := range f.nodes {
			if isFirst := n.name == s.Node; n.hasHosts("# bad") != isFirst || n.hasHosts("# good") == isFirst {
				t.Errorf("%s: %s, which is the first: %t", n.name, look(t, n, hostsFile).Content, isFirst)
			}
		}
		for i, change := range []func(){func() { f.hosts.Store("# better") }, func() { f.plugin.Store("the next plugin") }} {
			f.api.Count("")
			change()
			time.Sleep(10 * time.Minute)
			// The turn of the first node, and the end of the Stop.
			if writes, most := f.api.Count("put leases"), 4*(1-i); f.count(Ready) != 20 || f.stopped() != nil || writes > most {
				t.Errorf("%d nodes are ready, stopped: %v, %d writes of the Lease", f.count(Ready), f.stopped(), writes)
			}
			for _, n := range f.nodes {
				if !n.hasHosts("# better") || i == 1 && string(look(t, n, pluginFile).Content) != "the next plugin" {
					t.Errorf("%s has an old file", n.name)
				}
			}
		}
		if len(f.restarted()) != 20 {
			t.Errorf("%d restarts", len(f.restarted()))
		}
	})
}

func TestEvents(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.denied.Store(true)
		f.start()
		time.Sleep(10 * time.Minute)
		n.denied.Store(false)
		time.Sleep(10 * time.Minute)
		text := strings.Join(f.events(), "\n")
		revision := n.record().Revision
		for _, want := range []string{
			"Node node-00 NodeInstallInstalling: Pullpass " + revision, "Node node-00 NodeInstallReady: Pullpass " + revision,
			"Node node-00 NodeInstallFailed: Pullpass " + revision + ": the pod that tries a pull does not get its image: ErrImagePull: 401 Unauthorized (after 3m0s)",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("there is no event %q:\n%s", want, text)
			}
		}
		if said := strings.Count(n.log.String(), `"the node is ready"`); said != 1 {
			t.Errorf("the log has it %d times", said)
		}
		if s := n.agent.Status(); s.State != Ready || s.Restarts != 1 || s.Profile != "kubeadm" || s.Digest == "" {
			t.Errorf("status %+v", s)
		}
	})
}

// A kubelet that does not become healthy, a node that does not become Ready, and a failed pull stop
// the roll-out that caused them. They stop nothing else.
func TestAFailureStopsTheRest(t *testing.T) {
	for name, test := range map[string]struct {
		breaks func(*simulated, bool)
		state  State
		reason string
	}{
		"kubelet": {func(n *simulated, is bool) { n.breaks.Store(is) }, Rejected, "the kubelet did not come back with this configuration"},
		"node":    {func(n *simulated, is bool) { n.lost.Store(is) }, Failed, "the node is not Ready: KubeletReady: "},
		"pull":    {func(n *simulated, is bool) { n.denied.Store(is) }, Failed, "ErrImagePull: 401 Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, 6, func(t *testing.T, f *fleet) {
				for _, n := range f.nodes {
					test.breaks(n, true)
				}
				f.start()
				time.Sleep(40 * time.Minute)
				s := f.stopped()
				if s == nil || !strings.Contains(s.Reason, test.reason) || len(s.Reason) > progress.MaxReason {
					t.Fatalf("stopped: %v", s)
				}
				bad := f.nodes[s.Node]
				if f.count(Waiting) != 5 || bad.record().State != test.state && bad.record().State != Verifying {
					t.Errorf("%d wait, and %s is %+v", f.count(Waiting), s.Node, bad.record())
				}
				for _, n := range f.nodes {
					if r := n.record(); r.State == Waiting && (r.Reason != term.Shorten(s.String(), progress.MaxReason) || n.restarts.Load() != 0) {
						t.Errorf("%s: %d restarts, waits for %q", n.name, n.restarts.Load(), r.Reason)
					}
				}
				before := bad.restarts.Load()
				if want := map[State]int32{Rejected: 2, Failed: 1}[test.state]; before != want {
					t.Errorf("%d restarts, want %d", before, want) // the second restart was with the previous configuration
				}

				// A new desired state is tried.
				for _, n := range f.nodes {
					test.breaks(n, false)
				}
				bad.heartbeat(true)
				f.provider.Store("other.example.com")
				time.Sleep(40 * time.Minute)
				if f.count(Ready) != 6 || f.stopped() != nil || f.most.Load() != 1 {
					t.Errorf("%d are ready, stopped: %v, %d at once", f.count(Ready), f.stopped(), f.most.Load())
				}
			})
		})
	}
}

// If the pull works in the end, the roll-out continues without an administrator.
func TestAFailureThatEnds(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		f.start()
		time.Sleep(20 * time.Minute)
		for _, n := range f.nodes {
			n.denied.Store(true)
		}
		f.provider.Store("other.example.com")
		time.Sleep(20 * time.Minute)
		if f.stopped() == nil {
			t.Fatal("it is not stopped")
		}
		for _, n := range f.nodes {
			n.denied.Store(false)
		}
		time.Sleep(20 * time.Minute)
		if f.count(Ready) != 3 || f.stopped() != nil || len(f.restarted()) != 6 {
			t.Errorf("%d are ready, stopped: %v, restarts %q", f.count(Ready), f.stopped(), f.restarted())
		}
	})
}

// A rejected configuration is not retried, not even by a later agent.
func TestRejectedForGood(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.breaks.Store(true)
		f.start()
		time.Sleep(time.Minute)
		if writes := f.api.Count("put leases"); writes != 1 || f.stopped() == nil || f.holder() != "" {
			t.Errorf("%d writes end the turn and stop the roll-out: %v", writes, f.stopped()) // no node gets the turn between them
		}
		time.Sleep(9 * time.Minute)
		n.breaks.Store(false)
		n.halt()
		f.start()
		time.Sleep(2 * time.Hour)
		if r := n.record(); r.State != Rejected || n.restarts.Load() != 2 || n.installed() {
			t.Errorf("%d restarts, %+v", n.restarts.Load(), r)
		}
	})
}

// The Stop of a rejected configuration is written as soon as that is possible, also by a later agent. A
// Stop that the administrator has removed is not written again.
func TestRejectedWhileNoStopCanBeWritten(t *testing.T) {
	for name, disturb := range map[string]func(*simulated){
		"the API server is away": func(n *simulated) {
			back := time.Now().Add(45 * time.Second)
			n.failing = func(*http.Request) error {
				if n.restarts.Load() == 2 && time.Now().Before(back) { // the second restart is that of the roll-back
					return errors.New("the request is lost")
				}
				return nil
			}
			n.fleet.start(n.name)
		},
		"the Lease cannot be written": func(n *simulated) {
			back := time.Now().Add(90 * time.Second)
			n.failing = func(r *http.Request) error {
				if n.restarts.Load() == 2 && r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases") && time.Now().Before(back) {
					return errors.New("the request is lost")
				}
				return nil
			}
			n.fleet.start(n.name)
		},
		"the agent ends": func(n *simulated) {
			n.fleet.start(n.name)
			time.Sleep(time.Second)
			n.halt()
			time.Sleep(10 * time.Second)
			n.fleet.start(n.name)
		},
		"the agent ends right after it": func(n *simulated) {
			n.failing = func(r *http.Request) error {
				if n.restarts.Load() == 2 && r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases") {
					n.end()
				}
				return nil
			}
			n.fleet.start(n.name)
		},
		"the agent is replaced": func(n *simulated) {
			n.fleet.start(n.name)
			time.Sleep(time.Second)
			n.halt()
			n.fleet.start(n.name)
		},
	} {
		for kind, tainted := range map[string]bool{"in its turn": false, "without a turn": true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				in(t, 0, func(t *testing.T, f *fleet) {
					first, others := f.add("first", tainted), []*simulated{f.add("other-0", tainted), f.add("other-1", tainted)}
					for _, n := range f.nodes {
						n.breaks.Store(true)
					}
					first.outlives = true
					disturb(first)
					time.Sleep(3 * time.Minute)
					f.start("other-0 other-1")
					time.Sleep(8 * time.Minute)
					if s := f.stopped(); s == nil || s.Node != first.name || f.holder() != "" {
						t.Errorf("stopped: %v, the turn is that of %q", s, f.holder())
					}
					for _, n := range others {
						if r := n.record(); r.State != Waiting || n.restarts.Load() != 0 {
							t.Errorf("%s: %d restarts, %+v", n.name, n.restarts.Load(), r)
						}
						n.breaks.Store(false)
					}

					f.api.Merge("leases", namespace, progress.LeaseName, kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{progress.StopKey: nil}}})
					first.halt()
					f.start(first.name)
					time.Sleep(10 * time.Minute)
					if r := first.record(); f.count(Ready) != 2 || f.stopped() != nil || r.State != Rejected || first.restarts.Load() != 2 {
						t.Errorf("%d are ready, stopped: %v, %d restarts, %+v", f.count(Ready), f.stopped(), first.restarts.Load(), r)
					}
				})
			})
		}
	}
}

// The Stop that could not be written is not that of the next configuration.
func TestRejectedBeforeAChange(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		f.hosts.Store("# old")
		first := f.nodes["node-00"]
		first.breaks.Store(true)
		first.outlives = true
		f.start(first.name)
		time.Sleep(time.Second)
		first.halt()
		time.Sleep(10 * time.Second)
		f.hosts.Store("# new")
		f.start()
		time.Sleep(10 * time.Minute)
		if r := first.record(); f.count(Ready) != 1 || f.stopped() != nil || r.State != Rejected || first.restarts.Load() != 2 {
			t.Errorf("%d are ready, stopped: %v, %d restarts, %+v", f.count(Ready), f.stopped(), first.restarts.Load(), r)
		}
	})
}

// The administrator has found that the node was at fault, not the change.
func TestAStopIsRemoved(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.breaks.Store(true)
		}
		f.start()
		time.Sleep(20 * time.Minute)
		bad := f.stopped().Node
		for _, n := range f.nodes {
			n.breaks.Store(n.name == bad)
		}
		f.api.Merge("leases", namespace, progress.LeaseName, kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{progress.StopKey: nil}}})
		time.Sleep(20 * time.Minute)
		if f.count(Ready) != 2 || f.nodes[bad].record().State != Rejected || f.stopped() != nil {
			t.Errorf("%d are ready, %+v, stopped: %v", f.count(Ready), f.nodes[bad].record(), f.stopped())
		}
	})
}

// The admission policy lets a node name itself at the beginning of a Stop. The rest of the text must
// not accuse a different node, whose Stop would stay when the first node is deleted.
func TestAStopThatNamesTwoNodes(t *testing.T) {
	for name, member := range map[string]string{"repeated": "node", "by another case": "NODE", "by an escape": `\u006eode`} {
		t.Run(name, func(t *testing.T) {
			in(t, 2, func(t *testing.T, f *fleet) {
				f.start()
				time.Sleep(20 * time.Minute)
				uid := f.api.Object("nodes", "", "node-01")["metadata"].(kubetest.Object)["uid"]
				text := fmt.Sprintf(`{"node":"node-00",%q:"node-01","uid":%q,"revision":"r","reason":"x"}`, member, uid)
				text = strings.Replace(text, `\\u`, `\u`, 1)
				f.api.Merge("leases", namespace, progress.LeaseName, kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{progress.StopKey: text}}})
				overview := testkit.Value(progress.List(t.Context(), f.rest(), namespace))(t)
				if overview.Stopped != nil {
					t.Errorf("stopped: %s", overview.Stopped)
				}
			})
		})
	}
}

// The policy lets a node write any UID into its Stop. Another node, whose UID it is, could not remove
// that, and its turn would not end before it expires.
func TestAStopWithTheUIDOfAnother(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		uid := f.api.Object("nodes", "", "node-01")["metadata"].(kubetest.Object)["uid"]
		text := fmt.Sprintf(`{"node":"node-00","uid":%q,"revision":"r","reason":"x"}`, uid)
		f.api.Put("leases", kubetest.Object{"metadata": kubetest.Object{"name": progress.LeaseName, "namespace": namespace, "annotations": kubetest.Object{progress.StopKey: text}}})
		f.start("node-01")
		time.Sleep(5 * time.Minute)
		if s := f.stopped(); f.count(Ready) != 1 || s == nil || s.Revision != "r" {
			t.Errorf("%d are ready, stopped: %v", f.count(Ready), s)
		}
	})
}

// Another node may change the Lease between the reading and the writing of a renewal. This does not
// end the turn.
func TestOthersWriteTheLease(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		conflict := kubetest.Status(http.StatusConflict, "Conflict", "changed")
		turn, _ := f.newTurn()
		f.api.Put("leases", kubetest.Object{"metadata": kubetest.Object{"name": progress.LeaseName, "namespace": namespace}})
		during, _, err := turn.acquire(t.Context(), "r", false)
		testkit.Must(t, err)
		f.api.Fail("put leases", func(w http.ResponseWriter, r *http.Request) {
			conflict(w, r)
			f.api.Fail("put leases", nil)
		})
		time.Sleep(turnRenewal + time.Second)
		if during.Err() != nil || turn.allowed() != nil {
			t.Errorf("after one conflict: %v, %v", during.Err(), turn.allowed())
		}
		f.api.Fail("put leases", conflict)
		time.Sleep(turnDuration - 2*turnRenewal)
		if during.Err() != nil || turn.allowed() == nil {
			t.Errorf("while others write all the time: %v, %v", during.Err(), turn.allowed())
		}
		time.Sleep(2 * turnRenewal)
		if during.Err() == nil {
			t.Error("the turn goes on after its time")
		}
		turn.leave()
	})
}

// A node that is gone for good does not stop the roll-out.
func TestTheFailedNodeIsGone(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.lost.Store(true)
		}
		f.start()
		time.Sleep(20 * time.Minute)
		bad := f.nodes[f.stopped().Node]
		for _, n := range f.nodes {
			n.lost.Store(false)
		}
		bad.halt()
		f.api.Remove("nodes", "", bad.name)
		f.mu.Lock()
		delete(f.nodes, bad.name)
		f.mu.Unlock()
		time.Sleep(20 * time.Minute)
		if f.count(Ready) != 2 || f.stopped() != nil {
			t.Errorf("%d are ready, stopped: %v", f.count(Ready), f.stopped())
		}
		_ = bad.tree.Close()
	})
}

// A machine that fails during its turn never reports again. The turn expires, and no node gets the
// change that may have caused the failure.
func TestTheHolderDies(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.dead.Store(true)
		}
		f.start()
		time.Sleep(time.Minute)
		if f.count(Installing) != 1 {
			t.Fatalf("%d install", f.count(Installing))
		}
		var bad *simulated
		for _, n := range f.nodes {
			n.dead.Store(false)
			if n.record().State == Installing {
				bad = n
			}
		}
		bad.heartbeat(false)
		bad.halt()
		time.Sleep(turnDuration - 2*time.Minute)
		if f.count(Ready) != 0 || f.stopped() != nil {
			t.Errorf("%d are ready, stopped: %v", f.count(Ready), f.stopped())
		}
		time.Sleep(5 * time.Minute)
		if s := f.stopped(); s == nil || s.Node != bad.name || f.count(Waiting) != 2 || len(f.restarted()) != 0 {
			t.Fatalf("stopped: %v, %d wait, restarts %q", s, f.count(Waiting), f.restarted())
		}

		// It comes back, and continues.
		bad.heartbeat(true)
		f.start(bad.name)
		time.Sleep(20 * time.Minute)
		if f.count(Ready) != 3 || f.stopped() != nil || f.most.Load() != 1 {
			t.Errorf("%d are ready, stopped: %v, %d at once", f.count(Ready), f.stopped(), f.most.Load())
		}
	})
}

// An agent that could not renew its turn for a minute may have lost it by the time the kubelet
// stops.
func TestATurnThatIsNotFresh(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	turn := turn{lease: controller.Lease{Now: func() time.Time { return now }}}
	for _, test := range []struct {
		alone   bool
		renewed time.Time
		allowed bool
	}{
		{false, time.Time{}, false}, {false, now, true}, {false, now.Add(time.Nanosecond - turnFresh), true}, {false, now.Add(-turnFresh), false}, {true, time.Time{}, true},
	} {
		turn.set(test.alone, test.renewed)
		if err := turn.allowed(); (err == nil) != test.allowed {
			t.Errorf("alone %t, renewed at %s: %v", test.alone, test.renewed, err)
		}
	}
}

// A Ready node whose agent stopped reporting does not stop the roll-out: its turn expires.
func TestOnlyTheAgentDies(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.denied.Store(true)
		}
		f.start()
		time.Sleep(time.Minute)
		for _, n := range f.nodes {
			n.denied.Store(false)
			if n.record().State == Verifying {
				n.halt()
			}
		}
		time.Sleep(turnDuration - 2*time.Minute)
		if f.count(Ready) != 0 || len(f.restarted()) != 1 {
			t.Errorf("%d are ready, restarts %q", f.count(Ready), f.restarted())
		}
		time.Sleep(10 * time.Minute)
		if f.count(Ready) != 2 || f.stopped() != nil || f.most.Load() != 1 {
			t.Errorf("%d are ready, stopped: %v, %d at once", f.count(Ready), f.stopped(), f.most.Load())
		}
	})
}

// A Node that was Ready before the restart, and was not written since, does not count as Ready.
func TestANodeThatIsNotWritten(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.silent.Store(true)
		f.start()
		time.Sleep(readyLimit + 30*time.Second)
		if r := n.record(); r.State != Failed || r.Reason != "the kubelet is healthy, but has not written the status of the Node (after 3m0s)" || f.stopped() == nil {
			t.Errorf("%+v, stopped: %v", r, f.stopped())
		}
	})
}

// A pull before the restart proves nothing about the time after it.
func TestAPodFromBefore(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		f.start()
		f.stalled.Store(true)
		time.Sleep(5 * time.Minute)
		f.provider.Store("other.example.com")
		time.Sleep(12 * time.Minute)
		n := f.nodes["node-00"]
		if r := n.record(); len(f.restarted()) != 1 || r.State != Failed && r.State != Installing || f.stopped() != nil {
			t.Errorf("restarts %q, %+v", f.restarted(), r)
		}
		for range 5 * 60 { // until it has failed again
			if time.Sleep(time.Second); n.record().State == Failed {
				break
			}
		}
		synctest.Wait()
		if r := n.record(); r.State != Failed || f.holder() != "" {
			t.Errorf("%+v, and the turn is still that of %q", r, f.holder())
		}
		f.stalled.Store(false)
		time.Sleep(10 * time.Minute)
		if r := n.record(); len(f.restarted()) != 2 || r.State != Ready || n.agent.Status().Restarts != 2 {
			t.Errorf("restarts %q, %+v, %+v", f.restarted(), r, n.agent.Status())
		}
	})
}

// A taint that others add at the same moment is not lost.
func TestATaintOfOthersComesMeanwhile(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		n := f.add("node-00", true)
		n.start(nil)
		n.halt()
		synctest.Wait() // a request that the agent gave up may have removed the taint
		f.api.Merge("nodes", "", n.name, kubetest.Object{"spec": kubetest.Object{"taints": []any{kubetest.Object{"key": progress.Taint, "effect": "NoSchedule"}}}})
		stale := testkit.Value(n.agent.cluster.get(t.Context(), n.name))(t)
		f.api.Merge("nodes", "", n.name, kubetest.Object{"spec": kubetest.Object{"taints": []any{
			kubetest.Object{"key": "example.com/other", "effect": "NoSchedule"}, kubetest.Object{"key": progress.Taint, "effect": "NoSchedule"}, kubetest.Object{"key": "example.com/late", "effect": "NoSchedule"},
		}}})
		testkit.Value(n.agent.cluster.write(t.Context(), stale, nil, true))(t)
		if spec := fmt.Sprint(f.api.Object("nodes", "", n.name)["spec"]); n.tainted() || !strings.Contains(spec, "example.com/late") {
			t.Errorf("taints %s", spec)
		}
	})
}

// A pod that is replaced during its node's turn continues the turn.
func TestTheAgentIsReplaced(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.denied.Store(true)
		}
		f.start()
		time.Sleep(time.Minute)
		var verifying *simulated
		for _, n := range f.nodes {
			n.denied.Store(false)
			if n.record().State == Verifying {
				verifying = n
			}
		}
		verifying.halt()
		if text := verifying.log.String(); strings.Contains(text, "cannot be looked after") {
			t.Errorf("its end is an error: %s", text)
		}
		f.api.Remove("pods", namespace, "probe-"+verifying.name)
		f.start(verifying.name)
		time.Sleep(2 * time.Minute)
		if f.count(Ready) != 2 || f.most.Load() != 1 || len(f.restarted()) != 2 {
			t.Errorf("%d are ready, %d at once, %q", f.count(Ready), f.most.Load(), f.restarted())
		}
	})
}

// New nodes with the taint do not wait, and get their pods after a successful pull.
func TestNewNodes(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		for _, name := range []string{"new-0", "new-1", "new-2"} {
			f.add(name, true).denied.Store(name == "new-2")
		}
		f.nodes["node-00"].denied.Store(true) // its turn takes three minutes, and has been
		f.start("node-00")
		time.Sleep(5 * time.Second)
		f.start("new-0", "new-1", "new-2")
		time.Sleep(2 * time.Minute)
		for name, tainted := range map[string]bool{"new-0": false, "new-1": false, "new-2": true} {
			if n := f.nodes[name]; n.tainted() != tainted || n.restarts.Load() != 1 || !tainted && n.record().State != Ready {
				t.Errorf("%s: tainted %t, %d restarts, %+v", name, n.tainted(), n.restarts.Load(), n.record())
			}
		}
		time.Sleep(10 * time.Minute)
		f.nodes["new-2"].denied.Store(false)
		time.Sleep(10 * time.Minute)
		if n := f.nodes["new-2"]; n.tainted() || n.record().State != Ready {
			t.Errorf("new-2 is tainted: %t, %+v", n.tainted(), n.record())
		}
	})
}

// Nodes that are not new wait, even with the taint. New nodes also wait once the change has failed
// elsewhere.
func TestTaintedNodesWait(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		for _, name := range []string{"old-0", "old-1", "old-2"} {
			f.add(name, true).isAlone = false
		}
		time.Sleep(newLimit)
		f.start()
		time.Sleep(30 * time.Minute)
		if f.count(Ready) != 3 || f.most.Load() != 1 {
			t.Errorf("%d are ready, %d at once", f.count(Ready), f.most.Load())
		}
		f.provider.Store("broken.example.com")
		for _, n := range f.nodes {
			n.breaks.Store(true)
		}
		time.Sleep(10 * time.Minute)
		late := f.add("new-0", true)
		f.start("new-0")
		time.Sleep(10 * time.Minute)
		if late.restarts.Load() != 0 || !late.tainted() || late.record().Reason != term.Shorten(f.stopped().String(), progress.MaxReason) {
			t.Errorf("%d restarts, tainted %t, %+v", late.restarts.Load(), late.tainted(), late.record())
		}
	})
}

// Without the setting that allows it, the taint is not removed.
func TestATaintThatStays(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		n := f.add("node-00", true)
		n.keepsTaint = true
		f.start()
		time.Sleep(10 * time.Minute)
		if n.record().State != Ready || !n.tainted() {
			t.Errorf("tainted %t, %+v", n.tainted(), n.record())
		}
		if f.api.Object("leases", namespace, progress.LeaseName) == nil {
			t.Error("it has not waited for its turn")
		}
	})
}

// Changes of others are repaired: the kubelet's files in the node's turn, the other files at once.
func TestDrift(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		f.start()
		time.Sleep(10 * time.Minute)
		n := f.nodes["node-01"]
		testkit.Must(t, n.tree.Remove("/usr/local/libexec/pullpass/pullpass-credential-provider", look(t, n, "/usr/local/libexec/pullpass/pullpass-credential-provider")))
		time.Sleep(10 * time.Minute)
		if len(f.restarted()) != 2 || look(t, n, "/usr/local/libexec/pullpass/pullpass-credential-provider") == nil {
			t.Errorf("restarts %q", f.restarted())
		}
		testkit.Must(t, n.tree.Remove("/etc/default/kubelet", look(t, n, "/etc/default/kubelet")))
		time.Sleep(10 * time.Minute)
		if !slices.Equal(f.restarted()[2:], []string{"node-01"}) || n.record().State != Ready {
			t.Errorf("restarts %q, %+v", f.restarted(), n.record())
		}
		// It was restarted, so it has to pull again.
		if said := strings.Count(n.log.String(), `"the node is verifying"`); said != 2 {
			t.Errorf("it was verified %d times", said)
		}
	})
}

// The kubelet of a node that is not Ready is not restarted: the node may keep others alive.
func TestANodeThatIsNotReadyWaits(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.heartbeat(false)
		f.start()
		time.Sleep(10 * time.Minute)
		if r := n.record(); r.State != Waiting || r.Reason != "the node is not Ready" || n.restarts.Load() != 0 {
			t.Errorf("%d restarts, %+v", n.restarts.Load(), r)
		}
	})
}

// A failed installation is reported, and does not affect other nodes.
func TestWhatCannotBeInstalled(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		testkit.Must(t, n.tree.Mkdir("/etc/pullpass", 0o755))
		testkit.Must(t, n.tree.Mkdir("/etc/pullpass/credential-providers", 0o755))
		testkit.Must(t, n.tree.Replace("/etc/pullpass/credential-providers/pullpass.yaml", nil, file("somebody's")))
		f.start()
		time.Sleep(10 * time.Minute)
		if r := n.record(); r.State != Failed || !strings.Contains(r.Reason, "node-install did not write it") || f.nodes["node-01"].record().State != Ready || f.stopped() != nil {
			t.Errorf("%+v, stopped: %v", r, f.stopped())
		}
	})
}

// A node on which the kubelet cannot be restarted takes no turn from others, and reports this once.
func TestNothingCouldRestart(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.unable.Store(true)
		f.start()
		time.Sleep(10 * time.Minute)
		if r := n.record(); r.State != Failed || r.Reason != "there is no systemd" || f.nodes["node-01"].record().State != Ready {
			t.Errorf("%+v", r)
		}
		f.api.Count("")
		time.Sleep(20 * time.Minute)
		if writes := f.api.Count("patch") + f.api.Count("put"); writes != 0 {
			t.Errorf("%d writes", writes)
		}
	})
}

// Without the API server the kubelet is not restarted, and unfinished work is done afterwards.
func TestNoAPIServer(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		f.api.Refuse(true)
		f.start()
		time.Sleep(10 * time.Minute)
		if len(f.restarted()) != 0 {
			t.Errorf("restarts %q", f.restarted())
		}
		f.api.Refuse(false)
		time.Sleep(10 * time.Minute)
		if f.count(Ready) != 2 || f.most.Load() != 1 {
			t.Errorf("%d are ready, %d at once", f.count(Ready), f.most.Load())
		}
	})
}

func TestRemove(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		f.start()
		time.Sleep(10 * time.Minute)
		late := f.add("late", true)
		for _, n := range f.nodes {
			n.halt()
			n.start(nil)
		}
		time.Sleep(20 * time.Minute)
		for _, n := range f.nodes {
			if n.installed() || n.record() != (Record{}) || labels(f.api.Object("nodes", "", n.name))["c"] != "d" {
				t.Errorf("%s: installed %t, %+v", n.name, n.installed(), n.record())
			}
		}
		if len(f.restarted()) != 6 || f.most.Load() != 1 || late.tainted() {
			t.Errorf("restarts %q, %d at once, tainted %t", f.restarted(), f.most.Load(), late.tainted())
		}
		f.api.Count("")
		time.Sleep(time.Hour)
		if writes := f.api.Count("patch") + f.api.Count("put"); writes != 0 {
			t.Errorf("%d writes where nothing is left", writes)
		}
		if asked := f.api.Count("get leases"); asked != 0 {
			t.Errorf("the Lease was read %d times where nothing is left", asked)
		}

		// Another program installs it again. A Record or a Stop without an installation is left of an agent that ended.
		d := f.desired()
		testkit.Value(nodeinstall.New(nodeinstall.Config{Tree: late.tree, Watcher: late}).Apply(t.Context(), d))(t)
		n := f.nodes["node-00"]
		text := `{"state":"failed","since":"2026-03-01T12:00:00Z"}`
		f.api.Merge("nodes", "", n.name, kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{progress.Key: text}, "labels": kubetest.Object{progress.Key: "failed"}}})
		f.putLease("", "", &Stop{Node: n.name, UID: "uid-" + n.name, Revision: "x"})
		time.Sleep(20 * time.Minute)
		if late.installed() || late.record() != (Record{}) || n.record() != (Record{}) || f.holder() != "" || f.stopped() != nil {
			t.Errorf("installed %t, %+v, %+v, the turn is that of %q, stopped: %v", late.installed(), late.record(), n.record(), f.holder(), f.stopped())
		}
	})
}

func TestList(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		config := f.rest()
		o, err := progress.List(t.Context(), config, namespace)
		testkit.Must(t, err)
		if len(o.Nodes) != 2 || o.Nodes[0].State != "" || o.Turn != "" || o.Stopped != nil {
			t.Errorf("%+v", o)
		}
		for _, n := range f.nodes {
			n.breaks.Store(true)
		}
		f.start()
		time.Sleep(5 * time.Second)
		if o, err = progress.List(t.Context(), config, namespace); err != nil || o.Turn == "" {
			t.Errorf("%+v, %v", o, err)
		}
		time.Sleep(10 * time.Minute)
		o, err = progress.List(t.Context(), config, namespace)
		testkit.Must(t, err)
		states := []string{string(o.Nodes[0].State), string(o.Nodes[1].State)}
		slices.Sort(states)
		if !slices.Equal(states, []string{"rejected", "waiting"}) || o.Stopped == nil || o.Turn != "" || o.Nodes[0].Kubelet != "v1.36.2" || o.Nodes[0].Node != "node-00" {
			t.Errorf("%+v", o)
		}
	})
}

// Two releases of the chart must not undo each other's work on a node, with a restart of the kubelet each time.
func TestASecondInstallerWaits(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.start(func(context.Context, string) (nodeinstall.Desired, error) { return f.desired(), nil })
		time.Sleep(10 * time.Minute)
		second := &simulated{fleet: f, name: n.name, tree: n.tree}
		second.logger = slog.New(slog.NewTextHandler(&second.log, nil))
		other := f.desired()
		other.Provider = bytes.ReplaceAll(other.Provider, []byte("registry.example.com"), []byte("other.example.com"))
		second.start(func(context.Context, string) (nodeinstall.Desired, error) { return other, nil })
		time.Sleep(time.Hour)
		if restarts := n.restarts.Load() + second.restarts.Load(); restarts != 1 || n.record().State != Ready {
			t.Errorf("%d restarts, %+v", restarts, n.record())
		}
		if err := second.agent.Ready(); err == nil {
			t.Error("the second is ready")
		}
		n.halt()
		time.Sleep(10 * time.Minute)
		if restarts := second.restarts.Load(); restarts != 1 || n.record().State != Ready || second.agent.Ready() != nil {
			t.Errorf("after the end of the first: %d restarts, %+v", restarts, n.record())
		}
		second.halt()
		if !strings.Contains(second.log.String(), "another installer keeps this node") {
			t.Error(second.log.String())
		}
	})
}
