package fleet_test

import (
	"testing"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

func TestPodOf(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]fleet.Pod{
		0:                     {"team-platform", "daemon-0", "daemon-0-0000000", "node-00000"},
		fleet.PodsPerNode + 4: {"team-platform", "daemon-4", "daemon-4-0000034", "node-00001"},
		fleet.PodsPerNode + 5: {"team-2", "app-25", "app-25-0000035", "node-00001"},
	} {
		if got := fleet.PodOf(number); got != want {
			t.Errorf("pod %d is %+v, want %+v", number, got, want)
		}
	}
}

// The storm depends on this: only for DaemonSets, the requests of one ServiceAccount grow with the nodes.
func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	pods := map[int]int{}
	for number := range fleet.Nodes * fleet.PodsPerNode {
		pods[fleet.ServiceAccountOf(number)]++
	}
	if len(pods) != fleet.Workloads+fleet.DaemonSets {
		t.Errorf("%d ServiceAccounts", len(pods))
	}
	for account, n := range pods {
		switch {
		case account >= fleet.Workloads && n != fleet.Nodes:
			t.Errorf("DaemonSet %d has %d pods, want one on each node", account, n)
		case account < fleet.Workloads && n != 62 && n != 63:
			t.Errorf("workload %d has %d pods", account, n)
		}
	}
}
