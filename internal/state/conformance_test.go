package state_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestConformance(t *testing.T) {
	atOnce(t, map[string]func(*testing.T) [2]statetest.Replica{
		"Memory": func(t *testing.T) [2]statetest.Replica {
			memory := newMemory(t, state.MemoryConfig{})
			r := statetest.Replica{Owners: memory, Limits: memory, Revocations: state.NewMemoryRevocations(nil)}
			return [2]statetest.Replica{r, r}
		},
		"Redis": func(t *testing.T) [2]statetest.Replica {
			return replicas(t, state.RedisConfig{Addresses: []string{statetest.Redis(t).Address()}})
		},
		"Redis, owners and limits at once": func(t *testing.T) [2]statetest.Replica {
			both := replicas(t, state.RedisConfig{Addresses: []string{statetest.Redis(t).Address()}})
			for i := range both {
				both[i].Owners = &ownersAtOnce{limits: both[i].Limits.(*state.SharedLimits)}
			}
			return both
		},
		"miniredis, for simulations": func(t *testing.T) [2]statetest.Replica {
			return replicas(t, state.RedisConfig{Addresses: []string{miniredis.RunT(t).Addr()}})
		},
		"Sentinel": func(t *testing.T) [2]statetest.Replica {
			return replicas(t, state.RedisConfig{Addresses: statetest.StartSentinels(t).Addresses, MasterName: statetest.MasterName})
		},
		"Cluster": func(t *testing.T) [2]statetest.Replica {
			return replicas(t, state.RedisConfig{Addresses: statetest.StartCluster(t).Addresses})
		},
		"Redis with TLS and ACL": replicasWithTLS,
		"Sentinel with ACL":      replicasOfSentinelWithACL,
		"Cluster with ACL":       replicasOfClusterWithACL,
	}, statetest.Run)
}

// An operator is told when no replica learns of a change. In a Cluster, the node that announces it is the one that replicas subscribe at.
func TestIsFollowed(t *testing.T) {
	atOnce(t, map[string]func(*testing.T) state.RedisConfig{
		"Redis": func(t *testing.T) state.RedisConfig {
			return state.RedisConfig{Addresses: []string{statetest.Redis(t).Address()}}
		},
		"Sentinel": func(t *testing.T) state.RedisConfig {
			return state.RedisConfig{Addresses: statetest.StartSentinels(t).Addresses, MasterName: statetest.MasterName}
		},
		"Cluster": func(t *testing.T) state.RedisConfig {
			return state.RedisConfig{Addresses: statetest.StartCluster(t).Addresses}
		},
	}, func(t *testing.T, start func(*testing.T) state.RedisConfig) {
		config := start(t)
		config.Timeout = patient
		operator := state.NewRedisRevocations(open(t, config))
		if testkit.Value(operator.IsFollowed(t.Context()))(t) {
			t.Error("an operator follows no list")
		}
		follow(t, open(t, config))
		testkit.Eventually(t, "a replica follows", func() bool { return testkit.Value(operator.IsFollowed(t.Context()))(t) })
	})
}

// ownersAtOnce claims owners together with a bucket that is full.
type ownersAtOnce struct {
	limits *state.SharedLimits
	asked  atomic.Int64
}

func (o *ownersAtOnce) Own(ctx context.Context, key, owner string, until time.Time) (string, error) {
	owned, err := o.limits.OwnAndTake(ctx, key, owner, until, fmt.Sprintf("%p %d", o, o.asked.Add(1)), large)
	return owned.Owner, err
}

// atOnce runs tests that mostly wait for servers. All run at the same time, independent of the
// number of CPUs.
func atOnce[T any](t *testing.T, tests map[string]T, run func(*testing.T, T)) {
	t.Parallel()
	var wg sync.WaitGroup
	for name, test := range tests {
		wg.Go(func() { t.Run(name, func(t *testing.T) { run(t, test) }) })
	}
	wg.Wait()
}

func newMemory(t *testing.T, config state.MemoryConfig) *state.Memory {
	t.Helper()
	memory := testkit.Value(state.NewMemory(config))(t)
	return memory
}

// patient is the time limit of calls that are expected to succeed, because test machines are busy.
const patient = time.Minute

func replicas(t *testing.T, config state.RedisConfig) (both [2]statetest.Replica) {
	t.Helper()
	config.Timeout = patient
	for i := range both {
		redis := open(t, config)
		both[i] = statetest.Replica{Owners: redis, Limits: sharedLimits(t, redis, nil), Revocations: follow(t, redis)}
	}
	return both
}

func open(t testing.TB, config state.RedisConfig) *state.Redis {
	t.Helper()
	redis := testkit.Value(state.OpenRedis(config))(t)
	t.Cleanup(func() { redis.Close() })
	return redis
}

// follow returns revocations that are kept up to date until the test ends.
func follow(t testing.TB, redis *state.Redis) *state.RedisRevocations {
	t.Helper()
	revocations := state.NewRedisRevocations(redis)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { revocations.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return revocations
}
