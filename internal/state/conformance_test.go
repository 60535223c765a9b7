package state_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
)

func TestConformanceOfMemory(t *testing.T) {
	t.Parallel()
	statetest.Run(t, func(t *testing.T) [2]statetest.Replica {
		memory, err := state.NewMemory(state.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r := statetest.Replica{Owners: memory, Limits: memory, Revocations: state.NewMemoryRevocations(nil)}
		return [2]statetest.Replica{r, r}
	})
}

func TestConformanceOfRedis(t *testing.T) {
	t.Parallel()
	statetest.Run(t, func(t *testing.T) [2]statetest.Replica {
		server := statetest.Redis(t)
		return replicas(t, state.RedisConfig{Addresses: []string{server.Address()}})
	})
}

// patient is the time limit of calls that are expected to succeed: machines
// that run tests are busy.
const patient = 10 * time.Second

func replicas(t *testing.T, config state.RedisConfig) (both [2]statetest.Replica) {
	t.Helper()
	config.Timeout = patient
	for i := range both {
		redis := open(t, config)
		both[i] = statetest.Replica{Owners: redis, Limits: redis, Revocations: follow(t, redis)}
	}
	return both
}

func open(t testing.TB, config state.RedisConfig) *state.Redis {
	t.Helper()
	redis, err := state.OpenRedis(config)
	if err != nil {
		t.Fatal(err)
	}
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
