package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// deadlines records the time that a client has when a status is sent.
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

// pushed is a body that records whether it was read to its end.
type pushed struct {
	io.Reader
	ended bool
}

func (p *pushed) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.ended = err != nil
	return n, err
}

// pushing is a client's connection. It records a read deadline that is set after the client has
// sent everything.
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

// A client that has sent everything waits for the response, for minutes if the registry reads the
// layer again. net/http takes a read that times out then for a client that hung up.
func TestNoBoundAfterABody(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		return true
	})
	body := &pushed{Reader: iotest.DataErrReader(strings.NewReader("layer"))} // like that of net/http, which returns io.EOF with the last bytes
	w := &pushing{ResponseRecorder: httptest.NewRecorder(), body: body}
	request := httptest.NewRequest(http.MethodPut, "/v2/ghcr.io/acme/app/manifests/v1", body)
	request.ContentLength = int64(len("layer"))
	request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:pull,push"))
	r.handler().ServeHTTP(w, request)
	if w.Code != http.StatusCreated || !body.ended || w.before == 0 || w.late > 0 {
		t.Errorf("%d %s, %d bounds, %d of them too late", w.Code, w.Body, w.before, w.late)
	}
}

// The time to read the response starts with the response. The client may have started to send hours
// before.
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

// A client gets the response even if it never sends its announced body.
func TestAnnouncedBodies(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	large := strings.Repeat("x", 1<<20)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, large)
		return true
	})
	token := r.token("web", "repository:ghcr.io/acme/app:pull,push")
	for _, request := range []string{"GET /v2/ghcr.io/acme/app/manifests/v1", "PATCH /v2/ghcr.io/acme/app/blobs/uploads/x", "POST /v2/ghcr.io/acme/app/blobs/uploads/"} {
		connection := testkit.Value(net.Dial("tcp", r.Listener.Addr().String()))(t)
		testkit.Must(t, connection.SetDeadline(time.Now().Add(time.Minute)))
		testkit.Value(io.WriteString(connection, request+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 100\r\n\r\n"))(t)
		response := testkit.Value(http.ReadResponse(bufio.NewReader(connection), nil))(t)
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 404 || strings.HasPrefix(request, "G") && len(body) != len(large) {
			t.Errorf("%s: %s, %d bytes, %v", request, response.Status, len(body), err)
		}
		_ = connection.Close()
	}
}
