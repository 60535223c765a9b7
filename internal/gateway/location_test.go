package gateway_test

import (
	"crypto/sha512"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth/seal"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// distribution answers an upload with a digest of a different algorithm with the address of the
// SHA-256 digest. A client that may push, but not delete, must not get an address that deletes that
// blob.
func TestAFinishedUploadIsNotSealed(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(_ *upstream.Config, g *gateway.Upstream) { g.Actions = []string{"pull", "push"} }})
	const base, repository, content = "/v2/ghcr.io/acme/app", "ghcr.io/acme/app", "content"
	at := r.push(http.MethodPost, base+"/blobs/uploads/", repository, "").header.Get("Location")
	digest := fmt.Sprintf("sha512:%x", sha512.Sum512([]byte(content)))
	got := r.push(http.MethodPut, at+"?digest="+digest, repository, content)
	if got.status != 201 || got.header.Get("Location") != base+"/blobs/"+digest {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	if got := r.pull(got.header.Get("Location"), repository); got.status != 200 || got.body != content {
		t.Errorf("at its address: %d %s", got.status, got.body)
	}
	registry.Asked()
	if got := r.push(http.MethodDelete, got.header.Get("Location"), repository, ""); got.status < 400 {
		t.Errorf("DELETE: %d %s", got.status, got.body)
	}
	if n := registry.Count(http.MethodDelete, "/v2/acme/"); n > 0 {
		t.Errorf("the upstream was asked to delete %d times", n)
	}
	if got := r.pull(base+"/blobs/"+registrytest.DigestOf([]byte(content)), repository); got.status != 200 {
		t.Errorf("the blob: %d", got.status)
	}
}

// The client that began an upload may cancel it, with the scope push alone.
func TestAnUploadIsCanceled(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(_ *upstream.Config, g *gateway.Upstream) { g.Actions = []string{"pull", "push"} }})
	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "").header.Get("Location")
	if got := r.pull(at, "ghcr.io/acme/app"); got.status != 401 {
		t.Errorf("with the right to pull: %d", got.status)
	}
	if got := r.push(http.MethodDelete, at, "ghcr.io/acme/app", ""); got.status != 204 || got.header.Get("Location") != "" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if got := r.push(http.MethodGet, at, "ghcr.io/acme/app", ""); got.status != 404 {
		t.Errorf("afterwards: %d", got.status)
	}
}

// Only addresses of uploads to the same repository are sealed, for every response of an upstream.
func TestOnlyUploadsAreSealed(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const base, repository = "/v2/ghcr.io/acme/app", "ghcr.io/acme/app"
	digest := registrytest.DigestOf([]byte("content"))
	answer := func(method string, status int, location string) {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method != method || q.URL.Path == "/v2/" {
				return false
			}
			w.Header().Set("Location", location)
			w.WriteHeader(status)
			return true
		})
	}
	begin := func(location string) answer202 {
		answer(http.MethodPost, 202, location)
		got := r.push(http.MethodPost, base+"/blobs/uploads/", repository, "")
		return answer202{got.status, got.header.Get("Location")}
	}
	for _, location := range []string{
		"/v2/acme/app/blobs/" + digest, registry.URL + "/v2/acme/app/blobs/" + digest, "../" + digest, "./../../manifests/v1",
		"/v2/acme/app/manifests/v1", "/v2/acme/app/manifests/" + digest, "/v2/acme/other/blobs/uploads/x", "/v2/acme/app/x/blobs/uploads/y",
		"/v2/acme/app/blobs/uploads/", "/v2/acme/app/blobs/uploads", "/v2/acme/app/blobs/uploads/?mount=" + digest + "&from=acme/other",
		"/v2/acme/app/blobs/uploads/../" + digest, "/v2/acme/app/blobs/uploads/%2e%2e/" + digest, "/v2/acme/app/blobs/uploads/%2E%2E%2F" + digest,
		"/v2/acme/app/blobs/uploads/..%2f" + digest, "/v2/acme/app/blobs/uploads/..%5c" + digest, "/v2/acme/app/blobs/uploads/%252e%252e%252f" + digest,
		"/v2/acme/app/blobs/uploads/%2e%2e", "/v2/acme/app/blobs/uploads/..", "/v2/acme/app/blobs/uploads/.", "/v2/acme/app/blobs/uploads/%2e", "/v2/acme/app/blobs/uploads/x/", "/v2/acme/app/blobs/uploads//x",
		"/v2/acme/app/blobs/uploads/x/blobs/" + digest, "/v2/acme/app/blobs/uploads/x/manifests/v1", "/v2/acme/app/blobs/uploads/x%2fmanifests%2fv1",
		"/v2/acme/app/blobs/uploads/x;y", "/v2/acme/app/blobs/uploads/%00", "/v2/acme/app/blobs%2fuploads/x", "/v2/acme%2fapp/blobs/uploads/x", "//acme/app/blobs/uploads/x",
		"/V2/acme/app/blobs/uploads/x", "/v2/ghcr.io/acme/app/blobs/uploads/x", "/x/v2/acme/app/blobs/uploads/y", "/api/v2.0/projects/acme", "/", "?x", "#x", "",
		"/artifacts-uploads/namespaces/acme/repositories/app/uploads/x", // Artifact Registry's images have three components
		strings.Replace(registry.URL, "://", "://user:password@", 1) + "/v2/acme/app/blobs/uploads/x",
		strings.Replace(registry.URL, "https://", "http://", 1) + "/v2/acme/app/blobs/uploads/x", "https://evil.example/v2/acme/app/blobs/uploads/x", "/v2/acme/app/blobs/uploads/%zz",
	} {
		got := begin(location)
		if e := r.one(); got.location != "" || location != "" && (got.status != 502 || e.Reason != "upstream_redirect") {
			t.Errorf("POST, 202 %q: %d %q %s", location, got.status, got.location, e.Reason)
		}
	}
	for location, want := range map[string]string{ // as registries have them
		"/v2/acme/app/blobs/uploads/00-11?_state=x_-%3D":  "/v2/acme/app/blobs/uploads/00-11?_state=x_-%3D",
		registry.URL + "/v2/acme/app/blobs/uploads/00-11": "/v2/acme/app/blobs/uploads/00-11",
		"00-11":                             "/v2/acme/app/blobs/uploads/00-11",
		"/v2/acme/app/blobs/upload/1:00-11": "/v2/acme/app/blobs/upload/1:00-11",
		"/v2/acme/app/blobs/uploads/x?_nouploadcache=false&_state=y":                     "/v2/acme/app/blobs/uploads/x?_nouploadcache=false&_state=y",
		"/v2/acme/app/blobs/uploads/x?mount=" + digest + "&from=acme/other&a=b&digest=c": "/v2/acme/app/blobs/uploads/x?a=b",
		"/v2/acme/app/blobs/uploads/x?a=b#/../../../manifests/v1":                        "/v2/acme/app/blobs/uploads/x?a=b",
		"/v2/acme/app/manifests/../blobs/uploads/x":                                      "/v2/acme/app/blobs/uploads/x",
	} {
		got := begin(location)
		if got.status != 202 || !strings.HasPrefix(got.location, base+"/blobs/uploads/") {
			t.Errorf("%q: %d %q", location, got.status, got.location)
			continue
		}
		answer(http.MethodDelete, 204, "/v2/acme/app/blobs/"+digest)
		registry.Asked()
		canceled := r.push(http.MethodDelete, got.location+"?digest="+digest+"&mount="+digest+"&from=acme/other", repository, "")
		asked := registry.Asked()
		if len(asked) != 1 || asked[0].URL.RequestURI() != want || canceled.header.Get("Location") != "" {
			t.Errorf("%q: the upstream was asked %v, want %s", location, asked, want)
		}
	}

	// After the first response.
	at := begin("/v2/acme/app/blobs/uploads/x").location
	for _, test := range []struct {
		method, query string
		status        int
		location      string
		want          string // "sealed": a different address; "502"
	}{
		{"PUT", "?digest=" + digest, 201, "/v2/acme/app/blobs/" + digest, base + "/blobs/" + digest},
		{"PUT", "?digest=" + digest, 201, "/v2/acme/other/manifests/v1", base + "/blobs/" + digest},
		{"PUT", "?digest=" + digest, 201, "https://evil.example/", base + "/blobs/" + digest},
		{"PUT", "?digest=" + digest, 201, "/v2/acme/app/blobs/uploads/x", base + "/blobs/" + digest},
		{"PUT", "?digest=" + digest, 201, "", base + "/blobs/" + digest},
		{"PUT", "", 201, "/v2/acme/app/blobs/" + digest, ""},
		{"PUT", "?digest=" + digest, 200, "/v2/acme/app/blobs/" + digest, ""},
		{"PUT", "?digest=" + digest, 204, "/v2/acme/app/blobs/" + digest, ""},
		{"PUT", "?digest=" + digest, 202, "/v2/acme/app/blobs/uploads/x", "sealed"},
		{"PUT", "?digest=" + digest, 202, "/v2/acme/app/blobs/" + digest, "502"},
		{"PATCH", "", 202, "/v2/acme/app/blobs/uploads/x?_state=1", "sealed"},
		{"PATCH", "", 202, "/v2/acme/app/manifests/v1", "502"},
		{"PATCH", "", 202, "", ""},
		{"PATCH", "", 201, "/v2/acme/app/blobs/" + digest, at}, // as ECR, but for the address
		{"PATCH", "", 204, "/v2/acme/app/blobs/uploads/x", at}, // as Pulp
		{"GET", "", 204, "/v2/acme/app/blobs/uploads/x?_state=1", "sealed"},
		{"GET", "", 204, "/v2/acme/app/blobs/" + digest, "502"},
		{"GET", "", 200, "/v2/acme/app/blobs/" + digest, ""},
		{"DELETE", "", 202, "/v2/acme/app/blobs/" + digest, "502"},
		{"DELETE", "", 204, "/v2/acme/app/blobs/uploads/x", ""},
	} {
		answer(test.method, test.status, test.location)
		got := r.push(test.method, at+test.query, repository, "")
		location := got.header.Get("Location")
		name := fmt.Sprintf("%s, %d %q", test.method, test.status, test.location)
		switch test.want {
		case "502":
			if got.status != 502 || location != "" {
				t.Errorf("%s: %d %q", name, got.status, location)
			}
		case "sealed":
			if got.status != test.status || !strings.HasPrefix(location, base+"/blobs/uploads/") || location == at {
				t.Errorf("%s: %d %q", name, got.status, location)
			}
		default:
			if got.status != test.status || location != test.want {
				t.Errorf("%s: %d %q, want %q", name, got.status, location, test.want)
			}
		}
	}

	// The first response may be the last one.
	for query, want := range map[string]string{
		"?digest=" + digest: base + "/blobs/" + digest, "?digest=" + digest + "&mount=sha256:bb&from=acme/base": base + "/blobs/" + digest, "?mount=" + digest + "&from=acme/base": base + "/blobs/" + digest, "?mount=" + digest + "&from=acme/hidden": "", "": "",
	} {
		answer(http.MethodPost, 201, "/v2/acme/other/blobs/sha256:aa")
		token := r.token("web", "repository:ghcr.io/acme/app:pull,push", "repository:ghcr.io/acme/base:pull")
		if got := r.do(http.MethodPost, base+"/blobs/uploads/"+query, token, nil); got.header.Get("Location") != want {
			t.Errorf("POST %s, 201: %d %q", query, got.status, got.header.Get("Location"))
		}
	}
}

// Artifact Registry has uploads beside its API. The address must have the same project and
// repository.
func TestUploadsOfArtifactRegistry(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	for location, isGood := range map[string]bool{
		"/artifacts-uploads/namespaces/acme/repositories/app/uploads/AJ-x_y==":  true,
		"/artifacts-uploads/namespaces/acme/repositories/other/uploads/x":       false,
		"/artifacts-uploads/namespaces/other/repositories/app/uploads/x":        false,
		"/artifacts-uploads/namespaces/acme/repositories/app/packages/x":        false,
		"/artifacts-uploads/namespaces/acme/repositories/app/uploads/..":        false,
		"/artifacts-uploads/namespaces/acme/repositories/app/uploads/x/y":       false,
		"/artifacts-uploads/namespaces/acme%2fapp/repositories/image/uploads/x": false,
		"/artifacts-uploads/namespaces/acme:app/repositories/image/uploads/x":   false,
	} {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodPost {
				w.Header().Set("Location", location)
				w.WriteHeader(http.StatusAccepted)
			}
			return q.Method == http.MethodPost || q.Method == http.MethodDelete
		})
		registry.Asked()
		got := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/image/blobs/uploads/", "ghcr.io/acme/app/image", "")
		at := got.header.Get("Location")
		if isGood != (got.status == 202) || isGood != (at != "") {
			t.Errorf("%s: %d %q", location, got.status, at)
		}
		if isGood {
			r.push(http.MethodDelete, at, "ghcr.io/acme/app/image", "")
			if registry.Count(http.MethodDelete, location) != 1 {
				t.Errorf("%s: the upstream was not asked to cancel it", location)
			}
		}
	}
}

// An address that an earlier version sealed for a blob is no longer accepted.
func TestAnAddressThatWasSealedBefore(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	box := seal.NewBox("pullpass gateway: addresses of upstreams, v1")
	for address, status := range map[string]int{"/v2/acme/app/blobs/uploads/x": 404, "/v2/acme/app/blobs/" + registrytest.DigestOf(nil): 404, "/v2/acme/app/manifests/v1": 404} {
		sealed := testkit.Value(box.Seal(r.keys, address, "upload\x00prod/team-a/web\x00uid-1\x00ghcr.io/acme/app", testTime.AddDate(100, 0, 0)))(t)
		registry.Asked()
		got := r.push(http.MethodDelete, "/v2/ghcr.io/acme/app/blobs/uploads/"+sealed, "ghcr.io/acme/app", "")
		asked := registry.Count(http.MethodDelete, "/")
		if wants := strings.Contains(address, "uploads"); got.status != status || (asked > 0) != wants {
			t.Errorf("%s: %d; the upstream was asked %d times", address, got.status, asked)
		}
	}
}

type answer202 struct {
	status   int
	location string
}
