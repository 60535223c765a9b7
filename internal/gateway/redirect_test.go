package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/test/registrytest"
)

// redirecting answers GETs of blobs with a redirect.
func redirecting(s *registrytest.Server, location string) {
	s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Location", location)
		w.Header().Set("Docker-Content-Digest", "sha256:aa")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusFound)
		return true
	})
}

func TestRedirectsPass(t *testing.T) {
	t.Parallel()
	const signed = "?X-Amz-Signature=0123456789abcdef0123456789abcdef"
	registry := registrytest.NewRegistry(t, "")
	any := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	some := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, _ *gateway.Upstream) {
		c.RedirectHosts = []string{"*.s3.example.com", "10.1.2.3", "cdn.example.com"}
	}})
	other := strings.Replace(registry.URL, "127.0.0.1", "localhost", 1)
	for _, test := range []struct {
		rig      *rig
		location string
		want     string // empty: refused
	}{
		{any, "https://bucket.s3.example.com/blob" + signed, "https://bucket.s3.example.com/blob" + signed},
		{any, "https://8.8.8.8/blob", "https://8.8.8.8/blob"},
		{any, registry.URL + "/storage" + signed, registry.URL + "/storage" + signed},
		{any, "/storage" + signed, registry.URL + "/storage" + signed},
		{any, "storage", registry.URL + "/v2/acme/app/blobs/storage"},
		{any, "//bucket.s3.example.com/blob", "https://bucket.s3.example.com/blob"},
		{any, "http://bucket.s3.example.com/blob", ""},
		{any, "http://" + registry.URL[8:] + "/storage", ""},
		{any, "ftp://bucket.s3.example.com/blob", ""},
		{any, "file:///etc/passwd", ""},
		{any, "https://user:pass@bucket.s3.example.com/blob", ""},
		{any, "https://10.0.0.1/blob", ""},
		{any, "https://169.254.169.254/latest/meta-data", ""},
		{any, "https://[::1]/blob", ""},
		{any, "https://[::ffff:10.0.0.1]/blob", ""},
		{any, "https://localhost/blob", ""},
		{any, "https://2130706433/blob", ""},
		{any, other + "/blob", ""},
		{any, "", ""},
		{any, "https://%zz", ""},
		{any, "https:///blob", ""},
		{any, "https:blob", ""},
		{some, "https:///blob", ""},
		{some, "https://bucket.s3.example.com/blob", "https://bucket.s3.example.com/blob"},
		{some, "https://BUCKET.S3.example.com/blob", "https://BUCKET.S3.example.com/blob"},
		{some, "https://cdn.example.com:8443/blob", "https://cdn.example.com:8443/blob"},
		{some, "https://10.1.2.3/blob", "https://10.1.2.3/blob"},
		{some, registry.URL + "/storage", registry.URL + "/storage"},
		{some, "https://s3.example.com/blob", ""},
		{some, "https://s3.example.com.evil.example/blob", ""},
		{some, "https://evils3.example.com/blob", ""},
		{some, "https://8.8.8.8/blob", ""},
	} {
		redirecting(registry, test.location)
		got := test.rig.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app")
		e := test.rig.one()
		if test.want == "" {
			if got.status != 502 || got.header.Get("Location") != "" || e.Reason != "upstream_redirect" || e.Result != "unavailable" || e.Gateway.UpstreamStatus != 302 && e.Gateway.UpstreamStatus != 0 {
				t.Errorf("%s: %d %v %s", test.location, got.status, got.header, shown(e))
			}
			continue
		}
		if got.status != 307 || got.header.Get("Location") != test.want || got.header.Get("Cache-Control") != "no-store" || got.body != "" || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v", test.location, got.status, got.header)
		}
		if e.Result != "granted" || e.Status != 307 || e.Gateway.UpstreamStatus != 302 || e.Gateway.RedirectHost == "" || strings.Contains(shown(e), "Signature") {
			t.Errorf("%s: %s", test.location, shown(e))
		}
	}
}

// An event names the manifest that a client is redirected to, if the upstream or the client names it.
func TestRedirectedManifests(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	says, asked := registrytest.DigestOf([]byte("says")), registrytest.DigestOf([]byte("asked"))
	for _, test := range []struct{ path, says, want string }{
		{"manifests/v1", says, says},
		{"manifests/v1", "sha256:aa", ""},
		{"manifests/v1", "", ""},
		{"manifests/" + asked, "", asked},
		{"manifests/" + asked, "sha256:aa", asked},
		{"blobs/" + asked, asked, ""},
	} {
		replying(registry, http.StatusTemporaryRedirect, "", "Location", "https://bucket.s3.example.com/manifest", "Docker-Content-Digest", test.says)
		got := r.pull("/v2/ghcr.io/acme/app/"+test.path, "ghcr.io/acme/app")
		if e := r.one(); got.status != 307 || e.Status != 307 || e.Gateway.Digest != test.want {
			t.Errorf("%+v: %d %s", test, got.status, shown(e))
		}
	}
}

// A followed redirect is requested without any credential, and only at an allowed address. Names
// are resolved, and addresses checked, on each connection.
func TestRedirectsFollowed(t *testing.T) {
	t.Parallel()
	storage := registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/blob":
			http.ServeContent(w, r, "", testTime, strings.NewReader("the blob"))
		case "/again":
			http.Redirect(w, r, "/blob?signed", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "https://10.0.0.1/", http.StatusFound)
		default:
			http.Error(w, "no", http.StatusForbidden)
		}
	}))
	registry := registrytest.NewRegistry(t, "")
	follow := func(hosts ...string) *rig {
		return newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, g *gateway.Upstream) {
			g.Follow, c.RedirectHosts, c.CAFile = true, hosts, bothCAs(t, registry, storage)
		}})
	}
	named, public := follow("localhost"), follow()
	at := strings.Replace(storage.URL, "127.0.0.1", "localhost", 1)
	for _, test := range []struct {
		rig      *rig
		location string
		status   int
		reason   string
	}{
		{named, at + "/blob", 200, ""},
		{named, at + "/again", 200, ""},
		{named, at + "/loop", 502, "upstream_redirect"},
		{named, at + "/away", 502, "upstream_redirect"},
		{named, at + "/forbidden", 502, "upstream_failing"},
		{named, "https://localhost:1/blob", 502, "upstream_unreachable"},
		{public, at + "/blob", 502, "upstream_redirect"},
		{public, "https://127-0-0-1.example.invalid/blob", 502, "upstream_unreachable"},
	} {
		redirecting(registry, test.location)
		storage.Asked()
		got := test.rig.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app", "Accept", "*/*")
		e := test.rig.one()
		if got.status != test.status || e.Reason != test.reason || test.status == 200 && (got.body != "the blob" || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Docker-Content-Digest") != "sha256:aa") {
			t.Errorf("%s: %d %v %q %s", test.location, got.status, got.header, got.body, shown(e))
		}
		for _, asked := range storage.Asked() {
			if asked.Header.Get("Authorization") != "" || asked.Header.Get("Cookie") != "" {
				t.Errorf("%s: the storage was given %v", test.location, asked.Header)
			}
		}
	}
	redirecting(registry, at+"/blob")
	if got := named.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app", "Range", "bytes=4-"); got.status != 206 || got.body != "blob" {
		t.Errorf("range: %d %q", got.status, got.body)
	}
}

// If the client follows the redirect, no byte of a blob passes through the gateway.
func TestRedirectsPassNoBytes(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Location", "https://bucket.s3.example.com/blob")
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		return true
	})
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), "ghcr.io/acme/app"); got.status != 307 || got.body != "" {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
	if e := r.one(); e.Gateway.Sent != 0 {
		t.Errorf("%s", shown(e))
	}
}

// Only pulls are redirected.
func TestPushesAreNotRedirected(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path == "/v2/" {
			return false
		}
		w.Header().Set("Location", registry.URL+"/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	})
	got := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "")
	if e := r.one(); got.status != 502 || got.header.Get("Location") != "" || e.Reason != "upstream_redirect" {
		t.Errorf("%d %v %s", got.status, got.header, shown(e))
	}
}

// A body is not sent again after a part was sent, because the rest is not the whole blob.
func TestSentBodiesAreNotSentAgain(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "").header.Get("Location")
	registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
		if q.Method != http.MethodPatch {
			return false
		}
		_, _ = io.ReadFull(q.Body, make([]byte, 3))
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	registry.Asked()
	if got := r.push(http.MethodPatch, at, "ghcr.io/acme/app", "content", "Content-Type", "application/octet-stream"); got.status != 502 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := registry.Count(http.MethodPatch, "/"); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}

// A list that came from a redirect goes on at the upstream, where the gateway's credential is used.
// The storage must not choose the address there.
func TestRedirectedListsGoOnAtTheUpstream(t *testing.T) {
	t.Parallel()
	registry, storage := registrytest.NewRegistry(t, ""), registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, g *gateway.Upstream) {
		g.Follow, c.RedirectHosts, c.CAFile = true, []string{"localhost"}, bothCAs(t, registry, storage)
	}})
	own := "/v2/acme/app/referrers/" + registrytest.DigestOf(nil)
	const other = "/v2/acme/secret/manifests/latest"
	elsewhere := strings.Replace(storage.URL, "127.0.0.1", "localhost", 1)
	for _, test := range []struct {
		to, next string
		isGood   bool
	}{
		{elsewhere + other, other + "?page=2", false},
		{elsewhere + own, own + "?page=2", false},
		{registry.URL + other, other + "?page=2", false},
		{elsewhere + other, registry.URL + own + "?page=2", true},
	} {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			switch {
			case q.URL.Path == own && q.URL.RawQuery == "":
				http.Redirect(w, q, test.to, http.StatusTemporaryRedirect)
			case q.URL.Path == own:
				_, _ = io.WriteString(w, "the second page")
			case q.URL.Path == other && q.URL.RawQuery == "":
				w.Header().Set("Link", "<"+test.next+`>; rel="next"`)
			case q.URL.Path == other:
				t.Errorf("%v: another repository was read", test)
			default:
				return false
			}
			return true
		})
		storage.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Link", "<"+test.next+`>; rel="next"`)
			return true
		})
		got := r.pull("/v2/ghcr.io"+strings.TrimPrefix(own, "/v2"), "ghcr.io/acme/app")
		if !test.isGood {
			if e := r.one(); got.status != 502 || e.Reason != "upstream_invalid" {
				t.Errorf("%v: %d %s", test, got.status, shown(e))
			}
			continue
		}
		path, _, _ := strings.Cut(strings.TrimPrefix(got.header.Get("Link"), "<"), ">")
		if got = r.pull(path, "ghcr.io/acme/app"); got.body != "the second page" {
			t.Errorf("%v: %d %s", test, got.status, got.body)
		}
	}
}
