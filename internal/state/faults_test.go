package state_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	// limit is the time limit of calls that are expected to fail.
	limit = 300 * time.Millisecond
	// soon is how late they may be on a busy machine. Without the limits of this package, go-redis
	// would take longer.
	soon = 3 * time.Second
	// paused is the error of calls that were not attempted.
	paused = "failed lately, tried again every second"
)

var revokedPod = oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Pod: oidc.ObjectRef{Name: "pod", UID: "pod-uid"}}}

// rig is a replica with a known revocation.
type rig struct {
	*state.Redis
	revocations *state.RedisRevocations
}

func newRig(t *testing.T, config state.RedisConfig) rig {
	t.Helper()
	config.Timeout = limit
	r := rig{Redis: open(t, config)}
	r.revocations = follow(t, r.Redis)
	r.eventually(t, "an owner can be stored", "before")
	statetest.Eventually(t, "a pod is revoked", func(ctx context.Context) bool {
		return r.revocations.Add(ctx, anyRevocation("a reason")) == nil
	})
	return r
}

func (r rig) own(ctx context.Context, key string) error {
	owner, err := r.Own(ctx, key, "node-1", time.Now().Add(time.Hour))
	if err == nil && owner != "node-1" {
		err = fmt.Errorf("the owner is %q", owner)
	}
	if err != nil && owner != "" {
		return fmt.Errorf("an owner beside an error: %q, %w", owner, err)
	}
	return err
}

func (r rig) take(ctx context.Context) error {
	ok, _, err := r.Take(ctx, "key", state.Limit{Rate: 1e6, Burst: 1e6}, 1)
	if err != nil && ok {
		return fmt.Errorf("taken beside an error: %w", err)
	}
	return err
}

func (r rig) eventually(t *testing.T, what, key string) {
	t.Helper()
	statetest.Eventually(t, what, func(ctx context.Context) bool {
		return r.own(ctx, key) == nil && r.take(ctx) == nil && r.Status().Healthy
	})
}

// fails checks that every call returns in time and with an error, and that known revocations stay
// known.
func (r rig) fails(t *testing.T, calls map[string]func(context.Context) error) {
	t.Helper()
	for name, call := range calls {
		begin := time.Now()
		err := call(t.Context())
		if took := time.Since(begin); err == nil || took > soon {
			t.Errorf("%s: %v after %s, want an error in time", name, err, took)
		}
	}
	if status := r.Status(); status.Healthy || status.LastFailure == "" || status.Failures == 0 || time.Since(status.LastFailureAt) > time.Minute {
		t.Errorf("status: %+v", status)
	}
	r.stillRevoked(t)
	if err := r.own(t.Context(), "before"); err != nil {
		t.Errorf("an owner that was known: %v", err)
	}
}

func (r rig) stillRevoked(t *testing.T) {
	t.Helper()
	if got, err := r.revocations.Revoked(&revokedPod); err != nil || got == nil || got.Reason != "a reason" {
		t.Errorf("Revoked: %+v, %v", got, err)
	}
}

func (r rig) everyCall() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Own":  func(ctx context.Context) error { return r.own(ctx, "during") },
		"Take": r.take,
		"Add":  func(ctx context.Context) error { return r.revocations.Add(ctx, anyRevocation("another reason")) },
		"Remove": func(ctx context.Context) error {
			return r.revocations.Remove(ctx, anyRevocation("").Target, "an operator")
		},
		"List": func(ctx context.Context) error { _, err := r.revocations.List(ctx); return err },
	}
}

func TestFaults(t *testing.T) {
	atOnce(t, map[string]func(*testing.T){
		"Redis killed and started empty": redisKilledAndStartedEmpty, "Redis hangs": redisHangs, "Redis out of memory": redisOutOfMemory,
		"password changes": redisPasswordChanges, "Sentinel failover": sentinelFailover, "Sentinels hang": sentinelsHang,
		"Cluster node hangs": clusterNodeHangs,
	}, func(t *testing.T, test func(*testing.T)) { test(t) })
}

func redisKilledAndStartedEmpty(t *testing.T) {
	server := statetest.Redis(t)
	config := state.RedisConfig{Addresses: []string{server.Address()}, Timeout: 5 * time.Second} // for a busy machine
	r := newRig(t, config)
	removed := state.Target{Kind: state.TargetToken, Name: "removed"}
	testkit.Must(t, r.revocations.Add(t.Context(), state.Revocation{Target: removed, By: "an operator", Reason: "by mistake", Until: time.Now().Add(time.Hour)}))
	testkit.Must(t, r.revocations.Remove(t.Context(), removed, "an operator"))
	server.Kill()
	r.fails(t, r.everyCall())
	server.Start()
	r.eventually(t, "owners are stored again", "after")

	// The server has lost all data. The replica still has it, and restores the revocations but not
	// the removed ones.
	other := state.NewRedisRevocations(open(t, config))
	statetest.Eventually(t, "another replica reads what was restored", func(ctx context.Context) bool {
		list, err := other.List(ctx)
		return err == nil && len(list) == 1 && list[0].Target == anyRevocation("").Target
	})
	r.stillRevoked(t)
	statetest.Eventually(t, "the replica is content", func(context.Context) bool { return r.revocations.Status().LastFailure == "" })
}

func redisHangs(t *testing.T) {
	server := statetest.Redis(t)
	r := newRig(t, state.RedisConfig{Addresses: []string{server.Address()}})
	server.Stop()
	// More callers than connections: those without one wait no longer.
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			begin := time.Now()
			if err := r.own(t.Context(), "during"); err == nil || time.Since(begin) > soon {
				t.Errorf("%v after %s", err, time.Since(begin))
			}
		})
	}
	wg.Wait()
	r.fails(t, r.everyCall())
	r.fastWhileHanging(t)
	server.Continue()
	r.eventually(t, "owners are stored again", "after")
	r.stillRevoked(t)
}

// fastWhileHanging lets many callers call, and counts those that waited. After the first failures,
// it is one a second.
func (r rig) fastWhileHanging(t *testing.T) {
	t.Helper()
	var waited, refused atomic.Int64
	begin := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 50 {
				called := time.Now()
				err := r.take(t.Context())
				took := time.Since(called)
				if err == nil || took > soon {
					t.Errorf("%v after %s", err, took)
				}
				if err != nil && strings.Contains(err.Error(), paused) {
					refused.Add(1)
				} else {
					waited.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if most := int64(time.Since(begin)/time.Second) + 1; waited.Load() > most || refused.Load() == 0 {
		t.Errorf("%d calls waited, %d did not; want at most %d that waited", waited.Load(), refused.Load(), most)
	}
}

func redisOutOfMemory(t *testing.T) {
	server := statetest.Redis(t, "--maxmemory-policy", "noeviction")
	admin := administrator(t, server)
	r := newRig(t, state.RedisConfig{Addresses: []string{server.Address()}})
	setMemory := func(bytes string) {
		testkit.Must(t, admin.ConfigSet(t.Context(), "maxmemory", bytes).Err())
	}
	setMemory("1")
	calls := r.everyCall()
	// Reading needs no memory.
	if err := calls["List"](t.Context()); err != nil {
		t.Error(err)
	}
	delete(calls, "List")
	r.fails(t, calls)
	// A refusal is an answer, so further calls are not paused.
	for range 10 {
		if err := r.own(t.Context(), "during"); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("Own: %v", err)
		}
	}
	setMemory("0")
	r.eventually(t, "owners are stored again", "after")
}

func redisPasswordChanges(t *testing.T) {
	server := statetest.Redis(t)
	admin := administrator(t, server)
	setUser(t, admin, documentedRights(t, false))
	file := testkit.TempFile(t, "password", password)
	r := newRig(t, state.RedisConfig{Addresses: []string{server.Address()}, Username: user, PasswordFile: file})

	// reset ends the user's connections.
	change := []any{"acl", "setuser", user, "reset", "on", ">another password"}
	for _, right := range documentedRights(t, false) {
		change = append(change, right)
	}
	testkit.Must(t, admin.Do(t.Context(), change...).Err())
	testkit.Must(t, admin.ClientKillByFilter(t.Context(), "user", user).Err())
	r.fails(t, r.everyCall())
	if failure := r.Status().LastFailure; strings.Contains(failure, password) || strings.Contains(failure, "another password") {
		t.Errorf("the status holds the password: %s", failure)
	}
	statetest.Eventually(t, "Redis is spared logins that it will refuse", func(ctx context.Context) bool {
		err := r.own(ctx, "during")
		return err != nil && strings.Contains(err.Error(), paused) && strings.Contains(err.Error(), "WRONGPASS")
	})
	testkit.Put(t, file, "another password\n")
	r.eventually(t, "the new password is used", "after")
	r.stillRevoked(t)
}

func sentinelFailover(t *testing.T) {
	servers := statetest.StartSentinels(t)
	r := newRig(t, state.RedisConfig{Addresses: servers.Addresses, MasterName: statetest.MasterName})
	testkit.Must(t, administrator(t, servers.Master).Wait(t.Context(), 1, patient).Err())
	servers.Master.Stop() // it hangs; a killed one is noticed sooner
	r.fails(t, r.everyCall())
	r.fastWhileHanging(t)

	r.eventually(t, "the replica has become master", "after")
	// A different replica calls the new master.
	other := open(t, state.RedisConfig{Addresses: servers.Addresses, MasterName: statetest.MasterName, Timeout: patient})
	var owner string
	// A Sentinel that announces the new master late ends the connections made until then.
	statetest.Eventually(t, "the new master answers the other replica", func(ctx context.Context) (answered bool) {
		var err error
		owner, err = other.Own(ctx, "before", "node-2", time.Now().Add(time.Hour))
		return err == nil
	})
	if owner != "node-1" {
		t.Errorf("the owner of before: %q", owner)
	}
	r.stillRevoked(t)
	statetest.Eventually(t, "revocations are followed again", func(context.Context) bool { return r.revocations.Status().LastFailure == "" })

	// The former master comes back, and no connection to it is used.
	servers.Master.Continue()
	r.eventually(t, "owners are stored again", "afterwards")
}

func sentinelsHang(t *testing.T) {
	servers := statetest.StartSentinels(t)
	r := newRig(t, state.RedisConfig{Addresses: servers.Addresses, MasterName: statetest.MasterName})
	for _, process := range servers.Processes {
		process.Stop()
	}
	servers.Master.Stop()
	r.fails(t, r.everyCall())
	r.fastWhileHanging(t)
	servers.Master.Continue()
	for _, process := range servers.Processes {
		process.Continue()
	}
	r.eventually(t, "owners are stored again", "after")
	r.stillRevoked(t)
}

// clusterNodeHangs checks that calls to each node fail separately: nodes that answer continue to
// answer.
func clusterNodeHangs(t *testing.T) {
	cluster := statetest.StartCluster(t, "--cluster-require-full-coverage", "no")
	r := newRig(t, state.RedisConfig{Addresses: cluster.Addresses})
	cluster.Nodes[1].Stop()
	answered, failed, slow := 0, 0, 0
	for i := range 60 {
		begin := time.Now()
		err := r.own(t.Context(), fmt.Sprint("token ", i))
		took := time.Since(begin)
		if took > soon {
			t.Errorf("%v after %s", err, took)
		}
		switch {
		case err == nil:
			answered++
		case took > limit/2:
			slow++
		default:
			failed++
		}
	}
	// 40 and 20 on average.
	if answered < 20 || failed+slow < 5 || slow > failed+slow/2 {
		t.Errorf("%d calls were answered, %d failed, %d after a while", answered, failed, slow)
	}
	cluster.Nodes[1].Continue()
	statetest.Eventually(t, "all nodes answer again", func(ctx context.Context) bool {
		for i := range 60 {
			if r.own(ctx, fmt.Sprint("token ", i)) != nil {
				return false
			}
		}
		return true
	})
	r.stillRevoked(t)
}
