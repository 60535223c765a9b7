package state_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkState measures the cost of each call for a request. With Redis it is mostly the round
// trip, here over loopback.
func BenchmarkState(b *testing.B) {
	memory, err := state.NewMemory(state.MemoryConfig{OwnerBytes: 1 << 40})
	testkit.Must(b, err)
	redis := open(b, state.RedisConfig{Addresses: []string{statetest.Redis(b).Address()}, Timeout: patient})
	shared := sharedLimits(b, redis, nil)
	end := time.Now().Add(time.Hour)
	limit := state.Limit{Rate: 1e6, Burst: 1e6}
	first := 0
	for _, use := range []struct {
		name string
		call func(ctx context.Context, i int) error
	}{
		{"Own/store=memory", func(ctx context.Context, i int) error {
			_, err := memory.Own(ctx, strconv.Itoa(i%1000), "node-1", end)
			return err
		}},
		{"Own/store=redis-first", func(ctx context.Context, i int) error {
			first++
			_, err := redis.Own(ctx, strconv.Itoa(first), "node-1", end)
			return err
		}},
		{"Own/store=redis-known", func(ctx context.Context, i int) error {
			_, err := redis.Own(ctx, "known", "node-1", end)
			return err
		}},
		{"Take/store=memory", func(ctx context.Context, i int) error {
			_, _, err := memory.Take(ctx, strconv.Itoa(i%1000), limit, 1)
			return err
		}},
		{"Take/store=redis-in-advance", func(ctx context.Context, i int) error {
			_, _, err := shared.Take(ctx, strconv.Itoa(i%1000), limit, 1)
			return err
		}},
		{"Take/store=redis", func(ctx context.Context, i int) error {
			_, _, err := redis.Take(ctx, strconv.Itoa(i%1000), limit, 1)
			return err
		}},
	} {
		b.Run(use.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				testkit.Must(b, use.call(b.Context(), i))
			}
		})
	}
}

// BenchmarkRevocations measures a lookup and a reading of the longest list.
func BenchmarkRevocations(b *testing.B) {
	redis := open(b, state.RedisConfig{Addresses: []string{statetest.Redis(b).Address()}, Timeout: patient})
	revocations := state.NewRedisRevocations(redis)
	for i := range 50 {
		batch := make([]state.Revocation, 200)
		for j := range batch {
			batch[j] = anyRevocation("a reason that one would give")
			batch[j].Target.Name = fmt.Sprintf("0b1c5d0e-9d3c-4a51-8f4e-%012d", 200*i+j)
		}
		testkit.Must(b, revocations.Fill(b.Context(), batch))
	}
	testkit.Must(b, revocations.Refresh(b.Context()))
	b.Run("Revoked", func(b *testing.B) {
		b.ReportAllocs()
		id := oidc.Identity{
			Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web"},
				Pod: oidc.ObjectRef{UID: "0b1c5d0e-9d3c-4a51-8f4e-0123456789ab"}, Node: oidc.ObjectRef{Name: "worker-1"}}, TokenID: "0b1c5d0e-9d3c-4a51-8f4e-0123456789ab",
		}
		for b.Loop() {
			if r, err := revocations.Revoked(&id); r != nil || err != nil {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("Read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			testkit.Must(b, revocations.Refresh(b.Context()))
		}
	})
}
