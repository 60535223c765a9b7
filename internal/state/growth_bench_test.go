package state_test

import (
	"fmt"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkGrowth checks a token against a growing number of revocations. "make performance" draws
// the result.
func BenchmarkGrowth(b *testing.B) {
	id := oidc.Identity{
		Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web"},
			Pod: oidc.ObjectRef{UID: "0b1c5d0e-9d3c-4a51-8f4e-0123456789ab"}, Node: oidc.ObjectRef{Name: "worker-1"}}, TokenID: "0b1c5d0e-9d3c-4a51-8f4e-0123456789ab",
	}
	for _, n := range []int{10, 1_000, 10_000} {
		b.Run(fmt.Sprintf("of=revocations/n=%d", n), func(b *testing.B) {
			revocations := state.NewRedisRevocations(open(b, state.RedisConfig{Addresses: []string{statetest.Redis(b).Address()}, Timeout: patient}))
			for from := 0; from < n; from += 200 {
				batch := make([]state.Revocation, min(200, n-from))
				for i := range batch {
					batch[i] = anyRevocation("a reason that one would give")
					batch[i].Target.Name = fmt.Sprintf("0b1c5d0e-9d3c-4a51-8f4e-%012d", from+i)
				}
				testkit.Must(b, revocations.Fill(b.Context(), batch))
			}
			testkit.Must(b, revocations.Refresh(b.Context()))
			defer testkit.MeasureCPU(b)()
			for b.Loop() {
				if r, err := revocations.Revoked(&id); r != nil || err != nil {
					b.Fatal(r, err)
				}
			}
		})
	}
}
