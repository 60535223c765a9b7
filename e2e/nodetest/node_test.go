package nodetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestNode runs the scenarios on a node with each containerd, side by side.
func TestNode(t *testing.T) {
	start := time.Now()
	s := startSite(t)
	nodes := s.startNodes(t)
	seen := &table{}
	seen.add("both", "the cluster with two nodes is ready", "", time.Since(start))
	t.Run("scenarios", func(t *testing.T) {
		for _, n := range nodes {
			for _, sc := range scenarios() {
				t.Run(n.Name()+"/"+sc.name, func(t *testing.T) {
					t.Parallel()
					start := time.Now()
					w := &work{site: s, node: n, prefix: sc.name + "-" + n.Name()}
					said := sc.run(t, w)
					seen.add(n.Name(), sc.about, said, time.Since(start))
				})
			}
		}
	})
	seen.add("both", "all", "", time.Since(start))
	t.Log(seen)
}

// scenario returns what was seen, for the table.
type scenario struct {
	name, about string
	run         func(*testing.T, *work) string
}

func scenarios() []scenario {
	return []scenario{
		{"granted", "a pod with nothing but its ServiceAccount", testGranted},
	}
}

// table is what was seen, in rows.
type table struct {
	mu   sync.Mutex
	rows []string
}

func (b *table) add(node, scenario, seen string, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, fmt.Sprintf("%-40s %-13s %6.1f s  %s", scenario, node, took.Seconds(), seen))
}

func (b *table) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return "what was seen\n" + strings.Join(slices.Sorted(slices.Values(b.rows)), "\n")
}
