package gateway_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each failure of an upstream has its status and reason. The response never says that a resource
// does not exist, and never falls back to an anonymous request.
func TestFailures(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "the upstream's secret text")
			return true
		}
	}
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		status int
		reason string
		code   string
		header [2]string
	}{
		"401":           {status(401, "WWW-Authenticate", `Basic realm="x"`), 502, "upstream_credential", "UNAVAILABLE", [2]string{}},
		"401 of a kind": {status(401, "WWW-Authenticate", `Negotiate`), 502, "upstream_credential", "UNAVAILABLE", [2]string{}},
		"403":           {status(403), 502, "upstream_denied", "UNAVAILABLE", [2]string{}},
		"407":           {status(407), 502, "upstream_credential", "UNAVAILABLE", [2]string{}},
		"429":           {status(429, "Retry-After", "7"), 429, "upstream_limited", "TOOMANYREQUESTS", [2]string{"Retry-After", "7"}},
		"429 without":   {status(429), 429, "upstream_limited", "TOOMANYREQUESTS", [2]string{"Retry-After", "1"}},
		"500":           {status(500), 502, "upstream_failing", "UNAVAILABLE", [2]string{}},
		"502":           {status(502), 502, "upstream_failing", "UNAVAILABLE", [2]string{}},
		"503":           {status(503, "Retry-After", "3"), 503, "upstream_failing", "UNAVAILABLE", [2]string{"Retry-After", "3"}},
		"504":           {status(504), 504, "upstream_failing", "UNAVAILABLE", [2]string{}},
		"a page":        {status(200, "Content-Type", "text/html; charset=utf-8"), 502, "upstream_invalid", "UNAVAILABLE", [2]string{}},
		"304 unasked":   {status(399), 502, "upstream_invalid", "UNAVAILABLE", [2]string{}},
		"nothing":       {func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path != "/v2/" && hangUp(w, "") }, 502, "upstream_unreachable", "UNAVAILABLE", [2]string{}},
		"rubbish": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" && hangUp(w, "rubbish\r\n\r\n")
		}, 502, "upstream_unreachable", "UNAVAILABLE", [2]string{}},
		"two lengths": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" && hangUp(w, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc")
		}, 502, "upstream_unreachable", "UNAVAILABLE", [2]string{}},
		"an upgrade": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" && hangUp(w, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		}, 502, "upstream_invalid", "UNAVAILABLE", [2]string{}},
		"404":              {status(404), 404, "", "", [2]string{}},
		"no registry":      {func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(404); return true }, 502, "upstream_invalid", "UNAVAILABLE", [2]string{}},
		"down for version": {func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true }, 502, "upstream_failing", "UNAVAILABLE", [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, r := newGHCR(t)
			registry.Answer(test.answer)
			got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
			e := r.one()
			if got.status != test.status || e.Reason != test.reason || e.Status != test.status || !strings.Contains(got.body, test.code) {
				t.Errorf("%d %s %s", got.status, got.body, shown(e))
			}
			if test.reason == "" {
				return
			}
			if e.Result != "unavailable" || strings.Contains(got.body, "secret text") || got.header.Get("WWW-Authenticate") != "" {
				t.Errorf("%s: %s %v", shown(e), got.body, got.header)
			}
			if test.header[0] != "" && got.header.Get(test.header[0]) != test.header[1] {
				t.Errorf("%v", got.header)
			}
			for _, asked := range registry.Asked() {
				if _, _, ok := asked.BasicAuth(); !ok && asked.URL.Path != "/v2/" {
					t.Errorf("%s was asked anonymously", asked.URL)
				}
			}
		})
	}
}

// hangUp writes text instead of a response, and ends the connection.
func hangUp(w http.ResponseWriter, text string) bool {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(connection, text)
	_ = connection.Close()
	return true
}

func TestUpstreamDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, upstreamSettings{name: "ghcr.io", url: "https://" + testkit.FreeAddress(t)})
	got := r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app")
	if e := r.one(); got.status != 502 || e.Reason != "upstream_unreachable" || !strings.Contains(e.Message, "connection refused") {
		t.Errorf("%d %s", got.status, shown(e))
	}
	if status := r.clients["ghcr.io"].Status(); !strings.Contains(status.Failure, "connection refused") {
		t.Errorf("%+v", status)
	}
}

// A body that breaks off ends the client's connection, because it must not look complete. The event
// has the status that the client got, and the upstream's failure.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	for name, text := range map[string]string{
		"with a length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"in chunks":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" && hangUp(w, text)
		})
		got := r.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app")
		if got.status != 200 || !strings.Contains(got.body, "half|") {
			t.Errorf("%s: the client got %d %q", name, got.status, got.body)
		}
		if e := r.one(); e.Reason != "upstream_broken" || e.Result != "unavailable" || e.Status != 200 || e.Gateway.Sent != 4 || e.Gateway.UpstreamStatus != 200 {
			t.Errorf("%s: %s", name, shown(e))
		}
	}
}

// After a 429 for a repository, the upstream gets no requests for it for a while, because
// containerd repeats a 429 at once. A different caller is not affected.
func TestHolds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) { c.Now = func() time.Time { return now } }})
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(429)
		return true
	})
	ask := func() answer { return r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app") }
	ask()
	registry.Asked()
	for range 3 {
		if got := ask(); got.status != 429 || got.header.Get("Retry-After") != "20" {
			t.Errorf("%d %v", got.status, got.header)
		}
	}
	if asked := registry.Asked(); len(asked) > 0 || r.clients["ghcr.io"].Status().Held {
		t.Errorf("asked %d times, %+v", len(asked), r.clients["ghcr.io"].Status())
	}
	r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", r.token("other", "repository:ghcr.io/acme/app:pull"), nil)
	if n := registry.Count(http.MethodGet, "/v2/acme/"); n != 1 {
		t.Errorf("for another caller, it was asked %d times", n)
	}
	registry.Answer(nil)
	now = now.Add(21 * time.Second)
	if got := ask(); got.status != 404 {
		t.Errorf("afterwards: %d", got.status)
	}
}

// A changed password is used, and a wrong one is not tried repeatedly.
func TestPasswordChanges(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	file := filepath.Join(t.TempDir(), "password")
	testkit.Must(t, os.WriteFile(file, []byte("wrong"), 0o600))
	now := time.Now()
	clock := func() time.Time { return now }
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) {
		c.Now, c.Logins = clock, basic.New(registrytest.User, file, clock)
	}})
	ask := func() int {
		return r.pull("/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app", "Accept", registrytest.ManifestType).status
	}
	for range 10 {
		if got := ask(); got != 502 {
			t.Errorf("wrong: %d", got)
		}
	}
	if asked := registry.Count(http.MethodGet, "/v2/acme/"); asked > 2 {
		t.Errorf("a wrong registrytest.Password was sent %d times", asked)
	}
	testkit.Must(t, os.WriteFile(file, []byte(registrytest.Password), 0o600))
	now = now.Add(11 * time.Second)
	if got := ask(); got != 200 {
		t.Errorf("right: %d", got)
	}
	testkit.Must(t, os.Remove(file))
	now = now.Add(11 * time.Second)
	if got := ask(); got != 200 {
		t.Errorf("the file is not there: %d", got)
	}
}

// Only listed parts of a request reach the upstream, and only listed parts of a response reach the
// client.
func TestNothingElsePasses(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		for _, name := range []string{"Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate", "Server", "X-Internal", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Refresh", "Connection", "Upgrade", "Alt-Svc"} {
			w.Header().Set(name, "of-the-upstream")
		}
		w.Header().Set("Docker-Content-Digest", "sha256:aa")
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("RateLimit-Limit", "100")
		_, _ = io.WriteString(w, "body")
		return true
	})
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	got := r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1?ns=ghcr.io&other=1", token, nil,
		"Cookie", "a=b", "X-Forwarded-For", "192.0.2.1", "Forwarded", "for=x", "X-Api-Key", "key", "Proxy-Authorization", "Basic eA==", "Upgrade", "h2c", "Connection", "Upgrade",
		"Te", "trailers", "Referer", "https://x", "Accept", "a/b", "Accept", "c/d", "Accept-Encoding", "gzip", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "User-Agent", "client/"+token)
	if got.status != 200 || got.body != "body" || got.header.Get("Etag") != `"x"` || got.header.Get("Ratelimit-Limit") != "100" {
		t.Errorf("%d %v", got.status, got.header)
	}
	for name, values := range got.header {
		if strings.Contains(fmt.Sprint(values), "of-the-upstream") {
			t.Errorf("the client was given %s", name)
		}
	}
	for _, asked := range registry.Asked() {
		if asked.URL.Path == "/v2/" {
			continue
		}
		for name, values := range asked.Header {
			switch name {
			case "Authorization", "User-Agent":
			case "Accept":
				if fmt.Sprint(values) != "[a/b c/d]" {
					t.Errorf("Accept: %q", values)
				}
			default:
				t.Errorf("the upstream was given %s: %q", name, values)
			}
		}
		if asked.URL.RawQuery != "" {
			t.Errorf("query %s", asked.URL.RawQuery)
		}
	}
	if e := r.one(); strings.Contains(shown(e), token) || strings.Contains(shown(e), registrytest.Password) || !strings.HasPrefix(e.Client, "[looks like a token") && !strings.Contains(e.Client, "looks like") || e.Gateway.Digest != "" {
		t.Errorf("%s", shown(e))
	}
}

// A piece of the token is not written down, and still does not hide which tag was requested.
func TestConcealedTags(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	tag := "X" + token[len(token)-20:]
	r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/"+tag, token, nil)
	want := fmt.Sprintf("[looks like a token, 21 bytes], SHA-256 %x", sha256.Sum256([]byte(tag)))
	if e := r.one(); e.Gateway.Reference != want {
		t.Errorf("%s", shown(e))
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	r.do(http.MethodPut, "/v2/ghcr.io/acme/app/manifests/"+digest+"?tag=v1&tag="+tag, token, strings.NewReader("{}"))
	if e := r.one(); !slices.Equal(e.Gateway.Tags, []string{"v1", want}) {
		t.Errorf("%s", shown(e))
	}
}

// Input that two readers could take for two requests is one request here, or is refused.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	token := r.token("web", "repository:ghcr.io/acme/app:pull,push")
	const path = "/v2/ghcr.io/acme/app/blobs/uploads/"
	smuggled := "GET /v2/ghcr.io/acme/app/manifests/smuggled HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	post := func(rest string) string { return "POST " + path + " HTTP/1.1\r\n" + rest }
	chunked := func(rest string) string { return post("Transfer-Encoding: chunked\r\n\r\n" + rest) }
	for name, test := range map[string]struct {
		head   string
		status int
	}{
		"both lengths":               {post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 202},
		"two lengths":                {fmt.Sprintf("POST %s HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n", path, len(smuggled)), 400},
		"the same length twice":      {post("Content-Length: 0\r\nContent-Length: 0\r\n\r\n"), 202},
		"list of lengths":            {post("Content-Length: 0, 0\r\n\r\n"), 400},
		"signed length":              {post("Content-Length: +0\r\n\r\n"), 400},
		"negative length":            {post("Content-Length: -1\r\n\r\n"), 400},
		"length in hex":              {post("Content-Length: 0x0\r\n\r\n"), 400},
		"empty length":               {post("Content-Length:\r\n\r\n"), 400},
		"length with an underscore":  {post("Content_Length: 500\r\n\r\n"), 202},
		"odd chunking":               {post("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 501},
		"chunking twice":             {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"), 501},
		"list of chunking":           {post("Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"), 501},
		"chunking with a tab":        {post("Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n"), 202},
		"chunking with a form feed":  {post("Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"), 400},
		"chunking in HTTP/1.0":       {"POST " + path + " HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 202},
		"space in field":             {post("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400},
		"folded field":               {post("X: a\r\n Content-Length: 5\r\n\r\n"), 202},
		"bare ends of lines":         {strings.ReplaceAll(post("Content-Length: 0\r\n\r\n"), "\r\n", "\n"), 202},
		"bare CR":                    {post("X: a\rContent-Length: 5\r\n\r\n"), 400},
		"zero byte":                  {post("X: a\x00b\r\n\r\n"), 400},
		"chunk extension":            {chunked("0;a=b\r\n\r\n"), 202},
		"chunk extension with an LF": {chunked("2;\nxx\r\n4f\r\n0\r\n\r\n"), 202},
		"long chunk extension":       {chunked("0;" + strings.Repeat("a", 32<<10) + "\r\n\r\n"), 202},
		"chunk in hex with 0x":       {chunked("0x0\r\n\r\n"), 202},
		"signed chunk":               {chunked("+0\r\n\r\n"), 202},
		"huge chunk":                 {chunked("ffffffffffffffff0\r\n\r\n"), 202},
		"chunk longer than its size": {chunked("1\r\nxx\r\n0\r\n\r\n"), 202},
		"trailers":                   {chunked("0\r\nContent-Length: 5\r\nAuthorization: x\r\n\r\n"), 202},
		"absolute":                   {"GET https://ghcr.io/v2/ghcr.io/acme/../other/manifests/v1 HTTP/1.1\r\n\r\n", 307}, // by the mux of the test
		"a GET's body":               {fmt.Sprintf("GET /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n", len(smuggled)), 404},
		"a DELETE's body":            {fmt.Sprintf("DELETE /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n", len(smuggled)), 401},
		"a body that is awaited":     {post(fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(smuggled))), 202},
		"another expectation":        {post("Expect: x\r\nContent-Length: 0\r\n\r\n"), 417},
		"two hosts":                  {post("Host: b\r\nContent-Length: 0\r\n\r\n"), 400},
		"upgrade":                    {post("Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\n\r\n"), 202},
		"HTTP/2":                     {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
		"HTTP/9":                     {"GET " + path + " HTTP/9.9\r\n\r\n", 505},
		"no version":                 {"GET " + path + "\r\n\r\n", 400},
	} {
		connection, err := net.Dial("tcp", r.Listener.Addr().String())
		testkit.Must(t, err)
		first, rest, _ := strings.Cut(test.head, "\n")
		testkit.Must(t, connection.SetDeadline(time.Now().Add(time.Minute)))
		registry.Asked()
		_, err = io.WriteString(connection, first+"\nHost: gateway\r\nConnection: close\r\nAuthorization: Bearer "+token+"\r\n"+rest+smuggled)
		testkit.Must(t, err)
		reader := bufio.NewReader(connection)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, _ = io.Copy(io.Discard, response.Body)
		behind, _ := io.ReadAll(reader)
		if response.StatusCode != test.status || len(behind) > 0 {
			t.Errorf("%s: %d, and %q", name, response.StatusCode, behind)
		}
		_ = connection.Close()
		for _, asked := range registry.Asked() {
			if strings.Contains(asked.URL.Path, "smuggled") || strings.Contains(asked.URL.Path, "other") || asked.Method == http.MethodGet && asked.ContentLength > 0 || len(asked.TransferEncoding) > 0 && asked.ContentLength > 0 {
				t.Errorf("%s: the upstream was asked %s %s", name, asked.Method, asked.URL)
			}
		}
	}
}
