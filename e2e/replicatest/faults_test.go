package replicatest

import (
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/redis"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const password = "not-a-secret"

func TestFaults(t *testing.T) {
	w := startWorld(t)
	t.Run("one Redis", w.testOneRedis)
	t.Run("far Redis", w.testFarRedis)
	t.Run("Sentinel", w.testSentinel)
	t.Run("Cluster", w.testCluster)
	t.Run("replicas", w.testReplicas)
	t.Log("what was seen\n" + w.report.String())
	testenv.Must(t, w.report.write())
}

// testOneRedis lets one server fail in every way, on a machine of its own. No replica is started again.
func (w *world) testOneRedis(t *testing.T) {
	link := isolate.NewLink(t)
	server := redis.StartBy(t, link.Command, link.Address()+":6379", "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	server.AddUser(t, password)
	passwordFile := filepath.Join(t.TempDir(), "password")
	testenv.WriteFile(t, passwordFile, password)
	config := pullpass.Redis{Addresses: []string{server.Address}, Username: redis.User, PasswordFile: passwordFile}
	audited, enforced := w.startFleet(t, audit, config), w.startFleet(t, enforce, config)
	audited.startLoad(t)
	enforced.startLoad(t)
	setMemory := func(bytes string) { server.Do(t, "config", "set", "maxmemory", bytes) }
	setPassword := func(to string) { testenv.WriteFile(t, passwordFile, to) }
	for _, s := range []scenario{
		{
			name: "killed", silent: true,
			begin: func() { server.Kill(t) },
			end:   func() { server.Restart(t); server.AddUser(t, password) },
		},
		{
			name: "paused", silent: true,
			begin: func() { server.Freeze(t) },
			end:   func() { server.Thaw(t) },
		},
		{
			name: "partitioned", silent: true,
			begin: func() { link.Cut(t) },
			end:   func() { link.Restore(t) },
		},
		{
			// The replicas do not receive the end of their connections.
			name: "machine replaced", silent: true,
			begin: func() { link.Cut(t); server.Kill(t); server.Restart(t); server.AddUser(t, password) },
			end:   func() { link.Restore(t) },
		},
		{
			name: "full", silent: true,
			begin: func() { setMemory("1") },
			end:   func() { setMemory("0") },
		},
		{
			name: "other password", silent: true,
			begin: func() {
				server.Do(t, "acl", "setuser", redis.User, "resetpass", ">another")
				server.Do(t, "client", "kill", "user", redis.User)
			},
			end: func() { setPassword("another") },
		},
		{
			name: "password changed in order", // as docs/how-to/redis.md says
			begin: func() {
				server.Do(t, "acl", "setuser", redis.User, ">"+password)
				setPassword(password)
				server.Do(t, "acl", "setuser", redis.User, "<another")
				server.Do(t, "client", "kill", "user", redis.User) // nothing does that in operation, and it is the worst that can be done
			},
		},
	} {
		w.run(t, s, audited, enforced)
	}
	audited.judgeLines(t, false)
	enforced.judgeLines(t, false)
}
