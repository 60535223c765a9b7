package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/registrytest"
)

// BenchmarkGateway measures a request that is forwarded. It includes the small cost of the
// upstream.
func BenchmarkGateway(b *testing.B) {
	manifest := []byte(`{"schemaVersion":2,"layers":[` + strings.Repeat(" ", 800) + `]}`)
	r := newRig(b, upstreamSettings{name: "ghcr.io", to: registrytest.NewServer(b, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.Contains(q.URL.Path, "/blobs/") {
			w.Header().Set("Location", "https://storage.example.com/blob?signature=0123456789")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", registrytest.ManifestType)
		w.Header().Set("Content-Length", strconv.Itoa(len(manifest)))
		_, _ = w.Write(manifest)
	}))})
	token, handler := r.token("web", "repository:ghcr.io/acme/app:pull"), r.handler()
	for _, kind := range []struct {
		name, path string
		status     int
	}{
		{"manifest", "/manifests/v1", http.StatusOK},
		{"redirect", "/blobs/sha256:" + strings.Repeat("a", 64), http.StatusTemporaryRedirect},
	} {
		b.Run(kind.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app"+kind.path, nil)
				q.Header.Set("Authorization", "Bearer "+token)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, q)
				if w.Code != kind.status {
					b.Fatal(w.Code, w.Body)
				}
				r.events.take()
			}
		})
	}
}
