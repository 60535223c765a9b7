package server

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// FuzzPublic, FuzzGateway and FuzzAdmin send bytes to a listener of a service whose dependencies
// work. No handler panics or answers with 5xx, and there is no token and no request to an upstream
// without a valid credential, which {serviceaccount} and {gateway} in the bytes stand for. {forged}
// and {other} are these with a different signature.
func FuzzPublic(f *testing.F) {
	for _, text := range []string{
		"GET /token?service=registry.example.com&scope=repository:team-a/app:pull HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {serviceaccount}\r\n\r\n",
		"GET /token?service=registry.example.com&scope=repository:team-a/app:pull HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {forged}\r\n\r\n",
		"GET /token?service=registry.example.com&account=x&client_id=y&offline_token=true HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x.y.z\r\n\r\nGET /auth/token/ HTTP/1.0\r\n\r\n",
		"POST /auth/token HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 82\r\n\r\ngrant_type=password&service=registry.example.com&username=x&password=y&client_id=z",
		"POST /token HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n5\r\ngrant\r\n0\r\n\r\n",
		"GET /.well-known/jwks.json HTTP/1.1\r\nHost: a\r\n\r\nHEAD /certificates.pem HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /.well-known/openid-configuration HTTP/1.1\r\nHost: a\r\n\r\nGET /.well-known/keys HTTP/1.1\r\nHost: a\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nCONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nGET http://b/token HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	newListeners(f).fuzz(f, func(s *Server) (http.Handler, *connections) { return s.Public, s.connections })
}

func FuzzGateway(f *testing.F) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, text := range []string{
		"GET /v2/ HTTP/1.1\r\nHost: a\r\n\r\nGET /v2/ HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\n\r\n",
		"GET /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\nRange: bytes=1-2\r\n\r\n",
		"GET /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {other}\r\n\r\n",
		"HEAD /v2/ghcr.io/acme/app/blobs/" + digest + " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\nConnection: close\r\n\r\n",
		"POST /v2/ghcr.io/acme/app/blobs/uploads/?mount=" + digest + "&from=acme/other HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\nContent-Length: 0\r\n\r\n",
		"PUT /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"PATCH /v2/ghcr.io/acme/app/blobs/uploads/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\nContent-Length: 9\r\n\r\nbody",
		"GET /v2/ghcr.io/acme/app/tags/list?n=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\n\r\nDELETE /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {gateway}\r\n\r\n",
		"GET /token?service=gateway.example.com&scope=repository:ghcr.io/acme/app:pull,push HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {serviceaccount}\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	newListeners(f).fuzz(f, func(s *Server) (http.Handler, *connections) { return s.gateway, s.streams })
}

func FuzzAdmin(f *testing.F) {
	for _, text := range []string{
		"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /readyz?verbose HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n",
		"GET /console/ HTTP/1.1\r\nHost: localhost\r\n\r\nGET /console/?result=refused&namespace=a&before=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /console/explain?as=prod/team-a/web&service=registry.example.com&scope=repository:team-a/app:pull HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n",
		"GET /debug/pprof/heap HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /console/ HTTP/1.1\r\nHost: x\r\nOrigin: https://x\r\nContent-Length: 1\r\n\r\na",
	} {
		f.Add([]byte(text))
	}
	newListeners(f).fuzz(f, func(s *Server) (http.Handler, *connections) { return s.admin, nil })
}

// listeners is a service that does not listen: its handlers get connections in memory.
type listeners struct {
	server       *Server
	raw, gateway string // credentials
	upstream     *registrytest.Server
}

func newListeners(f *testing.F) *listeners {
	l := &listeners{raw: kubetest.Token(f, "https://issuer.example.com")}
	l.upstream = registrytest.NewServer(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"name":"acme/app","tags":["v1"]}`)
	}))
	dir := f.TempDir()
	for name, content := range map[string]string{
		"issuer.json":          kubetest.IssuerJWKS(f),
		"password":             registrytest.Password,
		"policy.yaml":          proxytest.PolicyFor("{namespace}/**") + "- name: gateway\n  subjects: [{clusters: [prod]}]\n  services: [gateway.example.com]\n  allow: [{repositories: [ghcr.io/acme/**], actions: [pull, push, delete]}]\n",
		"serviceaccounts.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-1}\n",
		"pullpass.yaml": fmt.Sprintf(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {address: "127.0.0.1:1"}
admin: {address: "127.0.0.1:2", console: true}
gateway: {address: "127.0.0.1:3", url: "https://gateway.example.com", service: gateway.example.com}
clusters:
- {name: prod, issuer: "https://issuer.example.com", audiences: [registry.example.com], discovery: {jwksFile: issuer.json}, kubernetes: {manifestFiles: [serviceaccounts.yaml]}}
registries:
- {service: registry.example.com, issuer: pullpass.example.com}
- {service: gateway.example.com, issuer: pullpass.example.com}
limits: {perServiceAccount: {rate: 1000000, burst: 2147483647}, perAddress: {rate: 1000000, burst: 2147483647}}
upstreams: [%s]
policyFiles: [policy.yaml]
`, strings.TrimPrefix(upstreamEntry("ghcr.io", l.upstream, ", actions: [pull, push, delete]"), "- ")),
	} {
		testkit.Must(f, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	cfg, err := config.Load(filepath.Join(dir, "pullpass.yaml"))
	testkit.Must(f, err)
	l.server, err = New(Config{Config: cfg, InsecureHTTP: true, Version: "test", Getenv: func(string) string { return "" }, Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(f, err)
	for _, w := range l.server.current.Load().workers() {
		go w.Run(f.Context())
	}
	testkit.Eventually(f, "a token is issued", func() bool {
		request, _ := http.NewRequest(http.MethodGet, "http://a/token?service=gateway.example.com&scope=repository:ghcr.io/acme/app:pull,push,delete", nil)
		request.SetBasicAuth("x", l.raw)
		w := &answered{ResponseWriter: &unsentResponse{header: http.Header{}}}
		l.server.Public.ServeHTTP(w, request)
		var answer struct{ Token string }
		l.gateway = ""
		if json.Unmarshal(w.body.Bytes(), &answer) == nil {
			l.gateway = answer.Token
		}
		return l.gateway != ""
	})
	return l
}

type unsentResponse struct{ header http.Header }

func (w *unsentResponse) Header() http.Header         { return w.header }
func (w *unsentResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w *unsentResponse) WriteHeader(int)             {}

// fuzz sends bytes to one of the handlers, as one connection.
func (l *listeners) fuzz(f *testing.F, of func(*Server) (http.Handler, *connections)) {
	handler, bounds := of(l.server)
	f.Fuzz(func(t *testing.T, data []byte) {
		text := string(data)
		isValid := strings.Contains(text, "{serviceaccount}") || strings.Contains(text, "{gateway}")
		text = strings.NewReplacer("{serviceaccount}", basicOf(l.raw), "{forged}", basicOf(testkit.OtherEnd(l.raw)), "{gateway}", l.gateway, "{other}", testkit.OtherEnd(l.gateway)).Replace(text)
		l.upstream.Asked()
		for _, a := range serveBytes(handler, bounds, text) {
			if a.panicked != nil {
				t.Fatalf("%s: panic: %v", a.request, a.panicked)
			}
			if a.status >= http.StatusInternalServerError && !a.gone {
				t.Errorf("%s: %d %s", a.request, a.status, &a.body)
			}
			var answer struct{ Token string }
			if json.Unmarshal(a.body.Bytes(), &answer) == nil && answer.Token != "" && !isValid {
				t.Errorf("%s: a token without a credential", a.request)
			}
			if answer.Token != "" {
				for _, access := range accessOf(t, answer.Token) {
					if !strings.HasPrefix(access.Name, "team-a/") && !strings.HasPrefix(access.Name, "ghcr.io/acme/") {
						t.Errorf("%s: %s is beyond the policy", a.request, access)
					}
				}
			}
		}
		if asked := l.upstream.Asked(); len(asked) > 0 && !isValid {
			for _, r := range asked {
				if r.URL.Path != "/v2/" {
					t.Errorf("the upstream was asked %s %s without a credential", r.Method, r.URL)
				}
			}
		}
	})
}

func basicOf(password string) string {
	return base64.StdEncoding.EncodeToString([]byte("x:" + password))
}

func accessOf(t *testing.T, issued string) []registryauth.Scope {
	t.Helper()
	data := testkit.Value(json.Marshal(testkit.TokenPart(t, issued, 1)["access"]))(t)
	var access []registryauth.Scope
	testkit.Must(t, json.Unmarshal(data, &access))
	return access
}

// answered is a response of a handler.
type answered struct {
	http.ResponseWriter
	request  string
	status   int
	body     bytes.Buffer
	gone     bool // the client hung up first: net/http reads on, and begins before it calls the handler
	panicked any
}

func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answered) WriteHeader(status int) {
	if status >= http.StatusOK && a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answered) Write(p []byte) (int, error) {
	a.status = cmp.Or(a.status, http.StatusOK)
	a.body.Write(p)
	return a.ResponseWriter.Write(p)
}

// serveBytes serves one connection on which a client sends text, and returns the responses.
func serveBytes(handler http.Handler, bounds *connections, text string) []*answered {
	c := &memoryConn{in: text}
	c.changed = sync.NewCond(&c.mu)
	listener := &oneConn{c: c, closed: make(chan struct{})}
	var all []*answered
	server := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answered{ResponseWriter: w, request: r.Method + " " + r.RequestURI}
		all = append(all, a)
		defer func() {
			a.gone = r.Context().Err() != nil
			c.set(func() { c.handling = false })
			if p := recover(); p != nil {
				if p != http.ErrAbortHandler {
					a.panicked = p
				}
				panic(http.ErrAbortHandler)
			}
		}()
		c.set(func() { c.handling = true })
		if r.Body != http.NoBody {
			r = r.WithContext(r.Context()) // net/http looks at its own Body
			r.Body = &memoryBody{r.Body, c}
		}
		handler.ServeHTTP(a, r)
	}), nil, slog.New(slog.DiscardHandler))
	var from net.Listener = listener
	if bounds != nil {
		bounds.attach(server)
		from = bounds.listener(listener, time.Second)
	}
	go func() { _ = server.Serve(from) }()
	<-listener.closed
	_ = server.Close()
	return all
}

// oneConn is a listener with one connection. It is closed when that is.
type oneConn struct {
	c      *memoryConn
	given  bool
	once   sync.Once
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		l.c.ended = func() { l.once.Do(func() { close(l.closed) }) }
		return l.c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// memoryConn is a client that sends in, and takes all that it gets. While a handler runs without
// reading its body, the client waits. Otherwise it hangs up after its last byte.
type memoryConn struct {
	mu       sync.Mutex
	changed  *sync.Cond
	in       string
	handling bool
	reading  bool // the handler reads its body
	past     bool // the read deadline
	closed   bool
	ended    func()
}

func (c *memoryConn) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.changed.Broadcast()
}

func (c *memoryConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.past:
			return 0, os.ErrDeadlineExceeded
		case c.in != "":
			n := copy(p, c.in)
			c.in = c.in[n:]
			return n, nil
		case !c.handling || c.reading:
			return 0, io.EOF
		}
		c.changed.Wait()
	}
}

func (c *memoryConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (c *memoryConn) Close() error {
	c.set(func() { c.closed = true })
	c.ended()
	return nil
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.set(func() { c.past = !t.IsZero() && !t.After(time.Now()) })
	return nil
}

func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }
func (c *memoryConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *memoryConn) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (c *memoryConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

// memoryBody tells the connection when its handler reads the body.
type memoryBody struct {
	io.ReadCloser
	c *memoryConn
}

func (b *memoryBody) Read(p []byte) (int, error) {
	b.c.set(func() { b.c.reading = true })
	defer b.c.set(func() { b.c.reading = false })
	return b.ReadCloser.Read(p)
}
