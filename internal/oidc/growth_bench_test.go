package oidc

import (
	"fmt"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkGrowth verifies a token that was not seen before, beside more and more
// clusters. "make performance" draws it.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1_000} {
		b.Run(fmt.Sprintf("of=clusters/n=%d", n), func(b *testing.B) {
			raw := keys().rsa.sign(b, payload(b, "kubelet"))
			f := newFixture(b, func(c *Config) {
				for i := 1; i < n; i++ {
					other := c.Issuers[0]
					other.Cluster, other.URL = fmt.Sprintf("other-%d", i), fmt.Sprintf("%s/%d", issuerURL, i)
					c.Issuers = append(c.Issuers, other)
				}
				c.CacheBytes = 1 // it remembers nothing
			})
			defer testkit.MeasureCPU(b)()
			for b.Loop() {
				if _, err := f.Verify(b.Context(), presented(raw)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
