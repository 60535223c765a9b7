package rollout

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const pluginFile = "/usr/local/libexec/pullpass/pullpass-credential-provider"

// spoil removes a file of the node, as a different program would. It reports whether Repair
// restores the file, and how long that takes.
func (n *simulated) spoil() (isBack bool, took time.Duration) {
	n.t.Helper()
	testkit.Must(n.t, n.tree.Remove(pluginFile, look(n.t, n, pluginFile)))
	start := time.Now()
	testkit.Must(n.t, n.agent.Repair(n.t.Context()))
	return look(n.t, n, pluginFile) != nil, time.Since(start)
}

// Repair does not ask the API server, which may be unavailable.
func TestRepairAtOnce(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		testkit.Must(t, n.agent.Repair(t.Context())) // before anything is installed
		time.Sleep(10 * time.Minute)
		if n.record().State != Ready {
			t.Fatalf("%+v", n.record())
		}
		if len(n.agent.Applied()) != 1 {
			t.Error("it does not say that files were installed")
		}
		<-n.agent.Applied()
		f.api.Refuse(true)
		if isBack, took := n.spoil(); !isBack || took > 0 {
			t.Errorf("put back: %v, after %v", isBack, took)
		}
		if synctest.Wait(); strings.Contains(n.log.String(), "cannot be looked after") {
			t.Errorf("one repair begins a pass: %s", n.log.String())
		}
		f.api.Refuse(false)
		if status := n.agent.Status(); status.Repairs != 1 || status.Restarts != 1 {
			t.Errorf("%+v", status)
		}
		if files := n.agent.Files(); len(files) != 1 || files[0] != n.tree.Path(pluginFile) {
			t.Errorf("%q", files)
		}
		isBack, _ := n.spoil()
		time.Sleep(time.Minute) // events
		if want := "Node node-00 NodeInstallRepaired: another program changed " + pluginFile + ", which was put back"; !isBack || !slices.Contains(f.events(), want) {
			t.Errorf("%v, %q", isBack, f.events())
		}
		time.Sleep(2 * driftInterval)
		if n.record().State != Ready || len(f.restarted()) != 1 || len(n.agent.Applied()) > 0 {
			t.Errorf("%+v, restarts %q, files were installed: %d", n.record(), f.restarted(), len(n.agent.Applied()))
		}
	})
}

// An installer that is started while its node waits does not have the files from before. The node pulls nothing
// without them.
func TestRepairWhileItWaits(t *testing.T) {
	in(t, 3, func(t *testing.T, f *fleet) {
		f.hosts.Store("# good")
		f.start()
		time.Sleep(20 * time.Minute)
		f.hosts.Store("# bad")
		time.Sleep(20 * time.Minute)
		for _, n := range f.nodes {
			if n.record().State != Waiting {
				continue
			}
			n.halt()
			testkit.Must(t, n.tree.Remove(pluginFile, look(t, n, pluginFile)))
			f.start(n.name)
			time.Sleep(10 * time.Second)
			if r := n.record(); r.State != Waiting || look(t, n, pluginFile) == nil || !n.hasHosts("# good") {
				t.Errorf("%s: %+v, plugin %v", n.name, r, look(t, n, pluginFile))
			}
			if isBack, took := n.spoil(); !isBack || took > 0 {
				t.Errorf("put back: %v, after %v", isBack, took)
			}
			testkit.Must(t, n.tree.Remove(hostsFile, look(t, n, hostsFile)))
			f.hosts.Store("# better")
			time.Sleep(5 * time.Minute)
			if !n.hasHosts("# better") || n.record().State != Ready {
				t.Errorf("%+v, %v", n.record(), look(t, n, hostsFile))
			}
			return
		}
		t.Error("no node waits")
	})
}

// Repairs against a program that rewrites files again and again are limited, and people are
// informed.
func TestRepairsAreBounded(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		time.Sleep(10 * time.Minute)
		start := time.Now()
		f.api.Count("")
		for range 3 * maxRepairs {
			if isBack, took := n.spoil(); !isBack || took > repairInterval {
				t.Fatalf("put back: %v; the next repair may follow after %v", isBack, took)
			}
		}
		if took := time.Since(start); took < 2*repairWindow || took > 4*repairWindow {
			t.Errorf("%d repairs took %v", 3*maxRepairs, took)
		}
		if passes := f.api.Count("get nodes"); passes > 5 {
			t.Errorf("%d passes for one contest", passes)
		}
		time.Sleep(2 * time.Second)
		if r := n.record(); r.State != Failed || !strings.HasPrefix(r.Reason, "another program changes "+pluginFile+" again and again") {
			t.Errorf("%+v", r)
		}
		time.Sleep(3 * driftInterval)
		if r := n.record(); r.State != Ready || r.Reason != "" || len(f.restarted()) != 1 {
			t.Errorf("when it has ended: %+v, restarts %q", r, f.restarted())
		}
		told := 0
		for _, event := range f.events() {
			if strings.Contains(event, "NodeInstallFailed") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%q", f.events())
		}
	})
}

// The turn of a node ends although other programs change its files at the same time.
func TestATurnDuringAContest(t *testing.T) {
	in(t, 1, func(t *testing.T, f *fleet) {
		n := f.nodes["node-00"]
		f.start()
		time.Sleep(10 * time.Minute)
		for range maxRepairs {
			n.spoil()
		}
		f.provider.Store("other.example.com")
		time.Sleep(4 * time.Minute)
		if len(f.restarted()) != 2 || f.holder() != "" {
			t.Errorf("restarts %q, the turn is that of %q", f.restarted(), f.holder())
		}
	})
}
