package gateway_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Uploads that clients begin and leave cost the gateway nothing: it holds no memory, no goroutine and
// no place for them.
func TestUploadsThatAreLeft(t *testing.T) { // alone: it measures what the whole process holds
	const uploads = 10_000
	registry := registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Location", "/v2/acme/app/blobs/uploads/"+strings.Repeat("0", 1<<10))
		w.WriteHeader(http.StatusAccepted)
	}))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	handler, token := r.handler(), r.token("web", "repository:ghcr.io/acme/app:pull,push")
	send := func(method, path string, body io.Reader) *httptest.ResponseRecorder {
		request := httptest.NewRequest(method, path, body)
		request.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		func() {
			defer func() { _ = recover() }() // as net/http does: the connection ends
			handler.ServeHTTP(w, request)
		}()
		return w
	}
	left := errors.New("the client has left")
	begin := func(n int) {
		for i := range n {
			at := send(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", nil).Header().Get("Location")
			if at == "" {
				t.Fatal("no upload")
			}
			if i%10 == 0 {
				send(http.MethodPatch, at, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(left)))
			}
			r.events.take()
			registry.Asked()
		}
	}
	begin(100)
	before, running := testkit.Heap(), runtime.NumGoroutine()
	begin(uploads)
	if more := int64(testkit.Heap()) - int64(before); more > 2<<20 {
		t.Errorf("%d bytes for %d uploads", more, uploads)
	}
	testkit.Eventually(t, "nothing runs for them", func() bool { return runtime.NumGoroutine() <= running+10 })
	if load := r.memory.Load(); load.Streams != 0 {
		t.Errorf("%d streams", load.Streams)
	}
	runtime.KeepAlive(handler)
}
