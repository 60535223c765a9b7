package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A stream of a revoked holder ends, whatever it waits for: an upstream that does not respond or
// stalls, or a client that stalls.
func TestStreamsOfTheRevokedEnd(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	reached := make(chan bool, 1)
	registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
		switch {
		case strings.HasSuffix(q.URL.Path, "/manifests/slow"):
			reached <- true
			<-q.Context().Done()
		case strings.Contains(q.URL.Path, "/blobs/sha256:"):
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			reached <- true
			<-q.Context().Done()
		case q.Method == http.MethodPut:
			_, _ = q.Body.Read(make([]byte, 1))
			reached <- true
			_, _ = io.Copy(io.Discard, q.Body)
		default:
			return false
		}
		return true
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.memory.Run(ctx) })
	defer running.Wait()
	defer stop()
	token := r.token("web", "repository:ghcr.io/acme/app:pull,push")
	unsent, sender := io.Pipe()
	go func() { _, _ = io.WriteString(sender, "{") }()
	for name, test := range map[string]struct {
		method, path string
		body         io.Reader
		status       int
	}{
		"no answer":           {http.MethodGet, "/v2/ghcr.io/acme/app/manifests/slow", nil, http.StatusForbidden},
		"half an answer":      {http.MethodGet, "/v2/ghcr.io/acme/app/blobs/" + registrytest.DigestOf(nil), nil, http.StatusOK},
		"a body that goes on": {http.MethodPut, "/v2/ghcr.io/acme/app/manifests/v1", unsent, http.StatusForbidden},
	} {
		r.revocations.set("")
		got := make(chan answer, 1)
		go func() {
			got <- r.do(test.method, test.path, token, test.body, "Content-Type", registrytest.ManifestType)
		}()
		<-reached
		r.revocations.set("jti-web")
		testkit.Eventually(t, name+" ends", func() bool { return r.memory.Load().Streams == 0 })
		if e := r.one(); e.Reason != "revoked" || e.Revocation == nil || e.Revocation.By != "root" || e.Status != test.status {
			t.Errorf("%s: %s", name, shown(e))
		}
		if test.body != nil {
			_ = sender.Close() // net/http's client waits for that
		}
		if a := <-got; strings.HasSuffix(a.body, "half") {
			t.Errorf("%s: half an answer seems to be whole", name)
		}
	}
}

// A client that hangs up while it waits for a place is not one that has too many streams.
func TestAClientHangsUpWhileItWaits(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	r.memory = gateway.NewMemory(1)
	r.config.Memory = r.memory
	registry.Answer(func(_ http.ResponseWriter, q *http.Request) bool {
		<-q.Context().Done()
		return true
	})
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	var clients sync.WaitGroup
	defer clients.Wait()
	pull := func() (hangUp func()) {
		ctx, cancel := context.WithCancel(t.Context())
		clients.Go(func() {
			q := testkit.Value(http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/v2/ghcr.io/acme/app/manifests/v1", nil))(t)
			q.Header.Set("Authorization", "Bearer "+token)
			if response, err := http.DefaultTransport.RoundTrip(q); err == nil {
				t.Errorf("status %d", response.StatusCode)
				_ = response.Body.Close()
			}
		})
		return cancel
	}
	defer pull()()
	testkit.Eventually(t, "the place is taken", func() bool { return r.memory.Load().Streams == 1 })
	second := pull()
	testkit.Eventually(t, "another client waits", func() bool { return r.memory.Load().Streams == 2 })
	second()
	testkit.Eventually(t, "it has left", func() bool { return r.memory.Load().Streams == 1 })
	if e := r.one(); e.Status != 499 || e.Reason != "request_canceled" {
		t.Errorf("%s", shown(e))
	}
}

// A holder with all places, and with all that may wait, is told to try again. Its request does not reach the
// upstream.
func TestNoPlaceAndNoneToWait(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	r.memory = gateway.NewMemory(1)
	r.config.Memory = r.memory
	reached, release := make(chan bool, 3), make(chan bool)
	registry.Answer(func(_ http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path == "/v2/" {
			return false
		}
		reached <- true
		<-release
		return true
	})
	var clients sync.WaitGroup
	defer clients.Wait()
	defer close(release)
	answers := make(chan answer, 3)
	pull := func() {
		clients.Go(func() { answers <- r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app") })
	}
	pull()
	<-reached
	pull()
	pull()
	select {
	case got := <-answers:
		if e := r.one(); got.status != 429 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "TOOMANYREQUESTS") || e.Reason != "limited_holder" {
			t.Errorf("%d %s %s", got.status, got.body, shown(e))
		}
	case <-reached:
		t.Error("two at once, and one place")
	}
}
