package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registrytest"
)

// deadlines notes how long a client may take when a status is sent.
type deadlines struct {
	*httptest.ResponseRecorder
	write, atStatus time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

func (d *deadlines) SetReadDeadline(time.Time) error { return nil }

func (d *deadlines) WriteHeader(status int) {
	d.atStatus = d.write
	d.ResponseRecorder.WriteHeader(status)
}

// A client gets the time to read its answer from when that begins, and not from when it
// began to send: that may have been hours before.
func TestTimeToRead(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	for path, status := range map[string]int{"/v2/": 200, "/v2/ghcr.io/acme/app/manifests/v1": 200, "/v2/ghcr.io/acme/app/tags/list": 200, "/v2/ghcr.io/acme/app/manifests/v2": 404, "/v2/ghcr.io/acme/other/manifests/v1": 401} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		request := httptest.NewRequest(http.MethodGet, path, nil)
		request.Header.Set("Accept", registrytest.ManifestType)
		request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:pull"))
		r.handler().ServeHTTP(w, request)
		if left := time.Until(w.atStatus); w.Code != status || left < time.Minute || left > time.Hour {
			t.Errorf("%s: %d, with %s to read it", path, w.Code, left)
		}
	}
}
