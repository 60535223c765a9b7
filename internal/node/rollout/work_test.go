package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A new state or reason is told in the log, and in an event if it matters to people.
func TestWhatIsTold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		before, now Record
		event       string // empty: none
		isLogged    bool
	}{
		{Record{State: Failed, Reason: "a"}, Record{State: Failed, Reason: "a", Revision: "r"}, "", false},
		{Record{State: Failed, Reason: "a"}, Record{State: Failed, Reason: "b", Revision: "r"}, "Warning NodeInstallFailed Pullpass r: b", true},
		{Record{State: Installing}, Record{State: Rejected, Reason: "b", Revision: "r"}, "Warning NodeInstallRejected Pullpass r: b", true},
		{Record{}, Record{State: Installing, Revision: "r"}, "Normal NodeInstallInstalling Pullpass r", true},
		{Record{State: Verifying}, Record{State: Ready, Revision: "r"}, "Normal NodeInstallReady Pullpass r", true},
		{Record{}, Record{State: Waiting, Reason: "a", Revision: "r"}, "", true},
		{Record{State: Installing}, Record{State: Verifying, Revision: "r"}, "", true},
		{Record{State: Ready}, Record{}, "", true},
	} {
		var log strings.Builder
		events := record.NewFakeRecorder(1)
		a := &Agent{config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, object: &corev1.ObjectReference{}, events: events, keeper: &keeper{}}
		a.told(&corev1.Node{}, test.before, test.now)
		event := ""
		if len(events.Events) > 0 {
			event = <-events.Events
		}
		if event != test.event || (log.Len() > 0) != test.isLogged || a.Status().Record != test.now || a.Ready() != nil {
			t.Errorf("%+v: event %q, log %q, status %+v", test.now, event, log.String(), a.Status())
		}
	}
	// Before it runs, and before it has read its Node, there is nothing to write an event about.
	events := record.NewFakeRecorder(1)
	(&Agent{object: &corev1.ObjectReference{}}).event("Normal", "NodeInstallReady", "x")
	(&Agent{events: events}).event("Normal", "NodeInstallReady", "x")
	if len(events.Events) > 0 {
		t.Errorf("event %q", <-events.Events)
	}
}

// A pull counts only of a pod that is there, stays, and has its image.
func TestWhatCountsAsAPull(t *testing.T) {
	in(t, 0, func(t *testing.T, f *fleet) {
		turn, _ := f.newTurn()
		w := work{Agent: &Agent{cluster: turn.cluster}, node: &corev1.Node{}}
		w.node.Name = "node"
		pulled, waits := kubetest.Object{"imageID": "sha256:1"}, kubetest.Object{"state": kubetest.Object{"waiting": kubetest.Object{"reason": "ErrImagePull", "message": "401"}}}
		const none, why = "there is no pod yet that tries a pull", "the pod that tries a pull does not get its image: "
		for _, test := range []struct {
			name     string
			deleted  string
			statuses []any
			want     string
		}{
			{"pulled", "", []any{pulled}, ""},
			{"pulled, and is being deleted", "2026-03-01T12:00:00Z", []any{pulled}, none},
			{"waits", "", []any{waits}, why + "ErrImagePull: 401"},
			{"began", "", []any{kubetest.Object{"imageID": ""}}, why + "the kubelet says nothing of it yet"},
			{"is new", "", nil, why + "the kubelet says nothing of it yet"},
		} {
			metadata := kubetest.Object{"namespace": namespace, "name": "probe", "labels": kubetest.Object{probeLabel: "true"}}
			if test.deleted != "" {
				metadata["deletionTimestamp"] = test.deleted
			}
			f.api.Put("pods", kubetest.Object{"metadata": metadata, "spec": kubetest.Object{"nodeName": "node"}, "status": kubetest.Object{"containerStatuses": test.statuses}})
			if got, err := w.pull(t.Context()); err != nil || !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("%s: %q, %v, want %q", test.name, got, err, test.want)
			}
		}
	})
}

// Without pods that try a pull, a Ready node is enough.
func TestWithoutAProbe(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.unprobed = true
		n.denied.Store(true)
		f.start()
		time.Sleep(time.Minute)
		if r := n.record(); r.State != Ready {
			t.Errorf("%+v", r)
		}
	})
}

// Pods that cannot be listed may be those of before the restart, and may not have pulled.
func TestPodsThatCannotBeListed(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.api.Fail("list pods", forbidden)
		f.start()
		time.Sleep(pullLimit + 10*time.Second)
		if r := n.record(); len(f.restarted()) != 0 || r.State != Failed || !strings.Contains(r.Reason, "not yours") || f.stopped() != nil {
			t.Errorf("before the restart: restarts %q, %+v, stopped: %v", f.restarted(), r, f.stopped())
		}
		f.api.Fail("list pods", nil)
		n.denied.Store(true)
		for range 5 * 60 {
			if time.Sleep(time.Second); n.record().State == Verifying {
				break
			}
		}
		f.api.Fail("list pods", forbidden)
		time.Sleep(pullLimit + 10*time.Second)
		if r := n.record(); len(f.restarted()) != 1 || r.State != Failed || !strings.Contains(r.Reason, "not yours") || f.stopped() == nil {
			t.Errorf("after the restart: restarts %q, %+v, stopped: %v", f.restarted(), r, f.stopped())
		}
	})
}

// A Node that cannot be read after the restart is not taken for a Ready one, and the reason is said.
func TestTheNodeCannotBeRead(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.failing = func(r *http.Request) error {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/nodes/") && n.restarts.Load() > 0 && n.record().State == Installing {
				return errors.New("the request is lost")
			}
			return nil
		}
		f.start()
		time.Sleep(readyLimit + 30*time.Second)
		if s := f.stopped(); s == nil || !strings.Contains(s.Reason, "the request is lost") {
			t.Errorf("stopped: %v", s)
		}
	})
}

// Another node has the turn before this one is done.
func TestTheTurnIsLost(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.lost.Store(true)
		f.start()
		time.Sleep(30 * time.Second)
		f.putLease("other/other-uid", "", nil)
		time.Sleep(time.Minute)
		if r := n.record(); r.State != Failed || !strings.HasPrefix(r.Reason, errLost.Error()) || f.holder() != "other/other-uid" || f.stopped() == nil {
			t.Errorf("%+v, the turn is that of %q, stopped: %v", r, f.holder(), f.stopped())
		}
	})
}

// The desired state cannot be made, as when a file of the pod is missing.
func TestNothingIsDesired(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		n.start(func(context.Context, string) (nodeinstall.Desired, error) {
			return nodeinstall.Desired{}, errors.New("there is no plugin")
		})
		time.Sleep(time.Minute)
		if r := n.record(); r.State != Failed || r.Reason != "there is no plugin" {
			t.Errorf("%+v", r)
		}
	})
}

// A node can have the configuration of a containerd that does not run its pods.
func TestAnotherRuntime(t *testing.T) {
	for runtime, want := range map[string]State{"cri-o://1.36.0": Failed, "docker://29.1.0": Failed, "containerd://2.4.2": Ready, "": Ready} {
		t.Run(string(want)+" with "+runtime, func(t *testing.T) {
			in(t, 1, func(t *testing.T, f *fleet) {
				n := f.nodes["node-00"]
				f.api.Merge("nodes", "", n.name, kubetest.Object{"status": kubetest.Object{"nodeInfo": kubetest.Object{"kubeletVersion": "v1.36.2", "containerRuntimeVersion": runtime}}})
				n.start(func(context.Context, string) (nodeinstall.Desired, error) {
					d := f.desired()
					d.Hosts = map[string][]byte{"ghcr.io": []byte("server = 'https://gateway.example.com/v2/ghcr.io'\n")}
					return d, nil
				})
				time.Sleep(2 * time.Minute)
				if r := n.record(); r.State != want || want == Failed && !strings.HasPrefix(r.Reason, fmt.Sprintf("the node runs %q, ", runtime)) {
					t.Errorf("%+v", r)
				}
				if _, err := os.Stat(filepath.Join(f.root, "node-00/etc/containerd/certs.d")); (err == nil) != (want == Ready) {
					t.Error(err)
				}
			})
		})
	}
}

// A node with CRI-O gets what needs no hosts.toml.
func TestCRIOWithoutHosts(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.api.Merge("nodes", "", n.name, kubetest.Object{"status": kubetest.Object{"nodeInfo": kubetest.Object{"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "cri-o://1.36.1"}}})
		n.start(func(context.Context, string) (nodeinstall.Desired, error) { return f.desired(), nil })
		time.Sleep(2 * time.Minute)
		if r := n.record(); r.State != Ready || !n.installed() {
			t.Errorf("%+v", r)
		}
	})
}

// An installation that cannot be removed is not forgotten.
func TestCannotRemove(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		time.Sleep(2 * time.Minute)
		n.halt()
		testkit.Must(t, os.WriteFile(filepath.Join(f.root, "node-00/var/lib/pullpass/node-install/state.json"), []byte("damaged"), 0o600))
		n.start(nil)
		time.Sleep(10 * time.Minute)
		if r := n.record(); r.State != Failed || !strings.Contains(r.Reason, "state.json") {
			t.Errorf("%+v", r)
		}
	})
}

// An agent that cannot lock the node says why, changes nothing, and ends.
func TestNoLock(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		testkit.Must(t, n.tree.Mkdir(agentLock, 0o755))
		f.start()
		time.Sleep(2 * time.Minute)
		if n.installed() || n.record() != (Record{}) {
			t.Errorf("installed %t, %+v", n.installed(), n.record())
		}
		n.halt()
		if log := n.log.String(); !strings.Contains(log, agentLock) || strings.Contains(log, "another installer") {
			t.Error(log)
		}
	})
}

// While another program changes the node, the agent waits, and the node has not failed.
func TestAnotherProgramChangesTheNode(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		unlock, _, err := n.tree.Lock("/run/pullpass-node-install.lock", true)
		testkit.Must(t, err)
		f.start()
		time.Sleep(10 * time.Second)
		if r := n.record(); r.State != Waiting || r.Reason != nodeinstall.ErrBusy.Error() {
			t.Errorf("%+v", r)
		}
		testkit.Must(t, unlock())
		time.Sleep(2 * time.Minute)
		if r := n.record(); r.State != Ready {
			t.Errorf("%+v", r)
		}
	})
}

// An administrator installs the same with the command. The node then has to pull, in its turn, but its kubelet is not restarted again.
func TestAnotherProgramInstallsTheSame(t *testing.T) {
	for name, isInTurn := range map[string]bool{"before the turn": false, "in the turn": true} {
		t.Run(name, func(t *testing.T) {
			in(t, 1, func(t *testing.T, f *fleet) {
				n := f.nodes["node-00"]
				f.start()
				time.Sleep(10 * time.Minute)
				f.stalled.Store(true)
				n.denied.Store(true)
				f.provider.Store("other.example.com")
				if isInTurn { // it waits there for the end of the pod
					f.api.Put("pods", kubetest.Object{
						"metadata": kubetest.Object{"namespace": namespace, "name": "probe-node-00", "labels": kubetest.Object{probeLabel: "true"}}, "spec": kubetest.Object{"nodeName": n.name},
					})
					for range 10 * 60 {
						if time.Sleep(time.Second); n.record().State == Installing {
							break
						}
					}
				}
				n.silent.Store(true)
				d := f.desired()
				testkit.Value(nodeinstall.New(nodeinstall.Config{Tree: n.tree, Watcher: n}).Apply(t.Context(), d))(t)
				f.stalled.Store(false)
				for range 10 * 60 {
					if time.Sleep(time.Second); n.record().State == Verifying {
						break
					}
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if r := n.record(); r.State != Verifying || len(f.restarted()) != 2 || (f.holder() != "") != isInTurn {
					t.Errorf("%+v, restarts %q, the turn is that of %q", r, f.restarted(), f.holder())
				}
			})
		})
	}
}

// Another program changes files whenever the kubelet starts. Each attempt restarts the kubelet, so there are few.
func TestAnotherProgramUndoesTheRestart(t *testing.T) {
	in(t, 2, func(t *testing.T, f *fleet) {
		for _, n := range f.nodes {
			n.undone.Store(true)
		}
		f.start()
		time.Sleep(30 * time.Minute)
		failed := f.nodes[f.restarted()[0]]
		if r := failed.record(); r.State != Failed || !strings.Contains(r.Reason, nodeinstall.ErrChanged.Error()) {
			t.Errorf("%+v", r)
		}
		if restarts := f.restarted(); len(restarts) > 8 || slices.ContainsFunc(restarts, func(name string) bool { return name != failed.name }) {
			t.Errorf("restarts %q within half an hour", restarts)
		}
	})
}

// An agent that ended after its node was Ready, and before its turn was over, ends the turn when it begins again.
func TestATurnThatWasNotEnded(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		time.Sleep(10 * time.Minute)
		n.halt()
		f.putLease(identity(n.name, "uid-"+n.name), "", nil)
		f.start()
		time.Sleep(time.Second)
		if f.holder() != "" || n.record().State != Ready || len(f.restarted()) != 1 {
			t.Errorf("the turn is that of %q, %+v, restarts %q", f.holder(), n.record(), f.restarted())
		}
	})
}
