package replicatest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// slotsMoved takes some seconds.
const slotsMoved = 3000

// revocationsKey is in docs/how-to/redis.md.
const revocationsKey = "pullpass:revocations"

// testFarRedis lets the way to Redis become long: not so long that calls take more than they may, and longer.
func (w *world) testFarRedis(t *testing.T) {
	server := redis.Start(t)
	server.AddUser(t, password)
	way := relay.Start(t, process.FreeAddress(t), server.Address)
	config := pullpass.Redis{Addresses: []string{way.Address}, Username: redis.User, PasswordFile: writePassword(t)}
	audited, enforced := w.startFleet(t, audit, config), w.startFleet(t, enforce, config)
	audited.startLoad(t)
	enforced.startLoad(t)
	for _, s := range []scenario{
		{
			name:  "slow by 100 ms",
			begin: func() { way.Slow(100 * time.Millisecond) },
			end:   func() { way.Slow(0) },
		},
		{
			name: "slow by 500 ms", silent: true,
			begin: func() { way.Slow(500 * time.Millisecond) },
			end:   func() { way.Slow(0) },
		},
	} {
		w.run(t, s, audited, enforced)
	}
	audited.judgeLines(t, false)
	enforced.judgeLines(t, false)
}

// testSentinel kills the master.
func (w *world) testSentinel(t *testing.T) {
	servers := redis.StartSentinels(t)
	for _, server := range []*redis.Server{servers.Master, servers.Replica} {
		server.AddUser(t, password)
	}
	f := w.startFleet(t, enforce, pullpass.Redis{
		Addresses: servers.Addresses, MasterName: redis.MasterName, Username: redis.User, PasswordFile: writePassword(t),
	})
	f.startLoad(t)
	w.run(t, scenario{
		name: "master killed", silent: true, forgets: true,
		begin: func() { servers.Master.Kill(t) },
	}, f)
	f.judgeLines(t, true)
}

// testCluster moves slots from one node to another.
func (w *world) testCluster(t *testing.T) {
	cluster := redis.StartCluster(t)
	for _, node := range cluster.Nodes {
		node.AddUser(t, password)
	}
	f := w.startFleet(t, enforce, pullpass.Redis{Addresses: cluster.Addresses(), Username: redis.User, PasswordFile: writePassword(t)})
	f.startLoad(t)
	testenv.Must(t, f.revoke(t, "first")) // so that the list is there, and somewhere
	from := cluster.Owner(t, revocationsKey)
	for _, s := range []scenario{
		{
			name: "slot half moved",
			begin: func() {
				cluster.MoveHalf(t, from, (from+1)%3, revocationsKey)
				f.revokeFor(t, "during-the-move")
			},
			end: func() { cluster.MoveRest(t, (from+1)%3, revocationsKey) },
		},
		{
			name:  "slots moved",
			begin: func() { cluster.Move(t, (from+1)%3, from, slotsMoved) },
		},
	} {
		w.run(t, s, f)
	}
	f.judgeLines(t, false)
}

// testReplicas lets replicas end: by a crash, and one after the other for an update.
func (w *world) testReplicas(t *testing.T) {
	server := redis.Start(t)
	server.AddUser(t, password)
	// Whether Redis answers in time on a busy machine does not matter to the replicas that only write down what they do not know.
	f := w.startFleet(t, audit, pullpass.Redis{Addresses: []string{server.Address}, Username: redis.User, PasswordFile: writePassword(t)})
	f.startLoad(t)
	for _, s := range []scenario{
		{
			name: "replica killed", breaks: 60,
			begin: func() { f.retire().Kill(t) },
			end:   func() { f.add(t) },
		},
		{
			// As a Deployment does it: the next one is ready before one is told to end. Nothing breaks off.
			name: "rolling restart",
			begin: func() {
				for range replicas {
					f.add(t)
					// The load balancer still sends it connections, until it looks.
					f.retire().Stop(t)
					f.balance(t)
				}
			},
		},
	} {
		w.run(t, s, f)
	}
	f.judgeLines(t, false)
}

// add runs one more replica behind the load balancer.
func (f *fleet) add(t *testing.T) {
	t.Helper()
	f.replicas = append(f.replicas, pullpass.StartReady(t, f.ca, f.config))
	f.balance(t)
}

// retire takes the oldest replica off the list, and leaves it behind the load balancer.
func (f *fleet) retire() *pullpass.Proxy {
	oldest := f.replicas[0]
	f.retired, f.replicas = append(f.retired, oldest), f.replicas[1:]
	return oldest
}

func writePassword(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	testenv.WriteFile(t, file, password)
	return file
}
