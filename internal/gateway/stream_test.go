package gateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
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

// pushed is a body, and notes that it was read to its end.
type pushed struct {
	io.Reader
	ended bool
}

func (p *pushed) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.ended = err != nil
	return n, err
}

// pushing is a client's connection, and notes a bound for what it is to send that is set
// when it has sent all.
type pushing struct {
	*httptest.ResponseRecorder
	body         *pushed
	before, late int
}

func (p *pushing) SetWriteDeadline(time.Time) error { return nil }

func (p *pushing) SetReadDeadline(time.Time) error {
	if p.body.ended {
		p.late++
	}
	p.before++
	return nil
}

// Who has sent everything waits for the answer: for minutes, if the registry reads the
// layer again. net/http takes a read that ends then for a client that has left.
func TestNoBoundAfterABody(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		return true
	})
	body := &pushed{Reader: iotest.DataErrReader(strings.NewReader("layer"))} // as net/http's, which ends with its last bytes
	w := &pushing{ResponseRecorder: httptest.NewRecorder(), body: body}
	request := httptest.NewRequest(http.MethodPut, "/v2/ghcr.io/acme/app/manifests/v1", body)
	request.ContentLength = int64(len("layer"))
	request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:pull,push"))
	r.handler().ServeHTTP(w, request)
	if w.Code != http.StatusCreated || !body.ended || w.before == 0 || w.late > 0 {
		t.Errorf("%d %s, %d bounds, %d of them too late", w.Code, w.Body, w.before, w.late)
	}
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
