package rollouttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const values = `image: {repository: images.example.com/pullpass, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
config:
  clusters: [{name: e2e, issuer: "https://issuer.example.com", audiences: [REGISTRY], kubernetes: {inCluster: true}}]
  registries: [{service: REGISTRY, issuer: pullpass.example.com}]
policy: {}
nodes: {install: {enabled: true, registry: REGISTRY, mode: MODE, taint: true, probe: {image: REGISTRY/pause}}}
`

func valuesFor(registry, mode string) string {
	return strings.NewReplacer("REGISTRY", registry, "MODE", mode).Replace(values)
}

const (
	nodes      = 20
	changed    = 6 // of these, before the next change
	nodesNew   = 50
	roundTrip  = 20 * time.Minute // this takes four on an idle machine
	eventLimit = time.Minute
)

// Twenty nodes restart one after the other, when it is installed and when it is changed. A failure on the first stops the
// others.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	f := startFleet(t, valuesFor("registry.example.com", "install"))
	for i := range nodes {
		f.add(t, fmt.Sprintf("node-%02d", i), false)
	}
	restarts := func(what string) int {
		t.Helper()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.most != 1 {
			t.Fatalf("%s: %d restarts at a time", what, f.most)
		}
		return len(f.restarts)
	}
	busy := func(all map[string]record) int {
		return are(all, "installing") + are(all, "verifying") + are(all, "removing")
	}
	ready := func(wanted int, revision string) func(map[string]record) bool {
		return func(all map[string]record) bool {
			if n := busy(all); n > 1 {
				t.Errorf("%d nodes have their turn: %+v", n, all)
			}
			n := 0
			for _, r := range all {
				if r.State == "ready" && r.Revision != revision {
					n++
				}
			}
			return n >= wanted
		}
	}
	began := time.Now()
	f.until(t, "the first installation", roundTrip, ready(nodes, ""))
	if n := restarts("the first installation"); n != nodes {
		t.Fatalf("%d restarts, want one on each of %d nodes", n, nodes)
	}
	t.Logf("%d nodes were installed in %s", nodes, time.Since(began).Round(time.Second))

	before := f.records(t)["node-00"].Revision
	began = time.Now()
	f.apply(t, valuesFor("other.example.com", "install"))
	f.until(t, "the upgrade", roundTrip, ready(changed, before))
	if n := restarts("the upgrade"); n < nodes+changed || n > nodes+changed+1 {
		t.Fatalf("%d restarts, want one more on each of the %d nodes that were changed", n, changed)
	}
	t.Logf("%d nodes were changed in %s", changed, time.Since(began).Round(time.Second))

	f.mu.Lock()
	for name := range f.nodes {
		f.failures[name] = struct{}{}
	}
	f.mu.Unlock()
	f.apply(t, valuesFor("broken.example.com", "install"))
	f.until(t, "the roll-out stops", roundTrip, func(all map[string]record) bool { return are(all, "rejected") == 1 && are(all, "waiting") == nodes-1 })
	var bad string
	for name, r := range f.records(t) {
		if r.State == "rejected" {
			bad = name
		}
	}
	atStop := restarts("what fails")
	f.until(t, "all say why they wait", roundTrip, func(all map[string]record) bool {
		for name, r := range all {
			if name != bad && !strings.Contains(r.Reason, "is stopped, because of the node "+bad+": the kubelet did not come back") {
				return false
			}
		}
		return true
	})
	if n := restarts("after the stop"); n != atStop {
		t.Errorf("%d restarts after the roll-out was stopped", n-atStop)
	}
	var events string
	if !testenv.Poll(eventLimit, func() bool {
		events = f.events(t, bad)
		return strings.Contains(events, "Warning NodeInstallRejected") && strings.Contains(events, "Normal NodeInstallReady")
	}) {
		t.Errorf("events of %s after %v:\n%s", bad, eventLimit, events)
	}
	if got := f.nodes[bad].provider(); strings.Contains(got, "broken.example.com") {
		t.Errorf("%s does not have what it had:\n%s", bad, got)
	}
}

func (f *fleet) events(t testing.TB, node string) string {
	t.Helper()
	var list struct {
		Items []struct {
			Type, Reason, Message string
			InvolvedObject        struct{ Kind, Name string }
		}
	}
	f.Get(t, "/api/v1/namespaces/default/events").Decode(t, &list)
	var lines []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node {
			lines = append(lines, e.Type+" "+e.Reason+": "+e.Message)
		}
	}
	return strings.Join(lines, "\n")
}

// Fifty nodes come with the taint, and fifty pods wait for them: none of their first pulls fails.
func TestNewNodes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, valuesFor("registry.example.com", "install"))
	f.CreateNamespace(t, "team-a", nil)
	f.CreateServiceAccount(t, "team-a", "web", nil)
	for i := range nodesNew {
		f.Create(t, "/api/v1/namespaces/team-a/pods", cluster.Object{
			"metadata": cluster.Object{"name": fmt.Sprintf("web-%02d", i)},
			"spec": cluster.Object{"serviceAccountName": "web", "automountServiceAccountToken": false, "containers": []cluster.Object{{
				"name": "c", "image": "registry.example.com/team-a/web", "resources": cluster.Object{"requests": cluster.Object{"cpu": "3"}}, // one on each node
			}}},
		})
	}
	for i := range nodesNew {
		f.add(t, fmt.Sprintf("new-%02d", i), true)
	}
	began := time.Now()
	f.until(t, "all pods run", roundTrip, func(map[string]record) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.pulls) >= nodesNew
	})
	t.Logf("%d pods run on %d new nodes after %s, with %d restarts at a time", nodesNew, nodesNew, time.Since(began).Round(time.Second), f.most)
	for _, pull := range f.pulls {
		if !strings.HasSuffix(pull, "on a verified node: true, works: true") {
			t.Error(pull)
		}
	}
	if len(f.pulls) != nodesNew || len(f.restarts) != nodesNew {
		t.Errorf("%d pulls, %d restarts", len(f.pulls), len(f.restarts))
	}
}
