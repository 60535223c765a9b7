package oidc

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const keysPath = "/openid/v1/jwks"

// issuerServer is an issuer behind TLS. Handlers can be replaced.
type issuerServer struct {
	*httptest.Server
	caFile string

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc

	discoveries, keyReads atomic.Int64
	bearers               sync.Map // path → Authorization header last seen
}

func newIssuerServer(t *testing.T, pairs ...keyPair) *issuerServer {
	t.Helper()
	s := &issuerServer{caFile: filepath.Join(t.TempDir(), "ca.pem"), handlers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewUnstartedServer(s)
	testkit.Must(t, s.Listener.Close())
	s.Listener = testkit.Listen(t)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	testkit.Put(t, s.caFile, pkitest.PEM("CERTIFICATE", s.Certificate().Raw))
	s.answer(wellKnownPath, discoveryDocument(s.URL, s.URL+keysPath))
	s.publish(t, pairs...)
	return s
}

func discoveryDocument(issuer, keysURL string) string {
	data, _ := json.Marshal(map[string]any{"issuer": issuer, "jwks_uri": keysURL, "response_types_supported": []string{"id_token"}})
	return string(data)
}

func (s *issuerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case wellKnownPath:
		s.discoveries.Add(1)
	case keysPath:
		s.keyReads.Add(1)
	}
	s.bearers.Store(r.URL.Path, r.Header.Get("Authorization"))
	s.mu.Lock()
	handler := s.handlers[r.URL.Path]
	s.mu.Unlock()
	if handler == nil {
		http.NotFound(w, r)
		return
	}
	handler(w, r)
}

func (s *issuerServer) handle(path string, handler http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[path] = handler
}

func (s *issuerServer) answer(path, body string) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
}

func (s *issuerServer) fail(path string, status int) {
	s.handle(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
}

func (s *issuerServer) publish(t *testing.T, pairs ...keyPair) {
	t.Helper()
	s.answer(keysPath, string(keySetJSON(t, pairs...)))
}

func (s *issuerServer) bearer(path string) any {
	value, _ := s.bearers.Load(path)
	return value
}

// newServedFixture makes a Verifier for the issuer of this server.
func newServedFixture(t *testing.T, s *issuerServer, change func(*Discovery)) *fixture {
	t.Helper()
	return newFixture(t, func(c *Config) {
		i := &c.Issuers[0]
		i.URL, i.Discovery = s.URL, Discovery{CAFile: s.caFile}
		if change != nil {
			change(&i.Discovery)
		}
	})
}

// token returns a token of the issuer of this server.
func (s *issuerServer) token(t *testing.T, k keyPair) string {
	t.Helper()
	return k.sign(t, payload(t, "kubelet", issuerURL, s.URL))
}

func TestWaysToTheKeys(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		change      func(s *issuerServer, d *Discovery)
		discoveries int64
	}{
		{"discovery below the issuer", func(*issuerServer, *Discovery) {}, 1},
		{"discovery URL", func(s *issuerServer, d *Discovery) {
			s.answer("/elsewhere", discoveryDocument(s.URL, s.URL+keysPath))
			d.URL = s.URL + "/elsewhere"
		}, 0},
		{"JWKS URL", func(s *issuerServer, d *Discovery) { d.JWKSURL = s.URL + keysPath }, 0},
		{"redirects on the same host", func(s *issuerServer, d *Discovery) {
			s.handle("/1", http.RedirectHandler("/2", http.StatusFound).ServeHTTP)
			s.handle("/2", http.RedirectHandler(s.URL+"/3", http.StatusMovedPermanently).ServeHTTP)
			s.handle("/3", http.RedirectHandler(keysPath, http.StatusTemporaryRedirect).ServeHTTP)
			d.JWKSURL = s.URL + "/1"
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newIssuerServer(t, keys().rsa)
			f := newServedFixture(t, s, func(d *Discovery) { test.change(s, d) })
			for range 3 {
				accept(t, f.Verifier, s.token(t, keys().rsa))
			}
			if d, k := s.discoveries.Load(), s.keyReads.Load(); d != test.discoveries || k != 1 {
				t.Errorf("%d discoveries, %d reads of the keys", d, k)
			}
			if status := f.Status()[0]; status.Keys != 1 || status.Fetches != 1 || status.Failures != 0 || !status.FetchedAt.Equal(f.clock.Now()) {
				t.Errorf("status %+v", status)
			}
		})
	}
}

func TestIssuerWithAPath(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"/clusters/a", "/clusters/a/"} {
		s := newIssuerServer(t, keys().rsa)
		issuer := s.URL + suffix
		s.answer("/clusters/a"+wellKnownPath, discoveryDocument(issuer, s.URL+keysPath))
		f := newFixture(t, func(c *Config) {
			c.Issuers[0].URL, c.Issuers[0].Discovery = issuer, Discovery{CAFile: s.caFile}
		})
		accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet", issuerURL, issuer)))
	}
}

// Each case lets a fetch fail. The caller learns nothing of the cause; the log
// and the readiness page do.
func TestFailedFetches(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat(" ", maxDocumentBytes)
	for _, test := range []struct {
		name   string
		change func(t *testing.T, s *issuerServer, d *Discovery)
		want   string
	}{
		{"no server", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.Close() }, "connection refused"},
		{"unknown CA", func(_ *testing.T, _ *issuerServer, d *Discovery) { d.CAFile = "" }, "the CA of the issuer's certificate belongs into discovery.caFile"},
		{"CA of another issuer", func(t *testing.T, _ *issuerServer, d *Discovery) {
			d.CAFile = filepath.Join(t.TempDir(), "other.pem")
			testkit.Put(t, d.CAFile, pkitest.CertPEM(pkitest.NewCA(t, nil)))
		}, "certificate signed by unknown authority"},
		{"CA file missing", func(_ *testing.T, _ *issuerServer, d *Discovery) { d.CAFile += "x" }, "discovery.caFile: open"},
		{"CA file empty", func(t *testing.T, s *issuerServer, _ *Discovery) { testkit.Put(t, s.caFile, "") }, "holds no PEM certificate"},
		{"CA file too long", func(t *testing.T, s *issuerServer, _ *Discovery) { testkit.Put(t, s.caFile, []byte(huge+" ")) }, "ca.pem: longer than 1048576 bytes"},
		{"token file is a FIFO", func(t *testing.T, s *issuerServer, d *Discovery) {
			d.TokenFile = filepath.Join(t.TempDir(), "fifo")
			testkit.Must(t, syscall.Mkfifo(d.TokenFile, 0o600))
		}, "fifo is not a regular file but a FIFO; name one"},
		{"token file missing", func(_ *testing.T, s *issuerServer, d *Discovery) { d.TokenFile = s.caFile + "x" }, "discovery.tokenFile: open"},
		{"token file empty", func(t *testing.T, s *issuerServer, d *Discovery) {
			d.TokenFile = s.caFile + "x"
			testkit.Put(t, d.TokenFile, " \n")
		}, "holds no token"},
		{"token file with two lines", func(t *testing.T, s *issuerServer, d *Discovery) {
			d.TokenFile = s.caFile + "x"
			testkit.Put(t, d.TokenFile, "a\nX-Evil: b")
		}, "holds no token"},
		{"token file too long", func(t *testing.T, s *issuerServer, d *Discovery) {
			d.TokenFile = s.caFile + "x"
			testkit.Put(t, d.TokenFile, []byte(strings.Repeat("a", MaxTokenBytes+1)))
		}, "longer than 16384 bytes"},
		{"discovery 401", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(wellKnownPath, 401) },
			"401 Unauthorized; the issuer answers authenticated callers only: set discovery.tokenFile, or bind the role system:service-account-issuer-discovery to the group system:unauthenticated"},
		{"discovery 403", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(wellKnownPath, 403) }, "403 Forbidden; the issuer answers authenticated callers only"},
		{"discovery 403 with a token", func(t *testing.T, s *issuerServer, d *Discovery) {
			d.TokenFile = s.caFile + "x"
			testkit.Put(t, d.TokenFile, "bearer-token")
			s.fail(wellKnownPath, 403)
		}, "403 Forbidden; the issuer does not accept the token of discovery.tokenFile"},
		{"keys 401 without discovery", func(_ *testing.T, s *issuerServer, d *Discovery) {
			d.JWKSURL = s.URL + keysPath
			s.fail(keysPath, 401)
		}, "401 Unauthorized; the issuer answers authenticated callers only"},
		{"discovery 500", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(wellKnownPath, 500) }, "500 Internal Server Error"},
		{"discovery 204", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(wellKnownPath, 204) }, "204 No Content"},
		{"discovery is HTML", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.answer(wellKnownPath, "<html>") }, "is not a discovery document"},
		{"discovery with two documents", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, strings.Repeat(discoveryDocument(s.URL, s.URL+keysPath), 2))
		}, "is not a discovery document"},
		{"discovery of another issuer", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument("https://evil.example", s.URL+keysPath))
		}, `is of issuer "https://evil.example", not of`},
		{"discovery with a slash more", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL+"/", s.URL+keysPath))
		}, `is of issuer`},
		{"discovery without issuer", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, `{"ISSUER":"`+s.URL+`","jwks_uri":"`+s.URL+keysPath+`"}`)
		}, `is of issuer ""`},
		{"discovery with a second issuer", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, `{"issuer":"`+s.URL+`","ISSUER":"https://evil.example","jwks_uri":"`+s.URL+keysPath+`"}`)
		}, `is of issuer "https://evil.example"`},
		{"discovery with a member twice", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, `{"issuer":"`+s.URL+`","jwks_uri":"https://evil.example","jwks_uri":"`+s.URL+keysPath+`"}`)
		}, "is not a discovery document: jsontext: duplicate object member name"},
		{"discovery with an endpoint of another type", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, `{"issuer":"`+s.URL+`","jwks_uri":"`+s.URL+keysPath+`","userinfo_endpoint":7}`)
		}, "is not a discovery document: oidc: failed to decode"},
		{"discovery URL of another issuer", func(_ *testing.T, s *issuerServer, d *Discovery) {
			s.answer("/other", discoveryDocument("https://evil.example", s.URL+keysPath))
			d.URL = s.URL + "/other"
		}, `is of issuer "https://evil.example"`},
		{"discovery too long", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL, s.URL+keysPath)+huge)
		}, "longer than 1048576 bytes"},
		{"no jwks_uri", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL, ""))
		}, `jwks_uri: "" is not an https URL`},
		{"http jwks_uri", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL, "http://"+s.Listener.Addr().String()+keysPath))
		}, "is not an https URL"},
		{"file jwks_uri", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL, "file:///etc/passwd"))
		}, "is not an https URL"},
		{"jwks_uri with a password", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(wellKnownPath, discoveryDocument(s.URL, "https://u:p@a.example"))
		}, "must not hold a user name or password"},
		{"keys 404", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(keysPath, 404) }, "key set: GET https://"},
		{"keys 401", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.fail(keysPath, 401) }, "set discovery.tokenFile"},
		{"keys empty", func(_ *testing.T, s *issuerServer, _ *Discovery) { s.answer(keysPath, `{"keys":[]}`) }, "no usable key: the set is empty"},
		{"keys cut", func(t *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(keysPath, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "5000")
				w.Write(keySetJSON(t, keys().rsa))
			})
		}, "unexpected EOF"},
		// Mistake: a limit that cuts. The document is whole before the limit.
		{"keys too long", func(t *testing.T, s *issuerServer, _ *Discovery) {
			s.answer(keysPath, string(keySetJSON(t, keys().rsa))+huge)
		}, "longer than 1048576 bytes"},
		{"headers too long", func(t *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(keysPath, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X", strings.Repeat("x", 2*maxHeaderLimit))
				w.Write(keySetJSON(t, keys().rsa))
			})
		}, "key set"},
		{"redirect to another host", func(t *testing.T, s *issuerServer, _ *Discovery) {
			other := newIssuerServer(t, keys().rsa)
			s.handle(keysPath, http.RedirectHandler(other.URL+keysPath, http.StatusFound).ServeHTTP)
		}, "redirected to another host"},
		{"redirect to http", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(keysPath, http.RedirectHandler("http://"+s.Listener.Addr().String(), http.StatusFound).ServeHTTP)
		}, "redirected to another host"},
		{"redirect to cloud metadata", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(wellKnownPath, http.RedirectHandler("http://169.254.169.254/latest", http.StatusFound).ServeHTTP)
		}, "redirected to another host"},
		{"redirects without end", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(keysPath, http.RedirectHandler(keysPath, http.StatusFound).ServeHTTP)
		}, "more than 3 redirects"},
		{"redirects to long addresses", func(_ *testing.T, s *issuerServer, _ *Discovery) {
			s.handle(keysPath, http.RedirectHandler(keysPath+"?"+strings.Repeat("x", 5000), http.StatusFound).ServeHTTP)
		}, "xxx..."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newIssuerServer(t, keys().rsa)
			f := newServedFixture(t, s, func(d *Discovery) { test.change(t, s, d) })
			failure := refuse(t, f.Verifier, s.token(t, keys().rsa), refusal.IssuerUnavailable,
				`the signing keys of cluster "prod-eu" cannot be read at the moment; try again later`)
			status := f.Status()[0]
			if status.Keys != 0 || status.Failures != 1 || !status.FetchedAt.IsZero() {
				t.Errorf("status %+v", status)
			}
			for _, cause := range []string{status.LastFailure, failure.Err.Error()} {
				if !strings.Contains(cause, test.want) || len(cause) > maxCauseBytes+len("...") {
					t.Errorf("cause %q, want %q in it", cause, test.want)
				}
				if strings.Contains(cause, "authenticated callers only") && !strings.Contains(test.name, " 40") {
					t.Errorf("the remedy for a missing token in %q", cause)
				}
				if strings.Contains(cause, "bearer-token") {
					t.Errorf("the bearer token is in %q", cause)
				}
			}
			if n := s.keyReads.Load(); n > 1+maxRedirects {
				t.Errorf("%d reads of the keys", n)
			}
		})
	}
}

func TestBearerTokenIsReadAnewAtEachFetch(t *testing.T) {
	t.Parallel()
	s := newIssuerServer(t, keys().rsa)
	file := filepath.Join(t.TempDir(), "token")
	f := newServedFixture(t, s, func(d *Discovery) { d.TokenFile = file })
	for _, bearer := range []string{"first", "second"} {
		testkit.Put(t, file, []byte(bearer+"\n"))
		testkit.Must(t, f.issuers[0].keys.refresh(t.Context()))
		for _, path := range []string{wellKnownPath, keysPath} {
			if got := s.bearer(path); got != "Bearer "+bearer {
				t.Errorf("%s got the header %q", path, got)
			}
		}
	}
	if strings.Contains(f.log.String(), "second") {
		t.Errorf("the bearer token is in the log: %s", f.log)
	}
}

// Mistake: a credential is sent to an address that another party chose.
func TestBearerTokenStaysOnTheConfiguredHost(t *testing.T) {
	t.Parallel()
	s, other := newIssuerServer(t), newIssuerServer(t, keys().rsa)
	bearer := filepath.Join(t.TempDir(), "token")
	testkit.Put(t, bearer, "bearer-token")
	s.answer(wellKnownPath, discoveryDocument(s.URL, other.URL+keysPath))
	f := newServedFixture(t, s, func(d *Discovery) { d.TokenFile = bearer })
	accept(t, f.Verifier, s.token(t, keys().rsa))
	if got := s.bearer(wellKnownPath); got != "Bearer bearer-token" {
		t.Errorf("the configured host got %q", got)
	}
	if got := other.bearer(keysPath); got != "" {
		t.Errorf("the other host got %q", got)
	}

	// The other host wants a token: the cause says what to set.
	other.fail(keysPath, http.StatusForbidden)
	if err := f.issuers[0].keys.refresh(t.Context()); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("names another host (%q), which gets no token: set discovery.jwksURL", other.Listener.Addr())) {
		t.Errorf("cause %v", err)
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"https://a.example/x", "https://A.example:443/y?z", true},
		{"https://a.example", "https://a.example:8443", false},
		{"https://a.example", "https://b.example", false},
		{"https://a.example", "https://a.example.evil.example", false},
		{"https://[::1]:443", "https://[::1]", true},
	} {
		a, errA := parseHTTPS(test.a)
		b, errB := parseHTTPS(test.b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if got := sameOrigin(a, b); got != test.want {
			t.Errorf("%s and %s: %v", a, b, got)
		}
	}
}

// Mistake: a variable in the environment decides who delivers the keys.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	t.Setenv("https_proxy", "http://192.0.2.1:1")
	client := testkit.Value((&networkSource{}).client())(t)
	if client.Transport.(*http.Transport).Proxy != nil {
		t.Error("the client takes a proxy from somewhere")
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	client := testkit.Value((&networkSource{}).client())(t)
	config := client.Transport.(*http.Transport).TLSClientConfig
	if config.MinVersion < 0x0303 || config.InsecureSkipVerify {
		t.Errorf("TLS settings %+v", config)
	}
}

// A discovery document can be anywhere, so its requests carry what API servers
// accept: they answer 406 to "Accept: application/json" for the key set.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	s := newIssuerServer(t, keys().rsa)
	var accepts, agent string
	s.handle(keysPath, func(w http.ResponseWriter, r *http.Request) {
		accepts, agent = r.Header.Get("Accept"), r.Header.Get("User-Agent")
		w.Write(keySetJSON(t, keys().rsa))
	})
	f := newServedFixture(t, s, nil)
	accept(t, f.Verifier, s.token(t, keys().rsa))
	if accepts != "" || agent != "pullpass" {
		t.Errorf("Accept %q, User-Agent %q", accepts, agent)
	}
}
