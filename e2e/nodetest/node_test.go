package nodetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/node"
)

// TestNode runs the scenarios on a node with each containerd, side by side.
func TestNode(t *testing.T) {
	start := time.Now()
	s := startSite(t)
	nodes := s.startNodes(t)
	s.table.add(0, "all", "the cluster with its two nodes is ready", "", time.Since(start))
	t.Run("together", func(t *testing.T) {
		for _, n := range nodes {
			for i, scenario := range scenarios() {
				t.Run(n.Name()+"/"+scenario.name, func(t *testing.T) {
					t.Parallel()
					w := &work{site: s, node: n, order: i + 1, namespace: scenario.name + "-" + n.Name(), since: time.Now()}
					w.account(t, "puller", nil)
					scenario.run(t, w)
				})
			}
		}
	})
	t.Run("alone", func(t *testing.T) { // these end the Pullpass of the others; their programs end with this
		testDisruptions(t, s, nodes)
		testClocks(t, s, nodes)
	})
	s.checkReplays(t)
	s.table.add(len(scenarios())+4, "all", "all of it", "", time.Since(start))
	t.Log(s.table)
}

type scenario struct {
	name string
	run  func(*testing.T, *work)
}

func scenarios() []scenario {
	return []scenario{
		{"granted", testGranted},
		{"annotated", testAnnotated},
		{"recreated", testRecreated},
		{"present", testPresent},
		{"volume", testImageVolume},
		{"secret", testPullSecret},
		{"mistakes", testMistakes},
		{"static", testStaticPod},
		{"no-client", testNoClientCertificate},
		{"stolen", testStolenToken},
		{keptScenario, testKeptSecret},
	}
}

// work is a scenario on a node. It has a namespace of that name, and a ServiceAccount puller in it.
type work struct {
	*site
	node      *node.Node // nil: all of them
	order     int
	namespace string
	since     time.Time // the last line of the table, or the beginning
}

// saw adds a line to the table, with the time since the last.
func (w *work) saw(what, format string, args ...any) {
	name := "all"
	if w.node != nil {
		name = w.node.Name()
	}
	w.table.add(w.order, name, what, fmt.Sprintf(format, args...), time.Since(w.since))
	w.since = time.Now()
}

// table is what was seen, in the order of the scenarios.
type table struct {
	mu   sync.Mutex
	rows []row
}

type row struct {
	order int
	text  string
}

func (b *table) add(order int, node, what, seen string, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, row{order, fmt.Sprintf("%-52s %-12s %6.1f s  %s", what, node, took.Seconds(), seen)})
}

func (b *table) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortStableFunc(b.rows, func(a, b row) int { return cmp.Compare(a.order, b.order) })
	var text strings.Builder
	text.WriteString("what was seen\n")
	for _, r := range b.rows {
		text.WriteString(r.text + "\n")
	}
	return text.String()
}
