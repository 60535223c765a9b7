package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkGrowth requests a manifest from a gateway with a growing number of upstreams. "make
// performance" draws it.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1_000} {
		b.Run(fmt.Sprintf("of=upstreams/n=%d", n), func(b *testing.B) {
			registry := registrytest.NewRegistry(b, "")
			registry.Put(b, "acme/app", "v1", []byte("layer"))
			upstreams := []upstreamSettings{{name: "ghcr.io", to: registry}}
			for i := 1; i < n; i++ {
				upstreams = append(upstreams, upstreamSettings{name: fmt.Sprintf("r%d.example.com", i), url: "https://registry.example.com"})
			}
			r := newRig(b, upstreams...)
			handler, token := r.handler(), r.token("web", "repository:ghcr.io/acme/app:pull")
			defer testkit.MeasureCPU(b)()
			for b.Loop() {
				request := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", nil)
				request.Header.Set("Authorization", "Bearer "+token)
				request.Header.Set("Accept", registrytest.ManifestType)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, request)
				if w.Code != http.StatusOK {
					b.Fatalf("status %d: %s", w.Code, w.Body)
				}
				r.events.take()
			}
		})
	}
}
