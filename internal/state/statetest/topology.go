package statetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// MasterName is the master's name in the Sentinels' configuration.
const MasterName = "pullpass-test"

// Sentinels is a master with one replica, and three Sentinels that watch them.
type Sentinels struct {
	Addresses       []string // of the Sentinels
	Master, Replica *Server
	Processes       []*Server // of the Sentinels
}

// StartSentinels starts five processes, and returns when a failover is
// possible. The arguments are for the master and the replica.
func StartSentinels(tb testing.TB, args ...string) *Sentinels {
	tb.Helper()
	// Redis 7.0 waits five seconds for further replicas.
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	s := &Sentinels{Master: Redis(tb, args...)}
	s.Replica = Redis(tb, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(s.Master.Port)}, args...)...)
	for range 3 {
		config := filepath.Join(tb.TempDir(), "sentinel.conf") // rewritten by the Sentinel
		text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 2\n"+
			"sentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 3000\n", MasterName, s.Master.Port)
		testkit.Must(tb, os.WriteFile(config, []byte(text), 0o600))
		sentinel := start(tb, config, "--sentinel", "--port", "PORT")
		s.Addresses = append(s.Addresses, sentinel.Address())
		s.Processes = append(s.Processes, sentinel)
	}
	for _, address := range s.Addresses {
		client := redis.NewSentinelClient(&redis.Options{Addr: address})
		Eventually(tb, "the Sentinels know each other and the replica", func(ctx context.Context) bool {
			master, err := client.Master(ctx, MasterName).Result()
			if err != nil || master["num-other-sentinels"] != "2" || master["num-slaves"] != "1" {
				return false
			}
			replicas, err := client.Replicas(ctx, MasterName).Result()
			return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
		})
		client.Close()
	}
	return s
}

// Cluster is a Redis Cluster of three masters without replicas.
type Cluster struct {
	Addresses []string
	Nodes     []*Server
}

// StartCluster starts three processes and returns when all slots are served.
func StartCluster(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	const nodes, slots = 3, 16384
	c := &Cluster{}
	var clients []*redis.Client
	var buses []int
	for i := range nodes {
		node := Redis(tb, append([]string{"--cluster-enabled", "yes", "--cluster-port", "OTHER", "--cluster-node-timeout", "2000"}, args...)...)
		client := redis.NewClient(&redis.Options{Addr: node.Address()})
		defer client.Close()
		testkit.Must(tb, client.ClusterAddSlotsRange(tb.Context(), i*slots/nodes, (i+1)*slots/nodes-1).Err())
		c.Nodes, c.Addresses = append(c.Nodes, node), append(c.Addresses, node.Address())
		clients, buses = append(clients, client), append(buses, node.other)
	}
	for i, node := range c.Nodes[1:] {
		testkit.Must(tb, clients[0].Do(tb.Context(), "cluster", "meet", "127.0.0.1", node.Port, buses[i+1]).Err())
	}
	for _, client := range clients {
		Eventually(tb, "the cluster serves all slots", func(ctx context.Context) bool {
			info, err := client.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return c
}

// MoveKeysHalf moves every key to the next node, and leaves its slot between the
// two. It returns how many there were.
func (c *Cluster) MoveKeysHalf(tb testing.TB) (moved int) {
	tb.Helper()
	ctx := tb.Context()
	do := func(client *redis.Client, args ...any) any {
		tb.Helper()
		answer := testkit.Value(client.Do(ctx, args...).Result())(tb)
		return answer
	}
	var clients []*redis.Client
	var keys [][]string
	for _, node := range c.Nodes {
		client := redis.NewClient(&redis.Options{Addr: node.Address()})
		defer client.Close()
		found := testkit.Value(client.Keys(ctx, "*").Result())(tb)
		clients, keys = append(clients, client), append(keys, found)
	}
	for i, source := range clients {
		next := (i + 1) % len(clients)
		target := clients[next]
		for _, key := range keys[i] {
			slot := do(source, "cluster", "keyslot", key)
			do(target, "cluster", "setslot", slot, "importing", do(source, "cluster", "myid"))
			do(source, "cluster", "setslot", slot, "migrating", do(target, "cluster", "myid"))
			do(source, "migrate", "127.0.0.1", c.Nodes[next].Port, key, 0, 5000)
			moved++
		}
	}
	return moved
}

// Eventually waits until a condition of real processes holds.
func Eventually(tb testing.TB, what string, holds func(context.Context) bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startTime)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			tb.Fatalf("after %s it is still not so that %s", startTime, what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
