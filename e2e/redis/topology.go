package redis

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// MasterName is what the Sentinels call their master.
const MasterName = "pullpass"

// Sentinels is a master with one replica, and three Sentinels that watch them.
type Sentinels struct {
	Addresses       []string // of the Sentinels
	Master, Replica *Server
}

// StartSentinels runs all five, and returns when a failover is possible.
func StartSentinels(t testing.TB) *Sentinels {
	t.Helper()
	// Redis 7.0 waits five seconds for further replicas.
	const atOnce = "--repl-diskless-sync-delay"
	s := &Sentinels{Master: Start(t, atOnce, "0")}
	host, port, _ := net.SplitHostPort(s.Master.Address)
	s.Replica = Start(t, atOnce, "0", "--replicaof", host+" "+port)
	var sentinels []*Server
	for range 3 {
		file := filepath.Join(t.TempDir(), "sentinel.conf") // it writes to it
		text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\nsentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 3000\n",
			MasterName, host, port)
		testenv.WriteFile(t, file, text)
		sentinel := Start(t, file, "--sentinel")
		sentinels, s.Addresses = append(sentinels, sentinel), append(s.Addresses, sentinel.Address)
	}
	for _, sentinel := range sentinels {
		sentinel.Await(t, startLimit, func(ctx context.Context) error {
			master, err := sentinel.Try(ctx, "sentinel", "master", MasterName)
			if err != nil {
				return err
			}
			replicas, err := sentinel.Try(ctx, "sentinel", "replicas", MasterName)
			if err == nil && !(has(master, "num-other-sentinels", "2") && has(master, "num-slaves", "1") && has(replicas, "master-link-status", "ok")) {
				err = fmt.Errorf("master %s, replicas %s", master, replicas)
			}
			return err
		})
	}
	return s
}

// has finds a field in an answer of redis-cli, which prints names and values in lines of their own.
func has(answer, name, value string) bool {
	return strings.Contains(answer+"\n", name+"\n"+value+"\n")
}

// Cluster is a Redis Cluster of three masters without replicas.
type Cluster struct{ Nodes []*Server }

// StartCluster runs the nodes, and returns when all slots are served.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{}
	create := []string{"--cluster", "create"}
	for range 3 {
		_, bus, _ := net.SplitHostPort(process.FreeAddress(t))
		node := Start(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000")
		c.Nodes, create = append(c.Nodes, node), append(create, node.Address+"@"+bus)
	}
	if _, err := c.Nodes[0].run(t.Context(), append(create, "--cluster-yes")...); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes {
		node.Await(t, startLimit, func(ctx context.Context) error {
			info, err := node.Try(ctx, "cluster", "info")
			if err == nil && !(strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")) {
				err = fmt.Errorf("cluster info: %s", info)
			}
			return err
		})
	}
	return c
}

// Addresses are those of the nodes.
func (c *Cluster) Addresses() (addresses []string) {
	for _, node := range c.Nodes {
		addresses = append(addresses, node.Address)
	}
	return addresses
}

// Owner is the index of the node that has a key.
func (c *Cluster) Owner(t testing.TB, key string) int {
	t.Helper()
	for i, node := range c.Nodes {
		// A node that has not the key says where it is; one that has it answers.
		if _, err := node.Try(t.Context(), "exists", key); err == nil {
			return i
		}
	}
	t.Fatalf("no node has %s", key)
	return 0
}

// Move moves a number of slots from one node to another, those with the least numbers first.
func (c *Cluster) Move(t testing.TB, from, to, slots int) {
	t.Helper()
	source := c.Nodes[from]
	if _, err := source.run(t.Context(), "--cluster", "reshard", source.Address, "--cluster-from", source.Do(t, "cluster", "myid"),
		"--cluster-to", c.Nodes[to].Do(t, "cluster", "myid"), "--cluster-slots", strconv.Itoa(slots), "--cluster-yes"); err != nil {
		t.Fatal(err)
	}
}

// MoveHalf moves a key, and leaves its slot between the two nodes, as it is while a slot with many keys is moved. MoveRest ends
// that.
func (c *Cluster) MoveHalf(t testing.TB, from, to int, key string) {
	t.Helper()
	source, target := c.Nodes[from], c.Nodes[to]
	slot := source.Do(t, "cluster", "keyslot", key)
	target.Do(t, "cluster", "setslot", slot, "importing", source.Do(t, "cluster", "myid"))
	source.Do(t, "cluster", "setslot", slot, "migrating", target.Do(t, "cluster", "myid"))
	host, port, _ := net.SplitHostPort(target.Address)
	source.Do(t, "migrate", host, port, key, "0", "5000")
}

// MoveRest gives the slot of a key to a node.
func (c *Cluster) MoveRest(t testing.TB, to int, key string) {
	t.Helper()
	id := c.Nodes[to].Do(t, "cluster", "myid")
	slot := c.Nodes[to].Do(t, "cluster", "keyslot", key)
	c.Nodes[to].Do(t, "cluster", "setslot", slot, "node", id) // first, so that the slot always has an owner
	for _, node := range c.Nodes {
		node.Do(t, "cluster", "setslot", slot, "node", id)
	}
}
