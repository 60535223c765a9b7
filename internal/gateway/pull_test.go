package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/registrytest"
)

func TestPull(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	i := registry.Put(t, "acme/app", "v1", []byte(strings.Repeat("layer", 100_000)))

	challenged := r.do(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", "", nil)
	if want := `Bearer realm="` + r.URL + `/token",service="gateway.example.com",scope="repository:ghcr.io/acme/app:pull"`; challenged.status != 401 || challenged.header.Get("WWW-Authenticate") != want {
		t.Errorf("%d %v\nwant %s", challenged.status, challenged.header, want)
	}
	if events := r.events.take(); len(events) > 0 {
		t.Errorf("events of a challenge: %s", shown(events))
	}

	for _, path := range []string{"/manifests/v1", "/manifests/" + i.Digest} {
		got := r.pull("/v2/ghcr.io/acme/app"+path+"?ns=ghcr.io", "ghcr.io/acme/app", "Accept", registrytest.ManifestType)
		if got.status != 200 || got.body != i.Manifest || got.header.Get("Docker-Content-Digest") != i.Digest || got.header.Get("Content-Type") != registrytest.ManifestType {
			t.Errorf("%s: %d %v %s", path, got.status, got.header, got.body)
		}
	}
	events := r.events.take()
	if len(events) != 2 || events[0].Result != "granted" || events[0].Cluster != "prod" || events[0].Pod.Name != "pod-1" || events[0].CredentialID != "JTI=jti-web" ||
		events[0].Gateway.Repository != "ghcr.io/acme/app" || events[0].Gateway.Kind != "manifest" || events[0].Gateway.Reference != "v1" || events[0].Gateway.Digest != i.Digest || events[0].Gateway.UpstreamStatus != 200 || events[0].Gateway.Sent != int64(len(i.Manifest)) {
		t.Errorf("events: %s", shown(events))
	}

	head := r.do(http.MethodHead, "/v2/ghcr.io/acme/app/blobs/"+i.LayerDigest, r.token("web", "repository:ghcr.io/acme/app:pull"), nil)
	if head.status != 200 || head.header.Get("Content-Length") != "500000" {
		t.Errorf("HEAD: %d %v", head.status, head.header)
	}
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+i.LayerDigest, "ghcr.io/acme/app"); got.status != 200 || got.body != i.Layer {
		t.Errorf("blob: %d, %d bytes", got.status, len(got.body))
	}
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+i.LayerDigest, "ghcr.io/acme/app", "Range", "bytes=5-9"); got.status != 206 || got.body != "layer" || got.header.Get("Content-Range") != "bytes 5-9/500000" {
		t.Errorf("range: %d %v %.20s", got.status, got.header, got.body)
	}
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+i.LayerDigest, "ghcr.io/acme/app", "Range", "bytes=0-1,5-9"); got.status != 200 || len(got.body) != 500000 {
		t.Errorf("several ranges: %d, %d bytes", got.status, len(got.body))
	}
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+i.LayerDigest, "ghcr.io/acme/app", "Range", "bytes=600000-"); got.status != 416 {
		t.Errorf("range beyond the end: %d", got.status)
	}
	if got := r.pull("/v2/ghcr.io/acme/app/manifests/v2", "ghcr.io/acme/app"); got.status != 404 || !strings.Contains(got.body, "MANIFEST_UNKNOWN") {
		t.Errorf("not there: %d %s", got.status, got.body)
	}
	if got := r.do(http.MethodGet, "/v2/", r.token("web"), nil); got.status != 200 || got.body != "{}" {
		t.Errorf("version: %d %s", got.status, got.body)
	}
	// One request gets the challenge of the upstream. Nothing from the client reaches the upstream.
	for _, asked := range registry.Asked() {
		user, pass, ok := asked.BasicAuth()
		if asked.URL.Path != "/v2/" && (!ok || user != registrytest.User || pass != registrytest.Password) {
			t.Errorf("%s %s: not the gateway's credential", asked.Method, asked.URL)
		}
		if asked.URL.RawQuery != "" || asked.UserAgent() != "pullpass/test" {
			t.Errorf("%s: %v", asked.URL, asked.Header)
		}
	}
}

// An event has the digest of a manifest that was sent, and of nothing else.
func TestDigestOfEvents(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !strings.HasSuffix(q.URL.Path, "/manifests/"+digest) { // the client says it there
			w.Header().Set("Docker-Content-Digest", digest)
		}
		if strings.HasSuffix(q.URL.Path, "/missing") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))})
	for path, want := range map[string]string{"manifests/v1": digest, "manifests/" + digest: digest, "manifests/missing": "", "blobs/" + digest: ""} {
		r.pull("/v2/ghcr.io/acme/app/"+path, "ghcr.io/acme/app")
		if e := r.one(); e.Gateway.Digest != want {
			t.Errorf("%s: %s", path, shown(e))
		}
	}
}

func TestTags(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	for _, tag := range []string{"a", "b", "c"} {
		registry.Put(t, "acme/app", tag, []byte("layer"))
	}
	path, seen := "/v2/ghcr.io/acme/app/tags/list?n=2", ""
	for range 2 {
		got := r.pull(path, "ghcr.io/acme/app")
		if got.status != 200 || !strings.Contains(got.body, `"name":"ghcr.io/acme/app"`) {
			t.Fatalf("%d %s", got.status, got.body)
		}
		seen += got.body
		path, _, _ = strings.Cut(strings.TrimPrefix(got.header.Get("Link"), "<"), ">")
	}
	if want := `{"name":"ghcr.io/acme/app","tags":["a","b"]}{"name":"ghcr.io/acme/app","tags":["c"]}`; seen != want || path != "" {
		t.Errorf("%s, and then %q", seen, path)
	}
}
